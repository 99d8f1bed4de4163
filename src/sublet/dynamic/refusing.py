"""Which updates a run may have made when a command refuses what it is given: these are what has to be taken back."""

from __future__ import annotations

from collections.abc import Hashable

from sublet.ir.graph import CaseOf, Graph, Node, Value
from sublet.ops.nn import indexing, loss
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.shapes import FLOATS
from sublet.plan import MemoryPlan

RAISING = frozenset(PREFIX + record.name for record in (*indexing.COMMANDS, *loss.COMMANDS))
"""Commands that may refuse an index or a label that is out of range."""

GRADIENT = "_gradient"
"""Ends the name of the gradient of a command: it refuses nothing that the command took."""


def written_early(graph: Graph, plan: MemoryPlan) -> set[Value]:
    """What is updated by a command that runs before one that may refuse its inputs."""
    by_name = {node.name: node for node in graph.nodes}
    nodes = [by_name[step.node] for step in plan.schedule.steps]
    taken: set[Hashable] = set()
    last = 0
    for i, node in enumerate(nodes):
        if _may_refuse(node, taken):
            last = i
        taken.add(_asked(node, node.uses[:1]))
    made = {value for node in nodes[:last] for value in node.defs}
    return {target for target, source in graph.updates if source in made}


def _may_refuse(node: Node, taken: set[Hashable]) -> bool:
    """Whether it may refuse what it is given, or a loop or branch something in it, or its index."""
    if node.subgraphs:
        inside = (inner for graph in node.subgraphs for inner in graph.nodes)
        return isinstance(node, CaseOf) or any(_may_refuse(inner, set()) for inner in inside)
    known = node.op.endswith(GRADIENT) and _asked(node, node.defs[:1]) in taken
    return node.op in RAISING and not known


def _asked(node: Node, table: tuple[Value, ...]) -> Hashable:
    """Which indices a command, or its gradient, takes into what."""
    if node.op not in RAISING:
        return None
    indices = tuple(value for value in node.uses if spec_of(value).dtype not in FLOATS)
    shapes = tuple(spec_of(value).shape for value in table)
    return node.op.removesuffix(GRADIENT), indices, shapes, node.attrs.get("axis")

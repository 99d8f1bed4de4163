"""The updates possibly made by a run before a command refuses inputs, to be undone after the error."""

from __future__ import annotations

from collections.abc import Hashable

from sublet.ir.graph import CaseOf, Graph, Node, Value
from sublet.ops.nn import indexing, loss
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.shape_inference import FLOATS
from sublet.plan import MemoryPlan

REFUSING_COMMANDS = frozenset(PREFIX + record.name for record in (*indexing.COMMANDS, *loss.COMMANDS))
"""Commands refusing an index or label out of range."""

GRADIENT_SUFFIX = "_gradient"
"""Suffix of the gradient of a command: the gradient refuses no inputs accepted by the command."""


def updates_before_refusal(graph: Graph, plan: MemoryPlan) -> set[Value]:
    """Return the parameters possibly updated before the last command able to refuse inputs."""
    by_name = {node.name: node for node in graph.nodes}
    nodes = [by_name[step.node] for step in plan.schedule.steps]
    taken: set[Hashable] = set()
    last = 0
    for i, node in enumerate(nodes):
        if _may_refuse(node, taken):
            last = i
        taken.add(_index_query(node, node.uses[:1]))
    early_values = {value for node in nodes[:last] for value in node.defs}
    return {target for target, source in graph.updates if source in early_values}


def _may_refuse(node: Node, taken: set[Hashable]) -> bool:
    """True if a node may refuse an index, a label, or the index of a branch; or a node in a body or arm may.

    `taken` are the index queries of earlier nodes: a gradient never refuses a query accepted by the command.
    """
    if node.subgraphs:
        inside = (inner for graph in node.subgraphs for inner in graph.nodes)
        return isinstance(node, CaseOf) or any(_may_refuse(inner, set()) for inner in inside)
    known = node.op.endswith(GRADIENT_SUFFIX) and _index_query(node, node.defs[:1]) in taken
    return node.op in REFUSING_COMMANDS and not known


def _index_query(node: Node, table: tuple[Value, ...]) -> Hashable:
    """Return the index query of a command or of a gradient: operator, indices, shape and axis; None without indices."""
    if node.op not in REFUSING_COMMANDS:
        return None
    indices = tuple(value for value in node.uses if spec_of(value).dtype not in FLOATS)
    shapes = tuple(spec_of(value).shape for value in table)
    return node.op.removesuffix(GRADIENT_SUFFIX), indices, shapes, node.attrs.get("axis")

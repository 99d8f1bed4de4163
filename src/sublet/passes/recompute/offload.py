"""Offloading of values to a slow memory and back, represented for the search as a node with clones.

    %y = nn.relu(%x)                     %y = nn.relu(%x)
    %z = nn.conv(%y, %w)                 %y.offload = nn.offload(%y)
    ...                           ->     %z = nn.conv(%y, %w)
    %d = gradient(%g, %y)                ...
                                         %y.again = nn.reload(%y.offload) again
                                         %d = gradient(%g, %y.again)

The search treats the offload like any node: a clone of the offload is the reload. The clone reads the result of the
offload and redefines the operand. A pair (node, reader) names the offload by the name of the value plus `OFFLOADED`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import pairwise

from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.recipe import OFFLOAD_SUFFIX
from sublet.ops import lookup
from sublet.ops.emitter import NameGenerator
from sublet.ops.nn.conversion import OFFLOAD

MIN_UNREAD_NODES = 4
"""Minimum number of nodes between two accesses of a value worth offloading."""


def is_offload(node: Node) -> bool:
    """True if the node offloads a value to slow memory."""
    return node.op == OFFLOAD


def offload_pair(node: Node) -> tuple[Value, Value]:
    """Return the operand of an offload and its result, the copy in slow memory."""
    return node.uses[0], node.defs[0]


def offloaded_values(graph: Graph) -> frozenset[Value]:
    """Return the values of a graph in slow memory, if the target has a slow memory."""
    return frozenset(offload_pair(node)[1] for node in graph.nodes if is_offload(node))


def offload_candidates(graph: Graph, min_bytes: int) -> list[str]:
    """Return the values of the root level worth offloading.

    A candidate is computed by a node, has at least `min_bytes` bytes and, together with its views, has a long gap
    without readers.
    """
    used_names = {node.name for node in graph.walk()} | {value.name for value in graph.values()}
    base: dict[Value, Value] = {}
    accesses: dict[Value, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in reads_inside(node):
            accesses.setdefault(base.get(value, value), []).append(i)
        viewed = () if node.subgraphs else lookup(node.op).views(node)
        for share in viewed:
            whole, part = node.inputs[share.input], node.outputs[share.output]
            if whole is not None and part is not None:
                base[part] = base.get(whole, whole)
        for value in node.defs:
            accesses.setdefault(base.get(value, value), []).append(i)
    return [
        value.name
        for node in graph.nodes
        for value in node.defs
        if value not in base and value.plannable and value.nbytes >= max(1, min_bytes)
        if value.name + OFFLOAD_SUFFIX not in used_names
        if max((later - before for before, later in pairwise(accesses[value])), default=0) > MIN_UNREAD_NODES
    ]


def with_offloads(graph: Graph, values: Collection[str]) -> Graph:
    """Return the graph with an offload of each of the named values right after the defining node."""
    wanted = set(values)
    if not wanted:
        return graph
    names = NameGenerator(value.name for value in graph.values())
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(node)
        for value in node.defs:
            if value.name in wanted:
                away = replace(value, name=names.fresh(value.name + OFFLOAD_SUFFIX))
                nodes.append(Node(value.name + OFFLOAD_SUFFIX, OFFLOAD, (value,), (away,), {}))
    return replace(graph, nodes=tuple(nodes))


def values_to_offload(graph: Graph, nodes: Iterable[str]) -> list[str]:
    """Return the values whose offloads are named in `nodes`, without names of existing nodes."""
    known = {node.name for node in graph.nodes}
    values = {value.name for node in graph.nodes for value in node.defs}
    others = dict.fromkeys(name for name in nodes if name not in known)
    found = (name.removesuffix(OFFLOAD_SUFFIX) for name in others if name.endswith(OFFLOAD_SUFFIX))
    return [name for name in found if name in values]

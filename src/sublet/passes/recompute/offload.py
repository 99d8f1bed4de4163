"""Values that go to a slow memory and come back: written into a graph, for the search as a node that may be cloned.

    %y = nn.relu(%x)                     %y = nn.relu(%x)
    %z = nn.conv(%y, %w)                 %y.offload = nn.offload(%y)
    ...                           ->     %z = nn.conv(%y, %w)
    %d = gradient(%g, %y)                ...
                                         %y.again = nn.reload(%y.offload) again
                                         %d = gradient(%g, %y.again)

To the search the offload is a node like any other: a clone of it is the reload, which reads what the offload made and
makes anew what that was made of. In pairs (node, reader) it is called like the value, with `OFFLOADED`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import pairwise

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.recipe import OFFLOADED
from sublet.ir.walk import reads_inside
from sublet.ops import lookup
from sublet.ops.emitter import Names
from sublet.ops.nn.conversion import OFFLOAD

UNREAD = 4
"""Nodes that a value is not read by, before one that reads it, where it may be brought away for so long."""


def is_offload(node: Node) -> bool:
    """Whether the node brings a value to the slow memory."""
    return node.op == OFFLOAD


def there_and_back(node: Node) -> tuple[Value, Value]:
    """What an offload reads, and what it makes of it in the slow memory."""
    return node.uses[0], node.defs[0]


def offloaded(graph: Graph) -> frozenset[Value]:
    """The values of a graph that lie in the slow memory where there is one."""
    return frozenset(there_and_back(node)[1] for node in graph.nodes if is_offload(node))


def candidates(graph: Graph, least: int) -> list[str]:
    """The values of the root level that may be brought away.

    They are computed by a node, have so many bytes at least, and lie unread for a while, views of them unread too.
    """
    taken = {node.name for node in graph.walk()} | {value.name for value in graph.values()}
    base: dict[Value, Value] = {}
    touched: dict[Value, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in reads_inside(node):
            touched.setdefault(base.get(value, value), []).append(i)
        viewed = () if node.subgraphs else lookup(node.op).views(node)
        for share in viewed:
            whole, part = node.inputs[share.input], node.outputs[share.output]
            if whole is not None and part is not None:
                base[part] = base.get(whole, whole)
        for value in node.defs:
            touched.setdefault(base.get(value, value), []).append(i)
    return [
        value.name
        for node in graph.nodes
        for value in node.defs
        if value not in base and value.plannable and value.nbytes >= max(1, least)
        if value.name + OFFLOADED not in taken
        if max((later - before for before, later in pairwise(touched[value])), default=0) > UNREAD
    ]


def with_offloads(graph: Graph, values: Collection[str]) -> Graph:
    """The graph in which each of these values, by name, is brought away right after its node."""
    wanted = set(values)
    if not wanted:
        return graph
    names = Names(value.name for value in graph.values())
    made: list[Node] = []
    for node in graph.nodes:
        made.append(node)
        for value in node.defs:
            if value.name in wanted:
                away = replace(value, name=names.fresh(value.name + OFFLOADED))
                made.append(Node(value.name + OFFLOADED, OFFLOAD, (value,), (away,), {}))
    return replace(graph, nodes=tuple(made))


def meant(graph: Graph, nodes: Iterable[str]) -> list[str]:
    """The values whose offloads these names are, of those that no node of the graph has."""
    known = {node.name for node in graph.nodes}
    values = {value.name for node in graph.nodes for value in node.defs}
    others = dict.fromkeys(name for name in nodes if name not in known)
    found = (name.removesuffix(OFFLOADED) for name in others if name.endswith(OFFLOADED))
    return [name for name in found if name in values]

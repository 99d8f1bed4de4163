"""Split regions: the split nodes running piece by piece together, and the order of all nodes.

    a = conv(x); b = relu(a); c = pool(b)      ->      a1, b1, c1, a2, b2, c2, ...

Neither `a` nor `b` is ever whole. A region has nodes with the same number of pieces, and no node of a region reads a
whole defined in the region. A region stands at the position of its last node; readers of the wholes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.ir.dataflow import required_values
from sublet.ir.graph import Node, Value

Region = tuple[Node, ...]
"""Nodes running piece by piece together, or a single node that is not split."""

RegionKey = Callable[[Node], object]
"""Returns a key equal for nodes allowed in the same region; None for a node that is not split."""

Wholes = Callable[[Node], set[Value]]
"""Returns the operands a split node needs whole if an earlier node of the region defines pieces of the operand."""


def split_regions(
    nodes: Sequence[Node], alike: RegionKey, wholes: Wholes, pieces: Callable[[Node], set[Value]]
) -> list[Region]:
    """Return all nodes in a new order, as regions.

    `pieces` returns the results of a split node whose pieces are rows.
    """
    found: list[Region] = []
    todo = list(nodes)
    while todo:
        first = next((i for i, node in enumerate(todo) if alike(node) is not None), len(todo))
        found += [(node,) for node in todo[:first]]
        if first == len(todo):
            break
        before, region, after = _first_region(todo[first:], alike, wholes, pieces)
        found += [(node,) for node in before]
        found.append(tuple(region))
        todo = after
    return found


def _first_region(
    nodes: Sequence[Node], alike: RegionKey, wholes: Wholes, pieces: Callable[[Node], set[Value]]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Return the region beginning with the first node, as (nodes before the region, region, nodes after the region)."""
    region = [nodes[0]]
    kind = alike(nodes[0])
    made, rows = set(nodes[0].defs), pieces(nodes[0])
    late: set[Value] = set()
    states: list[tuple[Node, bool]] = []
    for node in nodes[1:]:
        read = set(required_values(node))
        joins = alike(node) == kind and not read & late and not wholes(node) & made and not (read & made) - rows
        if joins:
            region.append(node)
            made.update(node.defs)
            rows |= pieces(node)
            continue
        delayed = bool(read & (late | made))
        if delayed:
            late.update(node.defs)
        states.append((node, delayed))
    position = {id(node): i for i, node in enumerate(nodes)}
    stands = position[id(region[-1])]
    before = [node for node, delayed in states if not delayed and position[id(node)] < stands]
    kept = set(map(id, (*before, *region)))
    return before, region, [node for node in nodes if id(node) not in kept]

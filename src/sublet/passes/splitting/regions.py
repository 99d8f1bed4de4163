"""Which nodes that are cut run piece by piece together, and in which order all run.

    a = conv(x); b = relu(a); c = pool(b)      ->      a1, b1, c1, a2, b2, c2, ...

So `a` and `b` are never there as a whole. A region has nodes cut alike, none of which needs a whole that another one
makes; it stands where its last node stood, and what needs its wholes comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.ir.graph import Node, Value
from sublet.ir.walk import needs

Region = tuple[Node, ...]
"""Nodes that run piece by piece, or one that runs as it is."""

Alike = Callable[[Node], object]
"""What nodes of one region have in common; None for a node that is not cut."""

Wholes = Callable[[Node], set[Value]]
"""The operands that a node which is cut needs whole, where a node before it in its region makes their pieces."""


def regions(nodes: Sequence[Node], alike: Alike, wholes: Wholes, pieces: Callable[[Node], set[Value]]) -> list[Region]:
    """All nodes in a new order. `pieces` are the results of a node that is cut whose pieces are rows of it."""
    found: list[Region] = []
    todo = list(nodes)
    while todo:
        first = next((i for i, node in enumerate(todo) if alike(node) is not None), len(todo))
        found += [(node,) for node in todo[:first]]
        if first == len(todo):
            break
        before, region, after = _one(todo[first:], alike, wholes, pieces)
        found += [(node,) for node in before]
        found.append(tuple(region))
        todo = after
    return found


def _one(
    nodes: Sequence[Node], alike: Alike, wholes: Wholes, pieces: Callable[[Node], set[Value]]
) -> tuple[list[Node], list[Node], list[Node]]:
    """The region that begins with the first node: what runs before it, it, and what runs after it."""
    region = [nodes[0]]
    kind = alike(nodes[0])
    made, rows = set(nodes[0].defs), pieces(nodes[0])
    late: set[Value] = set()
    states: list[tuple[Node, bool]] = []
    for node in nodes[1:]:
        read = set(needs(node))
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

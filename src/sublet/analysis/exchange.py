"""Which updated values exchange their memory, so that their updates move no byte: see `plan.exchange`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import lcm

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import makers
from sublet.ops import lookup
from sublet.plan.exchange import Cycle

MOST_TURNS = 6
"""After at most so many runs all memory has its first names again: a program is bound for each run until then."""


def cycles(graph: Graph, bound: Collection[Value]) -> tuple[Cycle, ...]:
    """The exchanges that spare copies: an updated value becomes what another of the `bound` ones held.

    Where the last of a row of such values becomes something else, that is made in the memory of the first.
    """
    kept: list[Cycle] = []
    turns = 1
    for cycle in sorted(_cycles(_becomes(graph, bound)), key=lambda cycle: -len(cycle) * cycle[0].nbytes):
        if lcm(turns, len(cycle)) <= MOST_TURNS:
            turns = lcm(turns, len(cycle))
            kept.append(tuple(value.name for value in cycle))
    return tuple(kept)


def _becomes(graph: Graph, bound: Collection[Value]) -> Mapping[Value, Value]:
    """Of updated values which other one's content each takes over, no content taken twice."""
    updated = set(graph.updated)
    made = {value: graph.nodes[i] for value, i in makers(graph.nodes).items()}
    whole = {target: _origin(source, updated, made) for target, source in graph.updates if target in bound}
    staying = {target for target, origin in whole.items() if target == origin}
    found: dict[Value, Value] = {}
    taken = set(staying)
    for target, origin in whole.items():
        if target not in staying and origin in whole and origin not in taken and target.spec == origin.spec:
            found[target] = origin
            taken.add(origin)
    return found


def _origin(value: Value, updated: Collection[Value], made: Mapping[Value, Node]) -> Value:
    """The value of which another is the same bytes: an updated one, or one that is made."""
    while value not in updated and value in made:
        node = made[value]
        shares = () if node.subgraphs else lookup(node.op).views(node)
        bases = (node.inputs[share.input] for share in shares if node.outputs[share.output] == value)
        base = next((base for base in bases if base is not None and base.nbytes == value.nbytes), None)
        if base is None:
            break
        value = base
    return value


def _cycles(becomes: Mapping[Value, Value]) -> Iterator[list[Value]]:
    """The cycles, and the rows closed to cycles."""
    taken, seen = set(becomes.values()), set[Value]()
    for first in (*(value for value in becomes if value not in taken), *becomes):
        cycle: list[Value] = []
        value: Value | None = first
        while value is not None and value not in seen:
            seen.add(value)
            cycle.append(value)
            value = becomes.get(value)
        if cycle and cycle[0].nbytes:
            yield cycle

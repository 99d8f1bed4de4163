"""Storage swap: the choice of updated values with storages swapped after a run, instead of copies by the updates.

See `plan.storage_swap` for the swap itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import lcm

from sublet.ir.dataflow import producer_positions
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.plan.storage_swap import Cycle

MAX_PERIOD = 6
"""Runs after which all storages have their first names again. A program is bound for each run of this period."""


def find_swap_cycles(graph: Graph, bound: Collection[Value]) -> tuple[Cycle, ...]:
    """Return the cycles of updated values to swap: after a run, each value holds the former content of the next value.

    Only values in `bound` are swapped. A chain of values is closed to a cycle: the last value receives a new content,
    computed in the memory of the first. The function takes the largest cycles first (number of values times the bytes
    of a value), while all storages return to their first names within MAX_PERIOD runs.
    """
    chosen: list[Cycle] = []
    turns = 1
    for cycle in sorted(_close_cycles(_content_sources(graph, bound)), key=lambda cycle: -len(cycle) * cycle[0].nbytes):
        if lcm(turns, len(cycle)) <= MAX_PERIOD:
            turns = lcm(turns, len(cycle))
            chosen.append(tuple(value.name for value in cycle))
    return tuple(chosen)


def _content_sources(graph: Graph, bound: Collection[Value]) -> Mapping[Value, Value]:
    """Map each updated value to the updated value with the content to take over; no content is taken over twice."""
    updated = set(graph.updated_values)
    definer = {value: graph.nodes[i] for value, i in producer_positions(graph.nodes).items()}
    whole = {target: _view_origin(source, updated, definer) for target, source in graph.updates if target in bound}
    staying = {target for target, origin in whole.items() if target == origin}
    sources: dict[Value, Value] = {}
    taken = set(staying)
    for target, origin in whole.items():
        if target not in staying and origin in whole and origin not in taken and target.spec == origin.spec:
            sources[target] = origin
            taken.add(origin)
    return sources


def _view_origin(value: Value, updated: Collection[Value], producers: Mapping[Value, Node]) -> Value:
    """Return the base of `value` through views of the full size: an updated or a computed value."""
    while value not in updated and value in producers:
        node = producers[value]
        shares = () if node.subgraphs else lookup(node.op).views(node)
        bases = (node.inputs[share.input] for share in shares if node.outputs[share.output] == value)
        base = next((base for base in bases if base is not None and base.nbytes == value.nbytes), None)
        if base is None:
            break
        value = base
    return value


def _close_cycles(becomes: Mapping[Value, Value]) -> Iterator[list[Value]]:
    """Yield the cycles of the mapping, and the chains closed to cycles."""
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

"""Declared maxima of trip counts: what a loop stacks is planned although a run alone tells how many rounds it makes.

A stacked output takes the declared number of rows; a run makes as many as it makes and gives them alone. A node
that reads such an output would see rows that nobody made, so only outputs of the whole graph are planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.base.errors import ModelError
from sublet.base.printable import known_names, printable
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.graph import Graph, Value, While
from sublet.ir.walk import reads, renamed

EVERY = ""
"""Stands for every loop."""

Trips = int | Mapping[str, int] | None
"""A maximum for every loop, or one a loop by its name or that of one of its outputs."""


def trips_of(declared: Trips) -> dict[str, int]:
    """A declaration by loop. Raises ModelError for a maximum that is no number of rounds."""
    by_loop = {} if declared is None else {EVERY: declared} if isinstance(declared, int) else dict(declared)
    for name, trips in by_loop.items():
        if type(trips) is not int or trips < 0:
            what = f"of loop {printable(name)!r}" if name else "of every loop"
            raise ModelError(f"the maximum of rounds {what} must be an integer from 0 on, not {trips!r}")
    return by_loop


def with_max_trips(graph: Graph, max_trips: Mapping[str, int]) -> Graph:
    """The graph with those stacked outputs planned that have as many rows as the run makes.

    A loop in a body or arm stacks for that body or arm: it stays as it is. Raises ModelError when a name is
    no loop of the graph, or when an output becomes too large.
    """
    loops = [node for node in graph.nodes if isinstance(node, While)]
    names = {name for loop in loops for name in _names(loop)}
    for name in max_trips:
        if name != EVERY and name not in names:
            known = known_names(loop.name for loop in loops)
            raise ModelError(f"there is no loop {printable(name)!r} outside of branches and bodies; there are {known}")
    readers = _readers(graph)
    changed: dict[Value, Value] = {}
    for loop in loops:
        chosen = [max_trips[name] for name in (*_names(loop), EVERY) if name in max_trips]
        if chosen:
            changed |= _stacked(loop, chosen[0], readers)
    if not changed:
        return graph
    return renamed(graph, changed)


def _names(loop: While) -> tuple[str, ...]:
    return (loop.name, *(value.name for value in loop.defs))


def _readers(graph: Graph) -> dict[Value, str]:
    """For each value a node or sub-graph that reads it, in words."""
    found: dict[Value, str] = {}
    for node in graph.walk():
        for value in reads(node):
            found.setdefault(value, f"node {node.name!r}")
    for target, source in graph.updates:
        found.setdefault(source, f"the update of {printable(target.name)!r}")
    return found


def _stacked(loop: While, trips: int, readers: Mapping[Value, str]) -> dict[Value, Value]:
    """The stacked outputs that change: planned, or left outside with another reason."""
    changed: dict[Value, Value] = {}
    for row, whole, axis in zip(loop.rows, loop.stacked, loop.row_axes, strict=True):
        if whole is None or not isinstance(whole.spec, Unplannable) or not isinstance(row.spec, TensorSpec):
            continue
        if whole in readers:
            reason = f"{whole.spec.reason}; {readers[whole]} reads it, and would see rows that were never made"
            changed[whole] = replace(whole, spec=replace(whole.spec, reason=reason))
        else:
            shape = (*row.spec.shape[:axis], trips, *row.spec.shape[axis:])
            changed[whole] = replace(whole, spec=TensorSpec(row.spec.dtype, shape))
    return changed

"""Declared maximum trip counts: plan the stacked outputs of loops with a data-dependent trip count.

A planned stacked output has the declared number of rows. A run writes one row per iteration, and returns only the rows
written. A node reading a stacked output would see unwritten rows, so only stacked outputs of the whole graph without
any reader are planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.base.errors import ModelError
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.dataflow import reads, rename_values
from sublet.ir.graph import Graph, Value, While
from sublet.ir.model import Model

EVERY_LOOP = ""
"""The key of a maximum for every loop."""

Trips = int | Mapping[str, int] | None
"""A maximum trip count for every loop, or for single loops by the name of the loop or of a loop output."""


def max_trips_by_loop(declared: Trips) -> dict[str, int]:
    """Return the maximum trip count by loop name; the key `EVERY_LOOP` applies to every loop.

    Raises ModelError for a maximum below 0 or not an integer.
    """
    by_loop = {} if declared is None else {EVERY_LOOP: declared} if isinstance(declared, int) else dict(declared)
    for name, trips in by_loop.items():
        if type(trips) is not int or trips < 0:
            what = f"of loop {printable(name)!r}" if name else "of every loop"
            raise ModelError(f"the maximum trip count {what} must be an integer of at least 0, not {trips!r}")
    return by_loop


def with_max_trips(graph: Graph, max_trips: Mapping[str, int]) -> Graph:
    """Return the graph with the stacked outputs of bounded loops planned at the maximum trip count.

    Loops inside bodies and arms stay unchanged, because their stacked outputs belong to the body or arm. Raises
    ModelError for a name of no top-level loop, and for a stacked output too large to plan.
    """
    loops = [node for node in graph.nodes if isinstance(node, While)]
    names = {name for loop in loops for name in _loop_names(loop)}
    for name in max_trips:
        if name != EVERY_LOOP and name not in names:
            known = known_names(loop.name for loop in loops)
            raise ModelError(f"there is no loop {printable(name)!r} outside of branches and bodies; there are {known}")
    readers = _reader_descriptions(graph)
    changed: dict[Value, Value] = {}
    for loop in loops:
        chosen = [max_trips[name] for name in (*_loop_names(loop), EVERY_LOOP) if name in max_trips]
        if chosen:
            changed |= _plannable_stacked_outputs(loop, chosen[0], readers)
    if not changed:
        return graph
    return rename_values(graph, changed)


def bound_trip_counts(model: Model, max_trips: Trips) -> Model:
    """Return the model with declared maximum trip counts.

    Raises ModelError for a maximum below 0 or not an integer, for an unknown loop, and for a stacked output too large
    to plan.
    """
    by_loop = max_trips_by_loop(max_trips)
    return replace(model, graph=with_max_trips(model.graph, by_loop), max_trips=by_loop) if by_loop else model


def _loop_names(loop: While) -> tuple[str, ...]:
    """Return the names a caller may use for the loop: the loop's name and the names of the loop outputs."""
    return (loop.name, *(value.name for value in loop.defs))


def _reader_descriptions(graph: Graph) -> dict[Value, str]:
    """Return a description of the first reader of every value read by a node, a sub-graph or an update."""
    readers: dict[Value, str] = {}
    for node in graph.walk():
        for value in reads(node):
            readers.setdefault(value, f"node {node.name!r}")
    for target, source in graph.updates:
        readers.setdefault(source, f"the update of {printable(target.name)!r}")
    return readers


def _plannable_stacked_outputs(loop: While, trips: int, readers: Mapping[Value, str]) -> dict[Value, Value]:
    """Return replacements for the stacked outputs of one loop.

    An output without readers becomes plannable with `trips` rows. An output with a reader stays unplannable, with a
    reason naming the reader.
    """
    changed: dict[Value, Value] = {}
    for row, whole, axis in zip(loop.rows, loop.stacked_outputs, loop.row_axes, strict=True):
        if whole is None or not isinstance(whole.spec, Unplannable) or not isinstance(row.spec, TensorSpec):
            continue
        if whole in readers:
            reason = f"{whole.spec.reason}; {readers[whole]} reads the output, and would see unwritten rows"
            changed[whole] = replace(whole, spec=replace(whole.spec, reason=reason))
        else:
            shape = (*row.spec.shape[:axis], trips, *row.spec.shape[axis:])
            changed[whole] = replace(whole, spec=TensorSpec(row.spec.dtype, shape))
    return changed

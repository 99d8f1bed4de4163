"""Storage swaps: `update %w = %v, %v = %w` moves no byte if both weights have bound storage.

Double buffering of updated weights: a bound storage need not hold the same value in every run. In a *cycle* (w, v, u)
of values, after a run w gets the storage of v, v the storage of u, u the storage of w. An update then writes to the
next storage of its target: the planner and the executor use the updates of `graph_with_swapped_updates`, and after the
run the storages exchange names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.ir.graph import Graph

Cycle = tuple[str, ...]
"""Names of updated values. After a run each value gets the storage of the next value, the last that of the first."""


def next_storages(cycles: Sequence[Cycle]) -> dict[str, str]:
    """Return, for each value in the cycles, the value with the storage it gets after a run."""
    return {name: other for cycle in cycles for name, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True)}


def graph_with_swapped_updates(graph: Graph, cycles: Sequence[Cycle]) -> Graph:
    """Return the graph with each update redirected to the value with the next storage of the target."""
    gets = next_storages(cycles)
    sources = {gets.get(target.name, target.name): source for target, source in graph.updates}
    return replace(graph, updates=tuple((value, sources[value.name]) for value in graph.updated_values))

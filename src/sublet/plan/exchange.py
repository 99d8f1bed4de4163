"""Updates that exchange memory: `update %w = %v, %v = %w` moves no byte where both weights lie in memory of their own.

Such memory need not hold the same value in every run. In a *cycle* (w, v, u) of values, w gets after a run the memory
that v had, v that of u, u that of w. An update then goes to the memory that its target will have: the program is
planned and run with the updates of `placed`, and when it has ended the storages take each other's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.ir.graph import Graph

Cycle = tuple[str, ...]
"""Names of updated values. Each gets after a run the memory that the next had, the last that of the first."""


def followers(found: Sequence[Cycle]) -> dict[str, str]:
    """For each value of the cycles the one whose memory it gets."""
    return {name: other for cycle in found for name, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True)}


def placed(graph: Graph, found: Sequence[Cycle]) -> Graph:
    """The graph with each update going to the value whose memory its target gets."""
    gets = followers(found)
    sources = {gets.get(target.name, target.name): source for target, source in graph.updates}
    return replace(graph, updates=tuple((value, sources[value.name]) for value in graph.updated))

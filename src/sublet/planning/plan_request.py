"""The request for one plan, received by every stage of planning: a graph in one order, with options and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sublet.analysis.options import Options
from sublet.ir.graph import Graph, Value
from sublet.plan.schedule import Schedule

Progress = Callable[[str, int], None]
"""A function called with each packing strategy tried, and the bytes of its packing."""


@dataclass(frozen=True)
class PlanRequest:
    """A graph to plan in one order.

    smallest_arena  the arena of the best plan in another order, in bytes: a larger arena need not be improved
    fixed_offsets   offsets of values, in bytes; the planner uses the offsets only if they lower the arena
    """

    graph: Graph
    schedule: Schedule
    options: Options
    progress: Progress | None = None
    smallest_arena: int | None = None
    fixed_offsets: Mapping[Value, int] = field(default_factory=dict)

"""Whether another order would need less: planned, never guessed, and not at all where that could take long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.ir.model import Model
from sublet.ir.recipe import GIVEN, LESS
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule
from sublet.planning.least_order import LeastOrder, least_order
from sublet.planning.pipeline import plan_memory, schedules
from sublet.planning.placing import Progress

MOST_NODES = 4000
"""A larger program is planned in one order."""


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """What came of another order.

    arena_bytes   what it needs; None when none was planned
    words         what happened
    least         what no order goes below, where an order of less memory was asked for
    """

    arena_bytes: int | None
    words: str
    least: LeastOrder | None = None

    @property
    def content(self) -> dict[str, Any]:
        """For programs."""
        least = None if self.least is None else self.least.content
        return {"arena_bytes": self.arena_bytes, "words": self.words, "least": least}


def other_order(model: Model, options: Options, plan: MemoryPlan, progress: Progress | None = None) -> OtherOrder:
    """What the order of `--order less` needs, where the plan is in the model's own."""
    if options.order != GIVEN:
        least = least_order(model, options, plan)
        own = "No order that needs less was found: the order is the model's own."
        words = "The order is one of less memory, not the model's own." if plan.recipe.order == LESS else own
        return OtherOrder(None, f"{words} {least.words}", least)
    if plan.recipe.order == LESS:
        return OtherOrder(None, "The order is one of less memory, not the model's own.")
    reason = _too_dear(model, options)
    if reason:
        return OtherOrder(None, f"Whether another order would need less was not tried: {reason}. Use --order less.")
    orders = schedules(model.graph, replace(options, order=LESS))
    needed = (_needed(model, options, order, progress) for order in orders[1:])
    lowest = min((nbytes for nbytes in needed if nbytes is not None), default=None)
    less = lowest is not None and lowest < plan.arena_bytes
    return OtherOrder(lowest, "Another order needs less." if less else "No order that needs less was found.")


def _needed(model: Model, options: Options, order: Schedule, progress: Progress | None) -> int | None:
    """What an order needs; None where it moves bytes, and that is forbidden."""
    try:
        return plan_memory(model, options, schedule=order, progress=progress).arena_bytes
    except PlanError:
        return None


def _too_dear(model: Model, options: Options) -> str:
    if options.timeout is not None:
        return "there is a time limit"
    if options.regions:
        return "there are several memories"
    count = sum(1 for _ in model.graph.walk())
    return f"{count} nodes are many" if count > MOST_NODES else ""

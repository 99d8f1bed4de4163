"""Order advice: the arena of alternative orders, from real plans, skipped if planning could take long."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from sublet.analysis.options import Options, Progress
from sublet.base.errors import PlanError
from sublet.base.optional_imports import is_installed
from sublet.ir.model import Model
from sublet.ir.recipe import GIVEN, LESS
from sublet.passes.ordering.order_search import search_order
from sublet.passes.sinking import with_late_invariants
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule
from sublet.planning.pipeline import candidate_schedules, plan_memory, values_outside_arena

# Order bound: the lower bound on all orders of a model's nodes, reported beside a plan in an order of less memory.

LOG = logging.getLogger(__name__)

EXACT_HINT = "To optimize order, sharing and offsets together: pip install 'sublet[exact]'"


@dataclass(frozen=True, slots=True)
class OrderBound:
    """A lower bound on all orders of the given nodes, each node run once.

    nbytes       no plan of any order needs fewer bytes; None if unknown
    proof_kind   "cut": a minimum cut at `node`; "search": a refutation of smaller peaks; "start": the inputs alone
    node         the node of the minimum cut
    live_bytes   the peak of live bytes in the order found by the search
    arena_bytes  the arena of the plan
    """

    nbytes: int | None
    proof_kind: str
    node: str
    live_bytes: int
    arena_bytes: int

    @property
    def is_optimal(self) -> bool:
        """True if no order of the nodes can be planned in fewer bytes than the plan."""
        return self.nbytes is not None and self.arena_bytes <= self.nbytes

    @property
    def words(self) -> str:
        """The claim, for people."""
        if self.nbytes is None:
            return "Orders were compared by an estimate: no bound on all orders is proven."
        at = {"cut": f", at node {self.node}", "search": " (by search)"}.get(self.proof_kind, ", for the inputs alone")
        if self.is_optimal:
            return f"The order is optimal: no order of these nodes needs fewer bytes than this arena{at}."
        text = (
            f"No order of these nodes needs fewer than {self.nbytes:,} bytes{at}; this arena has {self.arena_bytes:,}."
        )
        return text if is_installed("ortools") else f"{text} {EXACT_HINT}"

    @property
    def to_json(self) -> dict[str, Any]:
        """The bound as a JSON object."""
        return {
            "lower_bound_bytes": self.nbytes,
            "by": self.proof_kind if self.nbytes is not None else None,
            "node": self.node,
            "live_bytes": self.live_bytes,
            "optimal": self.is_optimal,
            "words": self.words,
        }


def bound_all_orders(model: Model, options: Options, plan: MemoryPlan) -> OrderBound:
    """Return the bound on all orders of a model, with the arena of `plan` for comparison.

    The bound is unknown for bound inputs and outputs, several streams, memory regions, and programs with estimated live
    bytes.
    """
    _, known = search_order(with_late_invariants(model.graph), values_outside_arena(model.graph, options))
    said = known.proven and options.io == "arena" and options.streams == 1 and not options.regions
    by = "search" if known.searched else "cut" if known.node else "start"
    return OrderBound(known.bound if said else None, by, known.node, known.live_bytes, plan.arena_bytes)


MAX_ORDERED_NODES = 4000
"""Nodes of a program. For a larger program, other orders are not tried."""


@dataclass(frozen=True, slots=True)
class OrderAdvice:
    """The result of planning alternative orders.

    arena_bytes   the smallest arena of the other orders; None if none was planned
    words         the result, for people
    order_bound   the lower bound on all orders, if an order of less memory was asked for
    """

    arena_bytes: int | None
    words: str
    order_bound: OrderBound | None = None

    @property
    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        least = None if self.order_bound is None else self.order_bound.to_json
        return {"arena_bytes": self.arena_bytes, "words": self.words, "least": least}


def advise_order(model: Model, options: Options, plan: MemoryPlan, progress: Progress | None = None) -> OrderAdvice:
    """Return the arena of the orders behind `--order less`, for a plan in the model's own order.

    If the options already ask for an order of less memory, the result holds the lower bound on all orders instead.
    """
    if options.order != GIVEN:
        least = bound_all_orders(model, options, plan)
        own = "No order that needs less was found: the order is the model's own."
        words = (
            "The order was chosen for less memory, and differs from the model's own."
            if plan.recipe.order == LESS
            else own
        )
        return OrderAdvice(None, f"{words} {least.words}", least)
    if plan.recipe.order == LESS:
        return OrderAdvice(None, "The order was chosen for less memory, and differs from the model's own.")
    reason = _why_not_tried(model, options)
    if reason:
        return OrderAdvice(None, f"Other orders were not tried: {reason}. Use --order less.")
    orders = candidate_schedules(model.graph, replace(options, order=LESS))
    LOG.info("other orders to try: %d", len(orders) - 1)
    needed = (_arena_bytes_in_order(model, options, order, progress) for order in orders[1:])
    lowest = min((nbytes for nbytes in needed if nbytes is not None), default=None)
    less = lowest is not None and lowest < plan.arena_bytes
    return OrderAdvice(lowest, "Another order needs less." if less else "No order that needs less was found.")


def _arena_bytes_in_order(model: Model, options: Options, order: Schedule, progress: Progress | None) -> int | None:
    """Return the arena bytes of a plan in `order`; None if the plan would move bytes although moves are forbidden."""
    try:
        return plan_memory(model, options, schedule=order, progress=progress).arena_bytes
    except PlanError:
        return None


def _why_not_tried(model: Model, options: Options) -> str:
    """Return the reason for not trying other orders, "" for none."""
    if options.timeout is not None:
        return "the plan has a time limit"
    if options.regions:
        return "the plan has several memory regions"
    count = sum(1 for _ in model.graph.walk())
    return f"the model has {count} nodes, more than {MAX_ORDERED_NODES}" if count > MAX_ORDERED_NODES else ""

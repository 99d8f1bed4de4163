"""Order bound: the lower bound on all orders of a model's nodes, reported beside a plan in an order of less memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sublet.analysis.options import Options
from sublet.base.optional_imports import is_installed
from sublet.ir.model import Model
from sublet.passes.ordering.order_search import search_order
from sublet.passes.sink_invariant import with_late_invariants
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import values_outside_arena

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

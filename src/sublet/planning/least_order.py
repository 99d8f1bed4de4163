"""What no order of a model's nodes can go below, told beside a plan in an order of less memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sublet.analysis.options import Options
from sublet.base.extras import installed
from sublet.ir.model import Model
from sublet.passes.on_demand import on_demand
from sublet.passes.ordering.search import least_live
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import outside

EXACT = "Order, sharing and places are searched at once with: pip install 'sublet[exact]'"


@dataclass(frozen=True, slots=True)
class LeastOrder:
    """A bound on all orders of the nodes as they are, each run once.

    nbytes       no plan of any order needs fewer; None where that is not known
    by           "cut": any order needs so many at `node`; "search": every peak below was refuted; "start": the inputs
    live_bytes   alive at the peak of the order that the search found
    arena_bytes  of the plan
    """

    nbytes: int | None
    by: str
    node: str
    live_bytes: int
    arena_bytes: int

    @property
    def optimal(self) -> bool:
        """Whether no order of the nodes can be planned in fewer bytes than this plan."""
        return self.nbytes is not None and self.arena_bytes <= self.nbytes

    @property
    def words(self) -> str:
        """The claim, for people."""
        if self.nbytes is None:
            return "Orders are compared by an estimate: nothing is proven of all of them."
        at = {"cut": f", at node {self.node}", "search": " (by search)"}.get(self.by, ", for the inputs alone")
        if self.optimal:
            return f"The order is optimal: no order of these nodes needs fewer bytes than this arena{at}."
        told = (
            f"No order of these nodes needs fewer than {self.nbytes:,} bytes{at}; this arena has {self.arena_bytes:,}."
        )
        return told if installed("ortools") else f"{told} {EXACT}"

    @property
    def content(self) -> dict[str, Any]:
        """For programs."""
        return {
            "lower_bound_bytes": self.nbytes,
            "by": self.by if self.nbytes is not None else None,
            "node": self.node,
            "live_bytes": self.live_bytes,
            "optimal": self.optimal,
            "words": self.words,
        }


def least_order(model: Model, options: Options, plan: MemoryPlan) -> LeastOrder:
    """The bound on all orders of a model, beside a plan of one."""
    _, known = least_live(on_demand(model.graph), outside(model.graph, options))
    said = known.proven and options.io == "arena" and options.streams == 1 and not options.regions
    by = "search" if known.searched else "cut" if known.node else "start"
    return LeastOrder(known.bound if said else None, by, known.node, known.live_bytes, plan.arena_bytes)

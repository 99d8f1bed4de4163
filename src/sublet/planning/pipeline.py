"""The table of contents: from a graph to a proven memory plan, one stage after another.

verify -> schedule -> flow -> liveness -> share -> interference -> pack -> assemble -> check

When the checker refuses a plan that points, the same is done again with fewer pointers.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from sublet.analysis.exchange import cycles, placed
from sublet.analysis.flow import Flow, flow
from sublet.analysis.interference import interference
from sublet.analysis.liveness import LiveRanges, liveness
from sublet.analysis.settle import Settled, laid_out, settle
from sublet.analysis.sharing import SharedBuffer, share
from sublet.analysis.streams import streamed
from sublet.analysis.windows import SMALLEST, obstacle
from sublet.checker import require_valid
from sublet.errors import PlanViolation, ProblemError
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model, Written, as_model
from sublet.ir.recipe import GIVEN, LESS, OWN
from sublet.ops.verify import verify
from sublet.packing import Problem, pack, place_in_regions
from sublet.packing import Region as MemoryRegion
from sublet.packing.problem import MAX_ALIGNMENT
from sublet.packing.search import SEARCH
from sublet.passes.on_demand import on_demand
from sublet.passes.order import ordered
from sublet.plan import MemoryPlan, Storage
from sublet.plan.schedule import Schedule, serial
from sublet.planning.assemble import (
    Packed,
    always_live,
    assemble,
    bound_values,
    homes_of,
    in_one_arena,
    in_several_arenas,
    storages_of,
)
from sublet.planning.copied import copied_moves, forbid
from sublet.planning.unfollowed import MOST_NAMED, NOT_FOLLOWED, unfollowed

Where = Literal["arena", "bound"]
Order = Literal["given", "less"]
Progress = Callable[[str, int], None]


CHOICES = {"io": ("arena", "bound"), "weights": ("arena", "bound"), "order": (GIVEN, LESS)}


@dataclass(frozen=True, slots=True)
class Options:
    """How to plan.

    strategy   a name of `sublet.STRATEGIES`, or "auto" for the best of them
    alignment  the offset of every tensor is a multiple of this many bytes, from 1 on. Below the size of the elements
               some kernels compute in memory of their own and copy
    io         whether inputs and outputs lie in the arena, or are bound to memory of the caller
    weights    the same for weights
    streams    how many streams may run at the same time
    timeout    seconds after which "auto" takes the best packing so far; None for no limit
    regions    memory regions to spread the arena over, one arena in each; none for one arena without a limit
    share      whether views, in-place outputs and carries may be the same bytes; with strategy "no_reuse"
               and share=False every tensor has bytes of its own, for debugging
    forbid_copies   refuse a plan in which loops, branches or updates move bytes
    order      "given": the order of the graph, with what depends on no input computed on demand; "less": another one
               where that gives a smaller arena
    in_place_from   slices and rows of loops of at least so many bytes are read and written where they lie in the
                    whole; None for where that costs less than a copy, or for 0 where copies are forbidden

    Raises ProblemError for an alignment or a number of streams that makes no sense.
    """

    strategy: str = "auto"
    alignment: int = 64
    io: Where = "arena"
    weights: Where = "bound"
    streams: int = 1
    timeout: float | None = None
    share: bool = True
    regions: tuple[MemoryRegion, ...] = ()
    forbid_copies: bool = False
    in_place_from: int | None = None
    order: Order = "given"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ProblemError(f"{name} {getattr(self, name)!r} must be one of {', '.join(allowed)}")
        for name in ("alignment", "streams"):
            if type(getattr(self, name)) is not int:
                raise ProblemError(f"{name} {getattr(self, name)!r} must be an integer")
        if not 1 <= self.alignment <= MAX_ALIGNMENT:
            raise ProblemError(f"alignment {self.alignment} must be between 1 and 2^32")
        if self.streams < 1:
            raise ProblemError(f"there must be at least one stream, not {self.streams}")

    @property
    def smallest(self) -> int:
        """Bytes from which on a slice or row lies in its whole."""
        if self.in_place_from is not None:
            return self.in_place_from
        return 0 if self.forbid_copies else SMALLEST


def plan_memory(
    network: Graph | Model | Written,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    dims: Mapping[str, int] | None = None,
    max_trips: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> MemoryPlan:
    """The memory plan of a graph or model, proven by the checker.

    `schedule` overrides the order of the graph; `dims` and `max_trips` are what a graph was read with, to be
    recorded, as a model's own are; `progress` is told each strategy tried and the bytes it needs.
    Raises GraphError for an illegal graph, ProblemError for an unknown strategy, CapacityError when the
    memory regions are too small, PlanError when control flow would move bytes and that is forbidden, and
    PlanViolation if the checker refuses even the plan without pointers, which would be a mistake of Sublet's.
    """
    model = as_model(network)
    options = options or Options()
    verify(model.graph)
    with _uncollected():
        plans = [
            _planned(model.graph, order, options, progress)
            for order in ((schedule,) if schedule is not None else schedules(model.graph, options))
        ]
    plan = min(plans, key=lambda plan: plan.arena_bytes)
    order = OWN if schedule is not None else GIVEN if plan is plans[0] else LESS
    return replace(
        plan,
        dims=tuple((model.dims if dims is None else dims).items()),
        max_trips=tuple((model.max_trips if max_trips is None else max_trips).items()),
        recipe=replace(model.recipe, order=order),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: planning makes millions of records and hardly a cycle, and would wait for it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def schedules(graph: Graph, options: Options) -> tuple[Schedule, ...]:
    """The orders that are planned: the graph's own, and another that may need less where that is asked for."""
    own = on_demand(graph)
    orders = [own]
    if options.order == LESS:
        orders.append(on_demand(ordered(own)))
    return tuple(
        serial(each) if options.streams == 1 else streamed(each, options.streams)
        for each in orders[: 1 + (orders[-1] != own)]
    )


def _planned(graph: Graph, schedule: Schedule, options: Options, progress: Progress | None) -> MemoryPlan:
    """The plan of a graph in one order. What the checker cannot follow where it is pointed at is copied."""
    copied: frozenset[Value] = frozenset()
    named, begin, left = 0, time.monotonic(), options
    while True:
        try:
            return _proven(graph, schedule, left, progress, copied)
        except PlanViolation as refused:
            more = unfollowed(graph, refused.findings, copied, by_name=named < MOST_NAMED)
            if more == copied:
                raise
            copied, named = more, named + 1
            if options.timeout is not None:  # what was spent does not count anew
                left = replace(options, timeout=max(0.0, begin + options.timeout - time.monotonic()))


def _proven(
    graph: Graph, schedule: Schedule, options: Options, progress: Progress | None, copied: frozenset[Value]
) -> MemoryPlan:
    """The plan of a graph in one order, in which the `copied` values are no pointers."""
    align = options.alignment
    bound = bound_values(graph, io_bound=options.io == "bound", weights_bound=options.weights == "bound")
    storages = storages_of(bound)
    exchanged = cycles(graph, storages) if options.share else ()
    settled = _settled(placed(graph, exchanged), schedule, storages, options, copied)
    moves = copied_moves(graph, settled, storages, align, options.smallest, unrolled=options.share, exchanged=exchanged)
    if options.forbid_copies:
        forbid(moves)
    planned = tuple(buffer for buffer in settled.buffers if buffer.packed)
    problem = interference(planned, settled.flow, alignment=align, name=graph.name)
    packed = _packed(problem, options, progress)
    plan = assemble(
        graph, schedule, settled, storages, packed, alignment=align, moves=moves, bound=bound, exchanged=exchanged
    )
    judged = require_valid(graph, schedule, plan).bound
    if judged.why and not (plan.bound == SEARCH and judged.followed):
        return replace(plan, lower_bound_bytes=judged.proven, bound="peak", proof=judged.proof)
    return plan


def _settled(
    graph: Graph, schedule: Schedule, storages: Mapping[Value, Storage], options: Options, copied: frozenset[Value]
) -> Settled:
    """Flow, lives and buffers; without sharing every value has bytes of its own."""
    homes = homes_of(graph, storages)

    def live(timeline: Flow) -> LiveRanges:
        return always_live(liveness(timeline), graph.constants, len(timeline.points))

    def shared(timeline: Flow, ranges: LiveRanges) -> tuple[SharedBuffer, ...]:
        return share(
            graph,
            timeline,
            ranges,
            alignment=options.alignment,
            homes=homes,
            merging=options.share,
            smallest=options.smallest,
        )

    def lodges(row: Value, whole: Value, axis: int) -> bool:
        return not obstacle(row, whole, axis, options.alignment, options.smallest)

    if not options.share:
        return laid_out(flow(graph, schedule), live, shared)
    refused = dict.fromkeys(copied, NOT_FOLLOWED)
    return settle(graph, schedule, live, shared, fixed=frozenset(homes), lodges=lodges, refused=refused)


def _packed(problem: Problem, options: Options, progress: Progress | None) -> Packed:
    """The buffers in one arena, or in one a memory region."""
    if not options.regions:
        return in_one_arena(pack(problem, options.strategy, timeout=options.timeout, progress=progress))
    placed = place_in_regions(problem, options.regions, options.strategy, options.timeout, progress)
    return in_several_arenas(problem, placed)

"""The table of contents: from a graph to a proven memory plan, one stage after another.

verify -> schedule -> (flow -> liveness -> share) -> interference -> shapes -> pack -> assemble -> check

The stages in brackets are done again with more pointers, while that spares copies; interference to pack once more
(`placing`) where shapes may need less than blocks; and all of them with fewer pointers when the checker cannot follow
where a plan points.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from sublet.analysis.copied import copied_moves, forbid
from sublet.analysis.layouts import Layouts
from sublet.analysis.options import Options
from sublet.analysis.streams import streamed
from sublet.base.errors import CapacityError, PlanError, PlanViolation
from sublet.base.extras import require
from sublet.checker import require_valid
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model, Written, as_model
from sublet.ir.recipe import GIVEN, LEAST, LESS, OWN
from sublet.ops.verify import verify
from sublet.packing.auto import AUTO
from sublet.packing.search import SEARCH
from sublet.passes.on_demand import on_demand
from sublet.passes.order import ordered
from sublet.passes.ordering.search import orders_of_less
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule, is_serial, serial
from sublet.planning.assemble import assemble
from sublet.planning.jointly import Joint, jointly
from sublet.planning.placing import Progress, place
from sublet.planning.unfollowed import MOST_NAMED, unfollowed


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
    memory regions are too small, PlanError when control flow would move bytes and that is forbidden (either one
    in every order that is planned), and PlanViolation if the checker refuses even the plan without pointers of
    any order, which would be a mistake of Sublet's.
    """
    model = as_model(network)
    options = options or Options()
    verify(model.graph)
    with _uncollected():
        orders = (schedule,) if schedule is not None else schedules(model.graph, options)
        plan, number = _of_least(model.graph, orders, options, progress)
    order = OWN if schedule is not None else LESS if number else GIVEN
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
    """The orders that are planned: the graph's own, and others that may need less where that is asked for.

    The others are the best greedy one, and what searches make of it: which of them packs best is seen when planned.
    """
    own = on_demand(graph)
    orders = [own]
    if options.order != GIVEN:
        for other in (on_demand(ordered(own)), *orders_of_less(own, outside(graph, options))):
            orders += [other] if other not in orders else []
    return tuple(serial(each) if options.streams == 1 else streamed(each, options.streams) for each in orders)


def outside(graph: Graph, options: Options) -> frozenset[Value]:
    """The values that lie in memory of the caller."""
    ends = (*graph.inputs, *graph.outputs) if options.io == "bound" else ()
    return frozenset((*ends, *(graph.weights if options.weights == "bound" else ())))


def _of_least(
    graph: Graph, orders: Sequence[Schedule], options: Options, progress: Progress | None
) -> tuple[MemoryPlan, int]:
    """The plan that needs least of those in these orders, and which order that is.

    One order may fit the memory regions, or move nothing, where another does not: that one is passed over. What the
    checker refuses is a mistake in whichever order, and is told. The graph's own order, the first, is planned last: it
    is taken where it needs no more than the others, and not searched for where its bound is above what they need.
    """
    plans: dict[int, MemoryPlan] = {}
    failed: dict[int, CapacityError | PlanError] = {}
    for number in (*range(1, len(orders)), 0):
        least = min((plan.arena_bytes for plan in plans.values()), default=None)
        try:
            plans[number] = _planned(graph, orders[number], options, progress, least)
        except (CapacityError, PlanError) as error:
            failed[number] = error
    if not plans:
        raise failed[0]
    best = min(sorted(plans), key=lambda number: plans[number].arena_bytes)
    if options.order == LEAST:
        require("ortools", "exact")
        try:
            joint = _jointly(graph, plans[best], options)
        except KeyboardInterrupt:
            return replace(plans[best], stopped="interrupt"), best
        if joint is not None:
            plan = _planned(graph, serial(joint.graph), options, progress, plans[best].arena_bytes - 1, joint.offsets)
            if plan.arena_bytes < plans[best].arena_bytes:
                return plan, len(orders)
    return plans[best], best


def _jointly(graph: Graph, plan: MemoryPlan, options: Options) -> Joint | None:
    """Another order, and where values are to lie in it, if that may need less than a plan in one stream and arena."""
    asked = options.strategy == AUTO and options.share and not options.regions
    if not asked or not is_serial(plan.schedule) or len(plan.arenas) != 1:
        return None
    nodes = {node.name: node for node in graph.nodes}
    in_order = replace(graph, nodes=tuple(nodes[step.node] for step in plan.schedule.steps))
    return jointly(in_order, plan, outside(graph, options), options.timeout)


def _planned(
    graph: Graph,
    schedule: Schedule,
    options: Options,
    progress: Progress | None,
    least: int | None,
    placed: Mapping[Value, int] = MappingProxyType({}),
) -> MemoryPlan:
    """The plan of a graph in one order. What the checker cannot follow where it is pointed at is copied.

    `least` is what a plan in another order needs: an arena larger than that may be any. Values that are `placed` lie
    there, if that needs less.
    """
    copied: frozenset[Value] = frozenset()
    named, begin, left = 0, time.monotonic(), options
    layouts = Layouts(graph, schedule, options)
    while True:
        try:
            return _proven(graph, schedule, layouts, left, progress, copied, least, placed)
        except PlanViolation as refused:
            more = unfollowed(graph, refused.findings, copied, by_name=named < MOST_NAMED)
            if more == copied:
                raise
            copied, named = more, named + 1
            if options.timeout is not None:  # what was spent does not count anew
                left = replace(options, timeout=max(0.0, begin + options.timeout - time.monotonic()))


def _proven(
    graph: Graph,
    schedule: Schedule,
    layouts: Layouts,
    options: Options,
    progress: Progress | None,
    copied: frozenset[Value],
    least: int | None,
    placed: Mapping[Value, int],
) -> MemoryPlan:
    """The plan of a graph in one order, in which the `copied` values are no pointers."""
    layout = layouts.settled(copied)
    moves = copied_moves(graph, layout, layouts)
    if options.forbid_copies:
        forbid(moves)
    chosen, packed = place(graph, layout, layouts, options, progress, least, placed)
    if chosen is not layout:
        moves = copied_moves(graph, chosen, layouts)
    plan = assemble(graph, schedule, chosen, layouts, packed, moves)
    judged = require_valid(graph, schedule, plan).bound
    if judged.why and not (plan.bound == SEARCH and judged.followed):
        return replace(plan, lower_bound_bytes=judged.proven, bound="peak", proof=judged.proof)
    return plan

"""The pipeline from a graph to a proven memory plan, stage by stage.

verify -> schedule -> (control flow -> live ranges -> sharing) -> interference -> segments -> packing -> assembly ->
check

The stages in brackets run again with more renamed values, as long as renaming saves copies. Interference to packing run
again (`place_buffers`) if segmented buffers may need less than rectangles. All stages run again with fewer renamed
values if the checker cannot follow a binding.
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
    """Return the memory plan of a graph or model, proven by the checker.

    `schedule` replaces the order of the graph. `dims` and `max_trips` are the bindings the graph was read with,
    recorded in the plan; by default those of the model. `progress` is called with each strategy tried and the bytes it
    needs. Raises GraphError for an illegal graph, ProblemError for an unknown strategy, CapacityError if the memory
    regions are too small, and PlanError if control flow would move bytes although moves are forbidden (the last two
    only if every planned order fails). Raises PlanViolation if the checker rejects even the plan without renaming,
    which is a bug in Sublet.
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
    """Disable garbage collection: planning allocates millions of records and hardly any cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def schedules(graph: Graph, options: Options) -> tuple[Schedule, ...]:
    """Return the schedules to plan: the graph's own order, and other orders if the options ask for less memory.

    The other orders are the best greedy order and the orders found by searches from it. Only plans show the order with
    the smallest arena.
    """
    own = on_demand(graph)
    orders = [own]
    if options.order != GIVEN:
        for other in (on_demand(ordered(own)), *orders_of_less(own, outside(graph, options))):
            orders += [other] if other not in orders else []
    return tuple(serial(each) if options.streams == 1 else streamed(each, options.streams) for each in orders)


def outside(graph: Graph, options: Options) -> frozenset[Value]:
    """Return the values in memory of the caller."""
    ends = (*graph.inputs, *graph.outputs) if options.io == "bound" else ()
    return frozenset((*ends, *(graph.weights if options.weights == "bound" else ())))


def _of_least(
    graph: Graph, orders: Sequence[Schedule], options: Options, progress: Progress | None
) -> tuple[MemoryPlan, int]:
    """Return the plan with the smallest arena over all orders, and the number of its order.

    An order may exceed the memory regions, or move bytes although moves are forbidden; such orders are skipped, and the
    error is raised only if every order fails. A plan rejected by the checker is a bug whatever the order, and the error
    propagates. The graph's own order, the first, is planned last: it wins ties, and the packer need not improve it once
    its bound is above the smallest arena. With order="least", CP-SAT may add one more order, numbered `len(orders)`.
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
    """Return the joint solution of CP-SAT for a plan in a single stream and arena; None if unavailable or no better."""
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
    """Return the plan of a graph in one order; values the checker cannot follow are copied in the next attempt.

    `least` is the arena of the best plan in another order: a larger arena need not be improved. `placed` fixes offsets
    of values, in bytes; the offsets are used only if they lower the arena.
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
            if options.timeout is not None:  # attempts share the time limit
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
    """Return the checked plan of a graph in one order, without renaming any value in `copied`.

    If the checker cannot prove the bound of the plan, the plan claims the bound proven by the checker, unless a search
    over exactly the live ranges that the checker found gave the bound.
    """
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

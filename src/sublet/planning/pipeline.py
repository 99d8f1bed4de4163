"""The pipeline from a graph to a proven memory plan: the table of contents of planning.

    plan_memory      verify the graph; candidate orders; the smallest plan over the orders
    plan_in_order    attempts in one order: a loop-carried value that the checker cannot follow is copied, not renamed
    one attempt      control flow, live ranges, coalescing, renamed loop carries     analysis/alias_planner.py
                     interference (a Problem), segments, packing (a Packing)         planning/place_buffers.py
                     the plan (a MemoryPlan)                                         planning/assemble_plan.py
                     the check: a replay byte by byte, then the proof of the bound   checker/

Renaming runs again as long as renaming saves copies. Packing runs again if segments may need less than rectangles.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sublet.analysis.alias_planner import NOT_FOLLOWED_BY_CHECKER, AliasPlanner
from sublet.analysis.options import Options, PlanRequest, Progress
from sublet.analysis.program_facts import ProgramFacts
from sublet.analysis.residual_copies import find_residual_copies, require_no_copies
from sublet.analysis.streams import assign_streams
from sublet.base.errors import CapacityError, Finding, PlanError, PlanViolation
from sublet.base.formatting import count_with_noun, human, printable
from sublet.base.optional_imports import require
from sublet.checker import CheckResult, require_valid
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Value
from sublet.ir.model import GraphInPython, Model, as_model
from sublet.ir.recipe import GIVEN, LEAST, LESS, OWN
from sublet.ops.verify import verify
from sublet.packing import Buffer, Packing, Problem, lower_bound
from sublet.packing.normalize import normalize
from sublet.packing.portfolio import AUTO
from sublet.packing.problem import MAX_SIZE
from sublet.packing.search import SEARCH, Limits, decide_capacity
from sublet.passes.ordering.few_nodes import promising_orders
from sublet.passes.ordering.order_search import candidate_orders
from sublet.passes.reordering import with_lower_peak
from sublet.passes.sinking import with_late_invariants
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule, is_serial, serial_schedule
from sublet.planning.assemble_plan import assemble_plan
from sublet.planning.joint_cpsat import solve_jointly
from sublet.planning.place_buffers import AT_CUTS_APART, place_buffers

LOG = logging.getLogger(__name__)

MAX_REPLANNING = 21600
"""Promising orders planned for a graph of few nodes, times the square of the nodes: 150 orders of 12 nodes, 600 of 6.

One order of 12 nodes takes about 7 ms to plan, and up to 25 ms where the packing is hard.
"""


def plan_memory(
    network: Graph | Model | GraphInPython,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    dims: Mapping[str, int] | None = None,
    max_trips: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    facts: ProgramFacts | None = None,
) -> MemoryPlan:
    """Return the memory plan of a graph or model, proven by the checker.

    `schedule` replaces the order of the graph. `dims` and `max_trips` are the bindings the graph was read with,
    recorded in the plan; by default those of the model. `progress` is called with each strategy tried and the bytes it
    needs. `facts` replaces the facts of the ops. Raises GraphError for an illegal graph, ProblemError for an unknown
    strategy, CapacityError if the memory regions are too small, and PlanError if control flow would move bytes although
    moves are forbidden (the last two only if every planned order fails). Raises PlanViolation if the checker rejects
    even the plan without renaming, which is a bug in Sublet.
    """
    model = as_model(network)
    options = options or Options()
    verify(model.graph)
    with _heap_frozen():
        if schedule is not None:
            options = replace(options, order=GIVEN)
        orders = (schedule,) if schedule is not None else candidate_schedules(model.graph, options)
        nodes, name = count_with_noun(len(model.graph.nodes), "node"), printable(model.graph.name)
        LOG.info("plan %s: %s, %s to plan", name, nodes, count_with_noun(len(orders), "order"))
        requests = [PlanRequest(model.graph, each, options, progress, facts) for each in orders]
        plan, number = smallest_plan(requests)
    order = OWN if schedule is not None else LESS if number else GIVEN
    return replace(
        plan,
        dims=tuple((model.dims if dims is None else dims).items()),
        max_trips=tuple((model.max_trips if max_trips is None else max_trips).items()),
        recipe=replace(model.recipe, order=order),
    )


@contextmanager
def _heap_frozen() -> Iterator[None]:
    """Keep present objects out of garbage collections while planning.

    Planning allocates millions of records and hardly any cycle. Each collection would walk the whole heap in vain, for
    a quarter of the time. Other threads' garbage is collected as before. A heap frozen by the caller stays frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def candidate_schedules(graph: Graph, options: Options) -> tuple[Schedule, ...]:
    """Return the schedules to plan: the graph's own order, and other orders if the options ask for less memory.

    The other orders are the best greedy order and the orders found by searches from it. Only plans show the order with
    the smallest arena.
    """
    outside, own = values_outside_arena(graph, options), with_late_invariants(graph)
    orders = [own]
    if options.order != GIVEN:
        for other in (with_late_invariants(with_lower_peak(own)), *candidate_orders(own, outside)):
            orders += [other] if other not in orders else []
    return tuple(
        serial_schedule(each) if options.streams == 1 else assign_streams(each, options.streams) for each in orders
    )


def values_outside_arena(graph: Graph, options: Options) -> frozenset[Value]:
    """Return the values in memory of the caller."""
    ends = (*graph.inputs, *graph.outputs) if options.io == "bound" else ()
    return frozenset((*ends, *(graph.weights if options.weights == "bound" else ())))


def smallest_plan(requests: Sequence[PlanRequest]) -> tuple[MemoryPlan, int]:
    """Return the plan with the smallest arena over all orders of one graph, and the number of its order.

    An order may exceed the memory regions, or move bytes although moves are forbidden; such orders are skipped, and the
    error is raised only if every order fails. A plan rejected by the checker is a bug whatever the order, and the error
    propagates. The graph's own order, the first, is planned last: it wins ties, and the packer need not improve it once
    its bound is above the smallest arena. Unless order="given", promising orders of a few nodes follow; with
    order="least", CP-SAT may add one more order. Their number is `len(requests)`.
    """
    plans: dict[int, MemoryPlan] = {}
    failed: dict[int, CapacityError | PlanError] = {}
    for number in (*range(1, len(requests)), 0):
        smallest = min((plan.arena_bytes for plan in plans.values()), default=None)
        try:
            plans[number] = plan_in_order(replace(requests[number], smallest_arena=smallest))
        except (CapacityError, PlanError) as error:
            LOG.info("order %d fails: %s", number, printable(str(error)))
            failed[number] = error
    if not plans:
        raise failed[0]
    number = min(sorted(plans), key=lambda number: plans[number].arena_bytes)
    plan = plans[number]
    if len(plans) > 1:
        LOG.info("order %d of %d needs least: %s", number, len(requests), human(plan.arena_bytes))
    if requests[0].options.order != GIVEN and (less := _plan_promising_orders(requests[0], plan)):
        plan, number = less, len(requests)
    if requests[0].options.order == LEAST:
        require("ortools", "exact")
        try:
            joint = _plan_jointly(requests[0], plan)
        except KeyboardInterrupt:
            return replace(plan, stopped="interrupt"), number
        if joint is not None and joint.arena_bytes < plan.arena_bytes:
            return joint, len(requests)
    return plan, number


def _plan_promising_orders(request: PlanRequest, plan: MemoryPlan) -> MemoryPlan | None:
    """Return the smallest plan over the promising orders of a few nodes; None if no order needs less than `plan`.

    An estimate may exceed the arena of a plan. If the limit of MAX_REPLANNING admits all orders, every order is
    planned. Otherwise only orders with a smaller estimate are planned. The estimates hold for a single stream and
    arena, with inputs and outputs in the arena, and with sharing.
    """
    graph, options, begin = request.graph, request.options, time.monotonic()
    if not options.share:
        return None
    if options.streams > 1 or options.regions or options.at_cuts == AT_CUTS_APART or options.io == "bound":
        return None
    smallest, outside = None, values_outside_arena(graph, options)
    orders = promising_orders(graph, outside, options.alignment, arena := plan.arena_bytes)
    limit = MAX_REPLANNING // max(1, len(graph.nodes) ** 2)
    for estimate, order in orders[:limit]:
        is_late = options.timeout is not None and time.monotonic() - begin > options.timeout
        if is_late or (estimate >= arena and len(orders) > limit):
            break
        schedule = serial_schedule(replace(graph, nodes=tuple(graph.nodes[i] for i in order)))
        other = replace(request, schedule=schedule, smallest_arena=arena)
        aliases = AliasPlanner(graph, schedule, options, request.facts)
        if place_buffers(other, aliases, aliases.best())[1].arena_bytes < arena:
            smallest = plan_in_order(other)
            arena = smallest.arena_bytes
    return smallest


def _plan_jointly(request: PlanRequest, plan: MemoryPlan) -> MemoryPlan | None:
    """Return the plan in the order and with the offsets that CP-SAT finds for a plan; None if there are none.

    CP-SAT decides order, coalescing and offsets together, for a plan in a single stream and arena.
    """
    options = request.options
    is_asked = options.strategy == AUTO and options.share and not options.regions and request.facts is None
    if not is_asked or not is_serial(plan.schedule) or len(plan.arenas) != 1:
        return None
    nodes = {node.name: node for node in request.graph.nodes}
    in_order = replace(request.graph, nodes=tuple(nodes[step.node] for step in plan.schedule.steps))
    outside = values_outside_arena(request.graph, options)
    joint = solve_jointly(in_order, plan, outside, options.timeout)
    if joint is None:
        return None
    schedule, smallest = serial_schedule(joint.graph), plan.arena_bytes - 1
    return plan_in_order(replace(request, schedule=schedule, smallest_arena=smallest, fixed_offsets=joint.offsets))


def plan_in_order(request: PlanRequest) -> MemoryPlan:
    """Return the checked plan of a graph in one order.

    The checker may fail to follow which bytes a renamed loop-carried value is bound to. The next attempt then copies
    the value. All attempts share the time limit. Raises PlanViolation if the checker rejects the plan that renames no
    value.
    """
    graph, timeout = request.graph, request.options.timeout
    copied: frozenset[Value] = frozenset()
    attempts, begin = 0, time.monotonic()
    aliases = AliasPlanner(graph, request.schedule, request.options, request.facts)
    while True:
        try:
            plan = _with_rows(request, aliases, copied, _unchecked_plan(request, aliases, copied))
            proven = with_proven_bound(plan, require_valid(graph, request.schedule, plan))
            LOG.info("check: valid; lower bound %s (%s)", human(proven.lower_bound_bytes), proven.bound)
            return proven
        except PlanViolation as violation:
            more = carries_to_copy(graph, violation.findings, copied, by_name=attempts < MAX_NAMED_ATTEMPTS)
            if more == copied:
                raise
            LOG.info("check refuses the plan: %s", printable(str(violation)))
            LOG.info("next attempt copies %s", ", ".join(sorted(printable(value.name) for value in more - copied)))
            copied, attempts = more, attempts + 1
        if timeout is not None:
            left = max(0.0, begin + timeout - time.monotonic())
            request = replace(request, options=replace(request.options, timeout=left))


def _unchecked_plan(request: PlanRequest, aliases: AliasPlanner, copied: frozenset[Value]) -> MemoryPlan:
    """Return a plan to be checked, without renaming any value in `copied`.

    The stages, in order: control flow, live ranges, coalescing and renamed loop carries (`AliasPlanner.best`);
    interference, segments and packing (`place_buffers`); the plan.
    """
    assignment = aliases.best(copied)
    buffers, ranges = len(assignment.arena_buffers), len(assignment.ranges.slot_ranges)
    LOG.info("live ranges: %d; buffers after coalescing and renaming: %d", ranges, buffers)
    moves = find_residual_copies(request.graph, assignment, aliases)
    if request.options.forbid_copies:
        require_no_copies(moves)
    placed, placement = place_buffers(request, aliases, assignment)
    if placed is not assignment:
        moves = find_residual_copies(request.graph, placed, aliases)
    plan = assemble_plan(request.graph, request.schedule, placed, aliases, placement, moves)
    LOG.info("plan by %s: arena %s, moves left: %d", plan.strategy, human(plan.arena_bytes), len(moves))
    return plan


def _with_rows(request: PlanRequest, aliases: AliasPlanner, copied: frozenset[Value], plan: MemoryPlan) -> MemoryPlan:
    """Return an unchecked plan with values that share bytes row by row, if its arena is at most that of `plan`.

    The first try keeps no copy, the second no copy that the arena has room for, the third only copies that do not
    raise the live bytes. If copies are forbidden, the first try is the plan, with a larger arena too.
    """
    for live_bytes in (MAX_SIZE, plan.arena_bytes, 0):
        in_rows = aliases.with_rows(live_bytes)
        if in_rows is None:
            return plan
        other = _unchecked_plan(request, in_rows, copied)
        if other.arena_bytes <= plan.arena_bytes or request.options.forbid_copies:
            return other if any(place.region.rows > 1 for place in other.placements) else plan
    return plan


def with_proven_bound(plan: MemoryPlan, result: CheckResult) -> MemoryPlan:
    """Return the plan with a lower bound that the checker has proven.

    If the checker cannot prove the bound of the plan, the plan claims the bound proven by the checker, unless a search
    over exactly the live ranges that the checker found gave the bound.
    """
    bound = result.bound
    if bound.unproven_reason and not (plan.bound == SEARCH and bound.has_exact_live_ranges):
        return replace(plan, lower_bound_bytes=bound.proven_bytes, bound="peak", proof=bound.proof)
    return plan


MAX_NAMED_ATTEMPTS = 3
"""Attempts that copy only the renamed values of loops and branches named by findings. The next attempt copies all."""


def carries_to_copy(
    graph: Graph, findings: Sequence[Finding], before: Collection[Value], *, by_name: bool
) -> frozenset[Value]:
    """Return the loop-carried values to copy in the next attempt: the values named by findings, plus all in `before`.

    `before` holds the values already copied. If the findings name no new value, or with `by_name` false, all values
    assigned by loops and branches are returned.
    """
    assigned = {node.name: frozenset(to for to, _ in assignments(node)) for node in graph.walk() if node.subgraphs}
    named_in_findings = {name for finding in findings for name in finding.names}
    named = [
        values
        for name, values in assigned.items()
        if not named_in_findings.isdisjoint({name, *(v.name for v in values)})
    ]
    more = frozenset(before).union(*named)
    return more if by_name and more != frozenset(before) else frozenset().union(*assigned.values())


def is_without_fallback(plan: MemoryPlan) -> bool:
    """True if the checker could follow every binding the planner wanted."""
    return all(move.why != NOT_FOLLOWED_BY_CHECKER for move in plan.moves)


# Repeated proof of a lower bound that a search found: no placement of the same buffers is smaller.
#
# The checker follows proofs by sets of buffers. Smaller arenas that a search refuted can only be refuted by another
# search: `reprove_bound` runs the packing core again, on the buffers with the live ranges found by the checker.

BOUND_FIELD = "lower_bound_bytes"


def reprove_bound(plan: MemoryPlan, checked: CheckResult) -> CheckResult:
    """Return the judgement with the bound proven, false, or unproven for a better reason.

    The judgement is returned unchanged if it has findings or if its bound is settled.
    """
    needed = checked.bound.must_live_buffers
    if checked.findings or not checked.bound.unproven_reason or not needed:
        return checked
    if len(plan.arenas) != 1 or any(step.stream for step in plan.schedule.steps):
        return _with_unproven_bound(checked, "only a bound for one arena and one stream can be proven again")
    strips = [block.segments for block in needed.values() if block.segments]
    if any(len(several) > 1 for several in strips):
        return _with_unproven_bound(checked, "only a bound of buffers needed as a whole can be proven again")
    buffers = [
        Buffer.alive_in(str(number), strip.high - strip.low, strip.live, plan.alignment)
        for number, (strip,) in enumerate(strips)
    ]
    problem = normalize(Problem(tuple(buffers))).problem
    known = Packing(tuple(strip.low for (strip,) in strips), plan.arena_bytes, plan.strategy)
    repeated = decide_capacity(problem, plan.lower_bound_bytes - 1, lower_bound(problem), known, Limits())
    if repeated.packing.arena_bytes < plan.lower_bound_bytes:
        claim = f"is {plan.lower_bound_bytes} bytes, but a packing exists with "
        finding = Finding("false-bound", "the lower bound", claim + f"{repeated.packing.arena_bytes}")
        return replace(checked, findings=(finding,))
    if repeated.bound.bytes >= plan.lower_bound_bytes:
        unproven = {name: why for name, why in checked.unproven.items() if name != BOUND_FIELD}
        return replace(checked, unproven=unproven, bound=replace(checked.bound, unproven_reason=""))
    return _with_unproven_bound(checked, f"the {SEARCH} ended before refuting {plan.lower_bound_bytes - 1} bytes")


def _with_unproven_bound(checked: CheckResult, why: str) -> CheckResult:
    """Return the judgement with an unproven bound and the reason `why`."""
    return replace(
        checked, unproven={**checked.unproven, BOUND_FIELD: why}, bound=replace(checked.bound, unproven_reason=why)
    )

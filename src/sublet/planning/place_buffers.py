"""Placement of shared buffers: as rectangles in one or several arenas, or as segments in one arena if smaller.

A rectangle is needed whole while any member is live. Rectangles are placed first: the problem is simpler, and segments
seldom need less. If fewer bytes are live than the rectangles take, the planner places segments, and then the segments
of buffers with every legal merge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace

from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.interference import SegmentedProblem, build_packing_problem, build_segmented_problem
from sublet.analysis.options import Options, PlanRequest
from sublet.analysis.sharing import BufferAssignment, SharedBuffer
from sublet.base.errors import ProblemError
from sublet.ir.graph import Value
from sublet.ops.op import SUSPEND
from sublet.packing import MemoryRegion, Problem, lower_bound, pack, place_in_dedicated_region
from sublet.packing.portfolio import AUTO
from sublet.packing.problem import MAX_SIZE
from sublet.passes.recompute.rematerialize import offloaded_values
from sublet.plan import ARENA, KEPT
from sublet.planning.assemble_plan import ArenaPlacement, placement_in_one_arena, placement_in_regions

AT_CUTS_APART = "apart"


def place_buffers(
    request: PlanRequest, aliases: AliasPlanner, assignment: BufferAssignment
) -> tuple[BufferAssignment, ArenaPlacement]:
    """Return the buffer assignment, or one with fewer buffers and no more copies, and the placement of its buffers.

    Offloaded values go to the memory region reserved for transfers. Values kept across a suspension point go to a
    separate arena, if the options ask for one.
    """
    options = request.options
    regions, own, away = options.regions, None, set[int]()
    if options.at_cuts == AT_CUTS_APART:
        regions = (MemoryRegion(ARENA, MAX_SIZE), own := MemoryRegion(KEPT, MAX_SIZE))
        away = {i for i, buffer in enumerate(assignment.arena_buffers) if _crosses_suspension(buffer, assignment.flow)}
    elif regions:
        gone = offloaded_values(request.graph)
        away = {i for i, buffer in enumerate(assignment.arena_buffers) if any(m.value in gone for m in buffer.members)}
    else:
        return _place_in_one_arena(request, aliases, assignment)
    problem = _rectangle_problem(request.graph.name, assignment, options)
    packing = place_in_dedicated_region(
        problem, regions, away, options.strategy, options.timeout, request.progress, own
    )
    return assignment, placement_in_regions(_segmented_problem(problem, assignment, options), packing)


def _place_in_one_arena(
    request: PlanRequest, aliases: AliasPlanner, assignment: BufferAssignment
) -> tuple[BufferAssignment, ArenaPlacement]:
    """Return the assignment with the smallest arena, and the placement: as rectangles, or as segments."""
    begin, name, options, progress = time.monotonic(), request.graph.name, request.options, request.progress
    smallest = request.smallest_arena
    problem = _rectangle_problem(name, assignment, options)
    form = _segmented_problem(problem, assignment, options)
    is_single_segment = form.is_single_segment
    report = pack(problem, options.strategy, timeout=options.timeout, progress=progress, useful=smallest)
    placement = placement_in_one_arena(report)
    packed = [(assignment, placement if is_single_segment else _with_segment_bound(placement, form))]
    # Over ranges of dimensions, with the caller's facts, the segments of a buffer would move from point to point.
    if options.strategy != AUTO or not options.share or not assignment.flow.is_serial or request.facts is not None:
        return packed[0]
    for other, pins in _candidate_assignments(assignment, aliases, request.fixed_offsets):
        problem = _rectangle_problem(name, other, options)
        form = _segmented_problem(problem, other, options)
        arena = min(each.arena_bytes for _, each in packed)
        useful = arena if smallest is None else min(arena, smallest + 1)
        is_packed = other is assignment and is_single_segment
        if is_packed or report.stopped or lower_bound(form.problem).bytes >= useful:
            continue
        left = options.timeout and max(0.0, begin + options.timeout - time.monotonic())
        with suppress(ProblemError) if pins else nullcontext():  # contradicting pins: skip the candidate
            pinned = _segmented_problem(problem, other, options, pins)
            report = pack(pinned.problem, timeout=left, progress=progress)
            packed.append(
                (
                    other,
                    _with_segment_bound(placement_in_one_arena(report, pinned), form)
                    if pins
                    else placement_in_one_arena(report, form),
                )
            )
    return min(packed, key=lambda pair: pair[1].arena_bytes)


def _with_segment_bound(packed: ArenaPlacement, form: SegmentedProblem) -> ArenaPlacement:
    """Return a placement with the lower bound of the segments, for rectangles or for segments with pins."""
    return replace(packed, bound=form.bound_of_buffers(lower_bound(form.problem)))


def _candidate_assignments(
    assignment: BufferAssignment, aliases: AliasPlanner, fixed_offsets: Mapping[Value, int]
) -> Iterator[tuple[BufferAssignment, Mapping[Value, int]]]:
    """Yield candidate assignments, with the fixed offsets of values for each.

    The candidates are the given assignment; one with every legal merge; and one with every legal merge that respects
    `fixed_offsets`.
    """
    yield assignment, {}
    for pins in ({}, fixed_offsets) if fixed_offsets else ({},):
        other = aliases.assign_buffers(assignment.flow, assignment.ranges, blocks=False, fixed_offsets=pins)
        if (pins or other.buffers != assignment.buffers) and other.copied_bytes <= assignment.copied_bytes:
            yield replace(assignment, buffers=other.buffers, residual_copies=other.residual_copies), pins


def _rectangle_problem(name: str, assignment: BufferAssignment, options: Options) -> Problem:
    """Return the packing problem of the buffers as rectangles."""
    return build_packing_problem(assignment.arena_buffers, assignment.flow, alignment=options.alignment, name=name)


def _segmented_problem(
    problem: Problem, assignment: BufferAssignment, options: Options, fixed_offsets: Mapping[Value, int] | None = None
) -> SegmentedProblem:
    """Return the problem of the buffers in segments; in several streams each buffer is a single segment.

    In several streams a concurrent access may touch a buffer at any time of its live range.
    """
    return build_segmented_problem(
        problem,
        assignment.arena_buffers,
        assignment.ranges if assignment.flow.is_serial else None,
        options.alignment,
        fixed_offsets,
    )


def _crosses_suspension(buffer: SharedBuffer, flow: ControlFlowGraph) -> bool:
    """True if a buffer is live across a suspension point."""
    cuts = [t for t, point in enumerate(flow.points) if point.node is not None and point.node.op == SUSPEND]
    return any(begin < cut < end for begin, end in buffer.live for cut in cuts)

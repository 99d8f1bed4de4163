"""Placement of shared buffers: as rectangles in one or several arenas, or as segments in one arena if smaller.

A rectangle is needed whole while any member is live. Rectangles are placed first: the problem is simpler, and segments
seldom need less. If fewer bytes are live than the rectangles take, the planner places segments, and then the segments
of buffers with every legal merge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace

from sublet.analysis.flow import Flow
from sublet.analysis.interference import interference
from sublet.analysis.layout import Layout
from sublet.analysis.layouts import Layouts
from sublet.analysis.options import Options
from sublet.analysis.shapes import Shapes, shapes
from sublet.analysis.sharing import SharedBuffer
from sublet.base.errors import ProblemError
from sublet.ir.graph import Graph, Value
from sublet.ops.cuts import CUT
from sublet.packing import Problem, Region, lower_bound, pack, place_apart
from sublet.packing.auto import AUTO
from sublet.packing.problem import MAX_SIZE
from sublet.passes.recompute.offload import offloaded
from sublet.plan import ARENA, KEPT
from sublet.planning.assemble import Packed, in_one_arena, in_several_arenas

Progress = Callable[[str, int], None]

APART = "apart"


def place(
    graph: Graph,
    layout: Layout,
    layouts: Layouts,
    options: Options,
    progress: Progress | None,
    least: int | None,
    placed: Mapping[Value, int],
) -> tuple[Layout, Packed]:
    """Return the buffer assignment, or one with fewer buffers and no more copies, and the placement of its buffers.

    Offloaded values go to the memory region reserved for transfers. Values kept across a suspension point go to a
    separate arena, if the options ask for one. `least` is the arena of the best plan in another order: a larger arena
    need not be improved. `placed` fixes offsets of values in a single arena, in bytes; the offsets are used only if
    they lower the arena.
    """
    regions, own, away = options.regions, None, set[int]()
    if options.at_cuts == APART:
        regions = (Region(ARENA, MAX_SIZE), own := Region(KEPT, MAX_SIZE))
        away = {i for i, buffer in enumerate(layout.packed) if _is_kept(buffer, layout.flow)}
    elif regions:
        gone = offloaded(graph)
        away = {i for i, buffer in enumerate(layout.packed) if any(m.value in gone for m in buffer.members)}
    else:
        return _in_one_arena(graph.name, layout, layouts, options, progress, least, placed)
    problem = _blocks(graph.name, layout, options)
    packing = place_apart(problem, regions, away, options.strategy, options.timeout, progress, own)
    return layout, in_several_arenas(_shapes(problem, layout, options), packing)


def _in_one_arena(
    name: str,
    layout: Layout,
    layouts: Layouts,
    options: Options,
    progress: Progress | None,
    least: int | None,
    placed: Mapping[Value, int],
) -> tuple[Layout, Packed]:
    """Return the assignment with the smallest arena, and the placement: as rectangles, or as segments."""
    begin = time.monotonic()
    problem = _blocks(name, layout, options)
    form = _shapes(problem, layout, options)
    report = pack(problem, options.strategy, timeout=options.timeout, progress=progress, useful=least)
    packed = [(layout, in_one_arena(report) if form.rigid else _bounded(in_one_arena(report), form))]
    if options.strategy != AUTO or not options.share or not layout.flow.serial:
        return packed[0]
    for other, pins in _candidates(layout, layouts, placed):
        problem = _blocks(name, other, options)
        form = _shapes(problem, other, options)
        arena = min(each.arena_bytes for _, each in packed)
        useful = arena if least is None else min(arena, least + 1)
        as_blocks = other is layout and form.rigid
        if as_blocks or report.stopped or lower_bound(form.problem).bytes >= useful:
            continue
        left = options.timeout and max(0.0, begin + options.timeout - time.monotonic())
        with suppress(ProblemError) if pins else nullcontext():  # contradicting pins: skip the candidate
            pinned = _shapes(problem, other, options, pins)
            report = pack(pinned.problem, timeout=left, progress=progress)
            packed.append((other, _bounded(in_one_arena(report, pinned), form) if pins else in_one_arena(report, form)))
    return min(packed, key=lambda pair: pair[1].arena_bytes)


def _bounded(packed: Packed, form: Shapes) -> Packed:
    """Return a placement with the lower bound of the segments, for rectangles or for segments with pins."""
    return replace(packed, bound=form.of_buffers(lower_bound(form.problem)))


def _candidates(
    layout: Layout, layouts: Layouts, placed: Mapping[Value, int]
) -> Iterator[tuple[Layout, Mapping[Value, int]]]:
    """Yield candidate assignments, with the fixed offsets of values for each.

    The candidates are the given assignment; one with every legal merge; and one with every legal merge that respects
    the fixed offsets in `placed`.
    """
    yield layout, {}
    for pins in ({}, placed) if placed else ({},):
        other = layouts.shared(layout.flow, layout.ranges, blocks=False, placed=pins)
        if (pins or other.buffers != layout.buffers) and other.moved <= layout.moved:
            yield replace(layout, buffers=other.buffers, copied=other.copied), pins


def _blocks(name: str, layout: Layout, options: Options) -> Problem:
    """Return the packing problem of the buffers as rectangles."""
    return interference(layout.packed, layout.flow, alignment=options.alignment, name=name)


def _shapes(problem: Problem, layout: Layout, options: Options, placed: Mapping[Value, int] | None = None) -> Shapes:
    """Return the problem of the buffers in segments; in several streams each buffer is a single segment.

    In several streams a concurrent access may touch a buffer at any time of its live range.
    """
    return shapes(problem, layout.packed, layout.ranges if layout.flow.serial else None, options.alignment, placed)


def _is_kept(buffer: SharedBuffer, flow: Flow) -> bool:
    """True if a buffer is live across a suspension point."""
    cuts = [t for t, point in enumerate(flow.points) if point.node is not None and point.node.op == CUT]
    return any(begin < cut < end for begin, end in buffer.live for cut in cuts)

"""Where the buffers of a layout lie: as blocks in one arena or several, or as shapes in one where that needs less.

A block is needed whole as long as any value in it is. Blocks are placed first: theirs is the simpler question, and
mostly no shapes need less. Where fewer bytes live than the blocks take, their shapes are placed, and then those of
buffers that hold whatever may be the same bytes.
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
    """The layout, or one of fewer buffers that copies no more, and where its buffers lie.

    What is offloaded lies in the memory region that only transfers touch, and what is kept at a cut in an arena of its
    own, if that is asked for. `least` is what a plan in another order needs: an arena larger than that may be any.
    Values that are `placed` lie there in one arena, if that needs less.
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
    begin = time.monotonic()
    problem = _blocks(name, layout, options)
    form = _shapes(problem, layout, options)
    found = pack(problem, options.strategy, timeout=options.timeout, progress=progress, useful=least)
    packed = [(layout, in_one_arena(found) if form.rigid else _bounded(in_one_arena(found), form))]
    if options.strategy != AUTO or not options.share or not layout.flow.serial:
        return packed[0]
    for other, pins in _candidates(layout, layouts, placed):
        problem = _blocks(name, other, options)
        form = _shapes(problem, other, options)
        arena = min(each.arena_bytes for _, each in packed)
        useful = arena if least is None else min(arena, least + 1)
        as_blocks = other is layout and form.rigid
        if as_blocks or found.stopped or lower_bound(form.problem).bytes >= useful:
            continue
        left = options.timeout and max(0.0, begin + options.timeout - time.monotonic())
        with suppress(ProblemError) if pins else nullcontext():  # places that contradict each other are of no use
            pinned = _shapes(problem, other, options, pins)
            found = pack(pinned.problem, timeout=left, progress=progress)
            packed.append((other, _bounded(in_one_arena(found, pinned), form) if pins else in_one_arena(found, form)))
    return min(packed, key=lambda pair: pair[1].arena_bytes)


def _bounded(packed: Packed, form: Shapes) -> Packed:
    """Blocks, or shapes of which some are pinned, beside what no packing of the shapes needs less than."""
    return replace(packed, bound=form.of_buffers(lower_bound(form.problem)))


def _candidates(
    layout: Layout, layouts: Layouts, placed: Mapping[Value, int]
) -> Iterator[tuple[Layout, Mapping[Value, int]]]:
    """Layouts whose shapes may need less than the blocks of one, and where values in them are to lie.

    These are itself, one with all that may be the same bytes, and one with what is as it is to be placed.
    """
    yield layout, {}
    for pins in ({}, placed) if placed else ({},):
        other = layouts.shared(layout.flow, layout.ranges, blocks=False, placed=pins)
        if (pins or other.buffers != layout.buffers) and other.moved <= layout.moved:
            yield replace(layout, buffers=other.buffers, copied=other.copied), pins


def _blocks(name: str, layout: Layout, options: Options) -> Problem:
    return interference(layout.packed, layout.flow, alignment=options.alignment, name=name)


def _shapes(problem: Problem, layout: Layout, options: Options, placed: Mapping[Value, int] | None = None) -> Shapes:
    """The shapes of buffers, which are blocks in a program of several streams: others may touch them at any time."""
    return shapes(problem, layout.packed, layout.ranges if layout.flow.serial else None, options.alignment, placed)


def _is_kept(buffer: SharedBuffer, flow: Flow) -> bool:
    """Whether a buffer is there from one piece of a program to the next."""
    cuts = [t for t, point in enumerate(flow.points) if point.node is not None and point.node.op == CUT]
    return any(begin < cut < end for begin, end in buffer.live for cut in cuts)

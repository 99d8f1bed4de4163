"""Packings with companions at distances, made smaller: greedy placement of groups as they are.

The plain form asks for bytes below a companion that nobody needs (see `plain`). Here groups are placed
with exactly the bytes they need, in the order of a packing's offsets, of each that there is; then, again and again,
some that end at the top, or conflict with those, move to another place in the order, and what gets no worse is kept.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sublet.packing._core import Hole
from sublet.packing.conflicts import conflicts_of
from sublet.packing.deadline import is_late
from sublet.packing.native import with_shifts
from sublet.packing.plain import Plain
from sublet.packing.problem import Packing

SETTLED = "settled"
EFFORT = 250_000
"""Placements after which it ends, but for MOST_ROUNDS, and four rounds of each packing on the largest problems."""
MOST_ROUNDS = 2_000


def settled(form: Plain, packings: Sequence[Packing], enough: int, seed: int = 0) -> Packing:
    """The smallest packing of the question found, starting from each of some; the smallest of these if none is smaller.

    Ends at `enough` bytes, when a time limit passes, or when the effort is spent.
    """
    starts = sorted({packing.offsets: packing for packing in packings}.values(), key=lambda each: each.arena_bytes)
    best = starts[0]
    buffers = form.pinned_down.buffers
    if not buffers:
        return best
    core = with_shifts(form.pinned_down, form.shifts)
    conflicts = conflicts_of(form.pinned_down)
    sizes = np.array([buffer.size for buffer in buffers], dtype=np.int64)
    chance = random.Random(seed)
    for start in starts:
        trial = rank = np.argsort(np.argsort(start.offsets, kind="stable"), kind="stable").astype(np.float64)
        current = start.arena_bytes
        tops = np.flatnonzero((np.array(start.offsets) + sizes == current) & (sizes > 0))
        for _ in range(max(4, min(MOST_ROUNDS, EFFORT // len(buffers)) // len(starts))):
            if best.arena_bytes <= enough or is_late():
                return best
            hole = Hole.lowest if chance.random() < 0.75 else Hole.smallest
            offsets = core.greedy_in_order(np.argsort(trial, kind="stable").astype(np.int32), hole)
            ends = (offsets + sizes) * (sizes > 0)
            if ends.max() <= current:
                rank, current = trial, int(ends.max())
                tops = np.flatnonzero(ends == current)
                if current < best.arena_bytes:
                    best = replace(start, offsets=tuple(offsets.tolist()), arena_bytes=current, strategy=SETTLED)
            trial = rank.copy()
            for _ in range(chance.randint(1, 3)):
                mover = int(tops[chance.randrange(len(tops))])
                if chance.random() < 1 / 3:
                    near = np.flatnonzero(conflicts.row(mover))
                    mover = int(near[chance.randrange(len(near))]) if len(near) else mover
                trial[mover] = chance.random() * len(buffers)
    return best

"""Packings with companions at distances, made smaller: greedy placement of groups as they are.

The plain form asks for bytes below a companion that nobody needs (see `plain`). Here groups are placed
with exactly the bytes they need, in the order of a packing's offsets; then, again and again, some that end
at the top, or conflict with those, move ahead in the order, and what gets no worse is kept.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from sublet.packing._core import Hole
from sublet.packing.conflicts import conflicts_of
from sublet.packing.deadline import is_late
from sublet.packing.native import with_shifts
from sublet.packing.plain import Plain
from sublet.packing.problem import Packing

SETTLED = "settled"
EFFORT = 1_000_000
"""Placements after which it ends, but for MOST_ROUNDS, and four rounds on the largest problems."""
MOST_ROUNDS = 2_000


def settled(form: Plain, packing: Packing, enough: int, seed: int = 0) -> Packing:
    """The smallest packing of the question found, starting from one; as it is when no byte is saved.

    Ends at `enough` bytes, when a time limit passes, or when the effort is spent.
    """
    buffers = form.pinned_down.buffers
    if not buffers:
        return packing
    core = with_shifts(form.pinned_down, form.shifts)
    conflicts = conflicts_of(form.pinned_down)
    sizes = np.array([buffer.size for buffer in buffers], dtype=np.int64)
    chance = random.Random(seed)
    rank = np.argsort(np.argsort(packing.offsets, kind="stable"), kind="stable").astype(np.float64)
    best = np.array(packing.offsets, dtype=np.int64)
    smallest = current = packing.arena_bytes
    tops = np.flatnonzero((best + sizes == current) & (sizes > 0))
    trial = rank
    for _ in range(max(4, min(MOST_ROUNDS, EFFORT // len(buffers)))):
        if smallest <= enough or is_late():
            break
        hole = Hole.lowest if chance.random() < 0.75 else Hole.smallest
        offsets = core.greedy_in_order(np.argsort(trial, kind="stable").astype(np.int32), hole)
        ends = (offsets + sizes) * (sizes > 0)
        if ends.max() <= current:
            rank, current = trial, int(ends.max())
            tops = np.flatnonzero(ends == current)
            if current < smallest:
                best, smallest = offsets, current
        trial = rank.copy()
        for _ in range(chance.randint(1, 3)):
            mover = int(tops[chance.randrange(len(tops))])
            if chance.random() < 1 / 3:
                near = np.flatnonzero(conflicts.row(mover))
                mover = int(near[chance.randrange(len(near))]) if len(near) else mover
            trial[mover] *= chance.random()
    return replace(packing, offsets=tuple(best.tolist()), arena_bytes=smallest, strategy=SETTLED)

"""Local search by reinsertion, for packings with companions at distances.

The normal form asks for unneeded bytes below some companions (see `normalize`). The local search places groups
with exactly the bytes needed, starting in the offset order of each given packing. Each step moves one to three
buffers at the top, or conflicting with the top, to a random place in the order, and keeps a result not larger
than before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sublet.packing._core import Hole
from sublet.packing.conflicts import conflicts_of
from sublet.packing.core_bridge import core_with_shifts
from sublet.packing.deadline import is_late
from sublet.packing.normalize import NormalizedProblem
from sublet.packing.problem import Packing

SETTLED = "settled"
EFFORT = 250_000
"""Placements (steps times buffers) in all; at most MOST_ROUNDS steps, at least four per packing on large problems."""
MOST_ROUNDS = 2_000


def improve_by_reinsertion(form: NormalizedProblem, packings: Sequence[Packing], enough: int, seed: int = 0) -> Packing:
    """Return the smallest packing found from each of `packings`; the smallest of `packings` if none is smaller.

    Ends at `enough` bytes, when a time limit passes, or when the effort is spent.
    """
    starts = sorted({packing.offsets: packing for packing in packings}.values(), key=lambda each: each.arena_bytes)
    best = starts[0]
    buffers = form.with_pins.buffers
    if not buffers:
        return best
    core = core_with_shifts(form.with_pins, form.shifts)
    conflicts = conflicts_of(form.with_pins)
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

"""Which buffer at the peak weighs most: where what lives would peak without it, or with half of it at a time.

An estimate, and called so wherever it is told: nothing is planned again, and sharing, order and packing may come out
otherwise. `--advise` plans changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.base.ranges import holds
from sublet.plan.records import MemoryPlan
from sublet.plan.slots import Block, slots

MOST = 64
"""Buffers that are looked at, the largest at the peak."""


@dataclass(frozen=True, slots=True)
class Relief:
    """A buffer that lives at the peak: the most that would live without it, and with half of its bytes."""

    nbytes: int
    values: tuple[str, ...]
    without_bytes: int
    halved_bytes: int


def relief(plan: MemoryPlan) -> tuple[Relief, ...]:
    """The buffers at the peak, those first without which least would live."""
    blocks = list(slots(plan))
    levels = np.zeros(len(plan.points) + 1, dtype=np.int64)
    for block in blocks:
        for strip in block.strips:
            for begin, end in strip.live:
                levels[begin] += strip.nbytes
                levels[end] -= strip.nbytes
    levels = np.cumsum(levels)
    point = plan.peak.point
    at_peak = [(sum(block.needed(point)), block) for block in blocks if holds(block.live, point)]
    largest = sorted(at_peak, key=lambda pair: -pair[0])[:MOST]
    found = [
        Relief(nbytes, _alive(block, point), _peak(levels, block, 1), _peak(levels, block, 2))
        for nbytes, block in largest
    ]
    return tuple(sorted(found, key=lambda one: (one.without_bytes, -one.nbytes)))


def _alive(block: Block, point: int) -> tuple[str, ...]:
    """The values of a buffer that live at a point."""
    alive = (place.value for place in block.members if holds(place.live, point))
    return tuple(dict.fromkeys(alive))


def _peak(levels: np.typing.NDArray[np.int64], block: Block, part: int) -> int:
    """The most that would live if a buffer needed one of so many parts less."""
    left = levels.copy()
    for strip in block.strips:
        for begin, end in strip.live:
            left[begin:end] -= strip.nbytes // part
    return int(left.max())

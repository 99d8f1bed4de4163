"""Contributors to the peak: for each buffer live at the peak, the peak without the buffer, or with half of its bytes.

The figures are estimates, and every output calls them so: the planner does not run again, and coalescing, order and
packing may change. `--advise` plans the changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.base.ranges import holds
from sublet.plan.intervals import PlannedBuffer, planned_buffers
from sublet.plan.records import MemoryPlan

MOST = 64
"""Buffers analysed, the largest at the peak; smaller buffers are left out."""


@dataclass(frozen=True, slots=True)
class PeakContributor:
    """A buffer live at the peak, with the peak of live bytes without the buffer, and with half of its bytes."""

    nbytes: int
    values: tuple[str, ...]
    without_bytes: int
    halved_bytes: int


def peak_contributors(plan: MemoryPlan) -> tuple[PeakContributor, ...]:
    """Return the contributors to the peak, in order of the peak without the buffer, smallest first."""
    blocks = list(planned_buffers(plan))
    levels = np.zeros(len(plan.points) + 1, dtype=np.int64)
    for block in blocks:
        for strip in block.segments:
            for begin, end in strip.live:
                levels[begin] += strip.nbytes
                levels[end] -= strip.nbytes
    levels = np.cumsum(levels)
    point = plan.peak.point
    at_peak = [(sum(block.sizes_needed_at(point)), block) for block in blocks if holds(block.live, point)]
    largest = sorted(at_peak, key=lambda pair: -pair[0])[:MOST]
    contributors = [
        PeakContributor(
            nbytes, _live_values(block, point), _peak_without(levels, block, 1), _peak_without(levels, block, 2)
        )
        for nbytes, block in largest
    ]
    return tuple(sorted(contributors, key=lambda one: (one.without_bytes, -one.nbytes)))


def _live_values(block: PlannedBuffer, point: int) -> tuple[str, ...]:
    """Return the values of a buffer that are live at a point."""
    alive = (place.value for place in block.members if holds(place.live, point))
    return tuple(dict.fromkeys(alive))


def _peak_without(levels: np.typing.NDArray[np.int64], block: PlannedBuffer, part: int) -> int:
    """Return the peak of live bytes if a buffer were smaller by a fraction 1/`part`."""
    left = levels.copy()
    for strip in block.segments:
        for begin, end in strip.live:
            left[begin:end] -= strip.nbytes // part
    return int(left.max())

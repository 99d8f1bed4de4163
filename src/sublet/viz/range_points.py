"""Points of a plan over ranges as drawn on a page: the shapes that the sliders select, and a picture of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from sublet.base.boxes import Range
from sublet.plan.ranges import RangedPlan
from sublet.plan.statistics import find_peak
from sublet.viz.view_model import Picture, picture_of_plan

MOST_POINTS = 32
"""Maximum number of points on a page. Each point is a map of its own in the file."""

MOST_PLACEMENTS = 20_000
"""Maximum number of placements in all maps of a page, unless two points have more: the file stays below 2 MB."""


@dataclass(frozen=True)
class RangePoints:
    """The extents that the sliders of a page offer, ascending, by name of the dimension.

    The maps follow in the order of `itertools.product` over descending extents: the first map has the largest sizes.
    """

    extents: dict[str, tuple[int, ...]]


def points_of(ranged: RangedPlan) -> tuple[RangePoints, list[Picture]]:
    """Return the extents of the sliders, and the picture of the plan at each combination, the largest first."""
    count = max(2, min(MOST_POINTS, MOST_PLACEMENTS // max(1, len(ranged.worst.placements))))
    each = max(2, int(count ** (1 / max(1, len(ranged.ranges))) + 1e-9))
    extents = {
        one.name: _stops(one, each) if each ** (i + 1) <= count or i == 0 else (one.high,)
        for i, one in enumerate(ranged.ranges)
    }
    pictures: list[Picture] = []
    for choice in product(*(reversed(stops) for stops in extents.values())):
        point = {one.name: extent // one.step for one, extent in zip(ranged.ranges, choice, strict=True)}
        _, plan = ranged.at(point)
        pictures.append(picture_of_plan(replace(plan, peak=find_peak(plan))))
    return RangePoints(extents), pictures


def _stops(one: Range, count: int) -> tuple[int, ...]:
    """Return `count` extents of a range, or fewer: both ends, and extents between in geometric progression."""
    low, high = max(1, one.low // one.step), one.high // one.step
    ratio = (high / low) ** (1 / (count - 1))
    between = {min(high, round(low * ratio**k)) for k in range(count)}
    return tuple(sorted(number * one.step for number in {one.low // one.step, high, *between}))[-count:]

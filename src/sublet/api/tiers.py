"""Tiers of a range: plans for smaller upper ends, for requests below the largest shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, cast

from sublet.analysis.options import Options, Progress
from sublet.base.boxes import Box, Range
from sublet.base.errors import RunError
from sublet.base.formatting import known_names, printable
from sublet.ir.model import Model
from sublet.plan.ranges import RangedPlan, graph_at
from sublet.planning.ranges import plan_over_ranges

MOST_TIERS = 64
"""Maximum number of tiers. Each tier is planned and proven at the start: beyond, the start takes minutes."""

Tiers = Mapping[str, int | Sequence[int]]
"""The upper end of the tiers, or several ends, by name of the dimension."""


@dataclass(frozen=True)
class PlannedTier:
    """The ranges and the plan of a tier."""

    ranges: tuple[Range, ...]
    ranged: RangedPlan

    @property
    def ends(self) -> dict[str, int]:
        """The upper ends by name of dimension."""
        return {each.name: each.high for each in self.ranges}

    def to_json(self) -> dict[str, Any]:
        """Return the upper ends, the arena and the lower bound as a JSON object; sizes in bytes."""
        plan = self.ranged.worst
        return {"up_to": self.ends, "arena_bytes": plan.arena_bytes, "lower_bound_bytes": plan.lower_bound_bytes}


def parse_tiers(tiers: Tiers, ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """Return the ranges of every tier below the largest, the tier with the fewest elements first.

    The upper ends of several dimensions are combined. The upper end of a range is always a tier. Raises RunError for a
    name without a range, and for ends that are not ascending extents of the range.
    """
    by_name = {each.name: each for each in ranges}
    unknown = sorted(tiers.keys() - by_name.keys())
    if unknown:
        known = known_names(by_name) if by_name else "none"
        raise RunError(f"tiers of {printable(unknown[0])}: no dimension with a range; the ranges are {known}")
    ends: dict[str, list[int]] = {}
    for name, one_or_more in tiers.items():
        whole, given = by_name[name], (one_or_more,) if isinstance(one_or_more, int) else one_or_more
        ends[name] = [whole.extent_of(whole.number_of(each, f"tiers of {name}")) for each in given]
        if ends[name] != sorted(set(ends[name])):
            raise RunError(f"tiers of {name}: {', '.join(map(str, given))} are not ascending")
        if not ends[name] or ends[name][-1] < whole.high:
            ends[name].append(whole.high)
    if prod(map(len, ends.values())) > MOST_TIERS:
        raise RunError(f"tiers: {prod(map(len, ends.values()))} combinations; the maximum is {MOST_TIERS}")
    combined = [dict(zip(ends, choice, strict=True)) for choice in product(*ends.values())]
    combined.sort(key=lambda choice: prod(choice.values()))
    return [tuple(replace(each, high=limits.get(each.name, each.high)) for each in ranges) for limits in combined[:-1]]


def narrowed_model(model: Model, ranges: Sequence[Range]) -> Model:
    """Return the model over narrower ranges of the same dimensions, with the same weights."""
    whole, part = (Box(tuple(each.dimension for each in found)) for found in (model.ranges, ranges))
    change = part.substitution_from(whole)
    dims = {name: cast(int, change(extent)) for name, extent in model.dims.items()}
    left = tuple(each for each in ranges if each.low < each.high)
    return replace(model, graph=graph_at(model.graph, change), dims=dims, ranges=left)


def plan_tiers(
    model: Model, tiers: Tiers | None, largest: RangedPlan, options: Options | None, progress: Progress | None = None
) -> list[PlannedTier]:
    """Return every tier with a smaller arena than the plan of the whole ranges.

    Each plan is proven for every point of its ranges. Raises the errors of `parse_tiers` and `plan_over_ranges`.
    """
    planned: list[PlannedTier] = []
    for ranges in parse_tiers(tiers or {}, model.ranges):
        narrowed = narrowed_model(model, ranges)
        ranged = plan_over_ranges(narrowed, options, progress)
        if ranged.worst.arena_bytes < largest.worst.arena_bytes:
            planned.append(PlannedTier(ranges, ranged))
    return planned

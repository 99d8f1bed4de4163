"""Ranges of dimensions, and the box of all points in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from operator import index

from sublet.base.errors import RunError, SubletError
from sublet.base.extents import Dimension, Extent, as_extent, substitute

MOST_EXTENT = 1 << 56

RANGE = re.compile(r"([0-9]{1,17})\.\.([0-9]{1,17})(?::([0-9]{1,17}))?", re.ASCII)
"""A range as text: `1..512`, or `64..960:32` for the multiples of 32."""


@dataclass(frozen=True)
class Range:
    """The extents of a dimension: the multiples of `step` from `low` to `high`.

    Raises SubletError for a range without an extent, and for ends that are no multiples of the step.
    """

    name: str
    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= MOST_EXTENT or self.step < 1:
            raise SubletError(f"{self}: a range has a least and a largest extent from 0 to 2^56, and a step from 1 on")
        if self.low % self.step or self.high % self.step:
            raise SubletError(f"{self}: both ends must be multiples of {self.step}")

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{self.high}" + ("" if self.step == 1 else f":{self.step}")

    @property
    def extent(self) -> Extent | int:
        """The extent as an expression."""
        return self.step * as_extent(self.dimension) if self.low < self.high else self.low

    @property
    def dimension(self) -> Dimension:
        """The dimension, numbered by steps."""
        return Dimension(self.name, self.low // self.step, self.high // self.step)

    def number_of(self, extent: int, where: str = "") -> int:
        """Return the number of the dimension for an extent.

        Raises RunError, beginning with `where`, for an extent outside the range.
        """
        try:
            extent = index(extent)
        except TypeError:
            raise RunError(f"{where or self.name}: {extent!r} is no whole number") from None
        if not self.low <= extent <= self.high or extent % self.step:
            multiples = f", in multiples of {self.step}" if self.step > 1 else ""
            what = f"{where}: is {extent}" if where else f"{self.name} = {extent}"
            advice = ". Compile for more" if extent > self.high else ""
            raise RunError(f"{what}; {self.name} ranges from {self.low} to {self.high}{multiples}{advice}")
        return extent // self.step

    def extent_of(self, number: int) -> int:
        """Return the extent for a number of the dimension."""
        return number * self.step


@dataclass(frozen=True)
class Box:
    """The ranges of all dimensions of a model: the set of points that a plan serves."""

    ranges: tuple[Dimension, ...]

    def split(self, difference: Extent) -> tuple[Box, Box] | None:
        """Return two halves of the box, for a comparison without the same result everywhere; None for one point.

        The box is split where the sign of `difference` changes along one dimension, all others at their least numbers;
        without such a place, the dimension with the most numbers is split in the middle.
        """
        wanted = {each.name for each in difference.dimensions}
        able = [each for each in self.ranges if each.name in wanted and each.low < each.high]
        if not able:
            return None
        places = {each: place for each in able if (place := self._sign_change(difference, each)) is not None}
        chosen = next(iter(places), max(able, key=lambda each: each.high - each.low))
        middle = places.get(chosen, (chosen.low + chosen.high) // 2)
        halves = (Dimension(chosen.name, chosen.low, middle), Dimension(chosen.name, middle + 1, chosen.high))
        first, second = (Box(tuple(half if each is chosen else each for each in self.ranges)) for half in halves)
        return first, second

    def _sign_change(self, difference: Extent, dim: Dimension) -> int | None:
        """Return the last number of a dimension with the sign of its lowest number; None if both ends have one sign."""
        point = {each.name: each.low for each in self.ranges}

        def sign(number: int) -> int:
            found = difference.at({**point, dim.name: number})
            return (found > 0) - (found < 0)

        low, high = dim.low, dim.high
        if sign(low) == sign(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sign(middle) == sign(dim.low) else (low, middle)
        return low

    def corners(self) -> Iterator[dict[str, int]]:
        """Yield the corners, the smallest point first and the largest last."""
        for point in product(*[dict.fromkeys((each.low, each.high)) for each in self.ranges]):
            yield {each.name: number for each, number in zip(self.ranges, point, strict=True)}

    def substitution_from(self, other: Box) -> Callable[[Extent | int], Extent | int]:
        """Return the function from an extent over another box to the extent over this box."""
        changed = {old: _as_number(new) for old, new in zip(other.ranges, self.ranges, strict=True) if old != new}
        return lambda extent: substitute(extent, changed)

    def __str__(self) -> str:
        return ", ".join(f"{each.name}={each.low}..{each.high}" for each in self.ranges)


def _as_number(each: Dimension) -> Extent | int:
    """Return a dimension as an extent; an int for a single number."""
    return each.low if each.low == each.high else as_extent(each)

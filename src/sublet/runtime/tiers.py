"""An executable with tiers: a plan for each upper end of a range, in one arena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from sublet.base.boxes import Range
from sublet.plan.ranges import RangedPlan
from sublet.runtime.executable import Executable
from sublet.runtime.ranged import NO_SHAPES, NO_UPDATES, NOWHERE, RangedExecutable, RunOutputs
from sublet.runtime.ranged_places import Block


@dataclass(frozen=True)
class _Tier:
    """A smaller tier: the executable, with the upper ends by name and the largest numbers of the dimensions.

    `varying` holds the positions of the dimensions with more than one number in the tier.
    """

    ends: Mapping[str, int]
    most: Sequence[int]
    varying: Sequence[int]
    executable: RangedExecutable


class TieredExecutable(RangedExecutable):
    """Runs each call in the smallest tier that holds its shapes. All tiers share the arena, the weights and kernels.

    The object is the executable of the largest tier. A smaller tier has a plan of its own, with a smaller arena at the
    begin of the common arena: calls at small shapes touch fewer bytes, close together.
    """

    def __init__(
        self, ranged: RangedPlan, base: Executable, state: Mapping[str, str], in_place: Mapping[str, str] = NO_UPDATES
    ) -> None:
        """Create the executable of the largest tier, see `RangedExecutable`; `add_smaller` adds the other tiers."""
        super().__init__(ranged, base, state, in_place)
        self._smaller: list[_Tier] = []

    def add_smaller(self, ranges: Sequence[Range], tier: RangedExecutable) -> None:
        """Add a tier above the tiers added so far, unless the outputs in memory of the caller are others.

        The sessions of the executable exchange the memory of such outputs.
        """
        if tier.outputs_outside == self.outputs_outside:
            ranges = [each for each in ranges if each.name in self.ranges]
            ends, most = {each.name: each.high for each in ranges}, [each.high // each.step for each in ranges]
            varying = [i for i, each in enumerate(ranges) if each.name in tier.ranges]
            self._smaller.append(_Tier(ends, most, varying, tier))

    @property
    def tiers(self) -> list[tuple[dict[str, int], int]]:
        """The upper ends by name of dimension, and the bytes of the arena, of every tier, the smallest first."""
        smaller = [(dict(each.ends), each.executable.arena_bytes) for each in self._smaller]
        return [*smaller, ({name: each.high for name, each in self.ranges.items()}, self.arena_bytes)]

    @property
    def bound_points(self) -> int:
        """The number of shapes with a bound program, in all tiers."""
        return super().bound_points + sum(each.executable.bound_points for each in self._smaller)

    @property
    def binding_bytes(self) -> int:
        """The bytes of the programs bound to the latest shapes, about."""
        return super().binding_bytes + sum(each.executable.binding_bytes for each in self._smaller)

    def run_in_arena(
        self,
        given: Mapping[str, Any],
        into: Mapping[str, Block] = NOWHERE,
        kept: Mapping[str, tuple[int, ...]] = NO_SHAPES,
    ) -> AbstractContextManager[RunOutputs]:
        """Run once in the smallest tier that holds the inputs, see `RangedExecutable.run_in_arena`."""
        numbers = self._numbers_of(given, kept)
        tier = self._tier_of(numbers)
        return self.run_at(numbers, given, into) if tier is None else self._run_in(tier, numbers, given, into)

    @contextmanager
    def _run_in(
        self, tier: _Tier, numbers: tuple[int, ...], given: Mapping[str, Any], into: Mapping[str, Block]
    ) -> Iterator[RunOutputs]:
        """Run once in a smaller tier."""
        there = tuple([numbers[i] for i in tier.varying])
        with self.exclusive(), tier.executable.run_at(there, given, into) as outputs:
            yield outputs

    def prepare(self, **extents: int) -> None:
        """Bind the program of the tier to a shape, see `RangedExecutable.prepare`."""
        tier = self._tier_of(self._numbers_at(extents))
        if tier is None:
            super().prepare(**extents)
        else:
            tier.executable.prepare(**{name: extents[name] for name in tier.executable.ranges})

    def bytes_at(self, **extents: int) -> int:
        """Return the bytes of the arena touched by a run at a point, see `RangedExecutable.bytes_at`."""
        tier = self._tier_of(self._numbers_at(extents))
        if tier is None:
            return super().bytes_at(**extents)
        known = {*tier.executable.ranges, *tier.executable.measured}
        return tier.executable.bytes_at(**{name: extent for name, extent in extents.items() if name in known})

    def forget_points(self) -> None:
        """Drop the programs bound to the latest shapes, in all tiers."""
        super().forget_points()
        for each in self._smaller:
            each.executable.forget_points()

    def _tier_of(self, numbers: Sequence[int]) -> _Tier | None:
        """Return the first smaller tier that holds a point; None for the executable itself."""
        for tier in self._smaller:
            if all(number <= most for number, most in zip(numbers, tier.most, strict=True)):
                return tier
        return None

"""Does a network fit a budget? Yes, no, or not known; and if not, which tensors prove it.

What a plan counts needs its arena, and no packing in this order needs less than its lower bound. What lies outside
of the plan comes on top: nobody knows how much, or at most so much where element type and rank are known and open
extents are bounded. So the network fits when arena and bounds do, it does not when the arena does not, and everything
between is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from sublet.base.errors import PlanError
from sublet.base.printable import known_names, printable
from sublet.base.ranges import holds
from sublet.base.tensor import MAX_BYTES
from sublet.plan import MemoryPlan
from sublet.plan.slots import Block, slots

EVERY = ""
"""Stands for every value outside a plan."""

Extents = int | Mapping[str, int] | None
"""The most that an open extent can be: for all values outside, or by value."""


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer: its size, and the values in it that matter where it is told.

    In a proof the size counts the bytes up to where the next buffer can begin: all but the one on top
    are rounded up to the alignment.
    """

    nbytes: int
    values: tuple[str, ...]


class Outcome(StrEnum):
    """What is known of a plan and a budget."""

    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the whole network fits `budget` bytes: what the plan counts, and what lies outside of it.

    least      no packing in this order takes fewer bytes: the lower bound of what is planned
    most       the arena and every value outside at its largest; None when one of them has no bound
    proof      the smallest set of the plan's proving buffers whose bytes exceed the budget: no two of
               them may overlap, so no choice of offsets can help. Empty unless `settled` is true, and when the bound
               is proven by a search that refuted every smaller arena, which no set of buffers shows
    largest    by value the most that an open extent is taken to be; under "" for every value
    assumed    values whose type nobody computed, with these types: the verdict holds where they are true
    """

    budget: int
    outcome: Outcome
    least: int
    most: int | None
    proof: tuple[LiveBuffer, ...] = ()
    largest: tuple[tuple[str, int], ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()

    @property
    def fits(self) -> bool | None:
        """True or False where the plan decides it; None when values outside of it may tip the scales."""
        return None if self.outcome is Outcome.UNKNOWN else self.outcome is Outcome.FITS

    @property
    def settled(self) -> bool:
        """True if the verdict is that on every packing in this order, where the assumed types are true."""
        return self.outcome is Outcome.FITS or self.least > self.budget

    @property
    def proven(self) -> bool:
        """True if the verdict is that on every packing in this order, and rests on no assumption."""
        return self.settled and not self.assumed


def buffers_at_peak(plan: MemoryPlan) -> tuple[LiveBuffer, ...]:
    """The buffers alive at the peak by what they need there, with their values alive there, largest first."""
    point = plan.peak.point
    alive = (block for block in slots(plan) if holds(block.live, point))
    return _largest_first(
        LiveBuffer(sum(block.needed(point)), tuple(p.value for p in block.members if holds(p.live, point)))
        for block in alive
    )


def verdict(plan: MemoryPlan, budget: int, max_dim: Extents = None) -> Verdict:
    """Hold a plan, and what lies outside of it, against a budget in bytes.

    `max_dim` is the most that an extent which nobody knows can be: one for all values outside, or one a value.
    Raises PlanError for a value that does not lie outside, or an extent that makes no sense.
    """
    largest = _largest(plan, max_dim)
    least, most = plan.lower_bound_bytes, most_bytes(plan, largest)
    told, assumed = tuple(largest.items()), plan.assumed
    if most is not None and most <= budget:
        return Verdict(budget, Outcome.FITS, least, most, largest=told, assumed=assumed)
    if plan.arena_bytes <= budget:
        return Verdict(budget, Outcome.UNKNOWN, least, most, largest=told, assumed=assumed)
    return Verdict(budget, Outcome.DOES_NOT_FIT, least, most, _proof(plan, budget), told, assumed)


def most_bytes(plan: MemoryPlan, largest: Mapping[str, int] = MappingProxyType({})) -> int | None:
    """The arena and every value outside at its largest, each once; None when one of them has no bound."""
    sizes = [value.most_bytes(largest.get(value.value, largest.get(EVERY))) for value in plan.not_counted]
    known = [size for size in sizes if size is not None]
    return plan.arena_bytes + sum(known) if len(known) == len(sizes) else None


def _largest(plan: MemoryPlan, max_dim: Extents) -> dict[str, int]:
    by_value = {} if max_dim is None else {EVERY: max_dim} if isinstance(max_dim, int) else dict(max_dim)
    outside = [value.value for value in plan.outside]
    for name, extent in by_value.items():
        if type(extent) is not int or not 0 <= extent <= MAX_BYTES:
            raise PlanError(f"the largest extent {extent!r} must be an integer from 0 to 2^56")
        if name != EVERY and name not in outside:
            known = known_names(outside)
            raise PlanError(f"no value outside the plan is called {printable(name)!r}; there are: {known}")
    return by_value


def _proof(plan: MemoryPlan, budget: int) -> tuple[LiveBuffer, ...]:
    if plan.lower_bound_bytes <= budget:
        return ()
    chosen: list[_Proving] = []
    for one in sorted(_proving(plan), key=lambda one: -one.nbytes):
        chosen.append(one)
        if _stacked(chosen) > budget:
            top = max(chosen, key=lambda one: one.slack)
            return _largest_first(
                LiveBuffer(one.rounded - one.slack if one is top else one.rounded, one.values) for one in chosen
            )
    return ()


@dataclass(frozen=True, slots=True)
class _Proving:
    """A buffer that proves a bound: what it needs, rounded up to where others can begin, and how much of that at most
    is padding on top."""

    values: tuple[str, ...]
    nbytes: int
    rounded: int
    slack: int


def _proving(plan: MemoryPlan) -> list[_Proving]:
    """The buffers that prove the lower bound, by what they need at the one point where that is most, or as a whole."""
    alignment = plan.alignment if len(plan.arenas) == 1 else 1  # the last one in every arena needs no padding
    members = [block for block in slots(plan) if block.buffer in set(plan.proof)]
    points = {begin for block in members for strip in block.strips for begin, _ in strip.live}
    common = [point for point in points if all(holds(block.live, point) for block in members)]
    found = [[_needed(b, b.needed(point), alignment) for b in members] for point in sorted(common)]
    alone = [_needed(block, (block.nbytes,), alignment) for block in members]
    return max(found, key=_stacked, default=alone)


def _stacked(several: Iterable[_Proving]) -> int:
    """The bytes of buffers side by side: the one whose padding is largest lies on top, where it needs none."""
    known = list(several)
    return sum(one.rounded for one in known) - max((one.slack for one in known), default=0)


def _needed(block: Block, sizes: tuple[int, ...], alignment: int) -> _Proving:
    """As `packing` rounds, which lies below: who runs a plan packs nothing."""
    rounded = [-(-size // alignment) * alignment for size in sizes]
    slack = max(whole - size for whole, size in zip(rounded, sizes, strict=True))
    return _Proving(block.values, sum(sizes), sum(rounded), slack)


def _largest_first(buffers: Iterable[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    return tuple(sorted(buffers, key=lambda buffer: -buffer.nbytes))

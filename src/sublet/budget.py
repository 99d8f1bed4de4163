"""Does a plan fit a budget, and if not, which tensors prove it?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer: its size, and the values in it that matter where it is told.

    In a proof the size counts the bytes up to where the next buffer can begin: all but the one on top
    are rounded up to the alignment.
    """

    nbytes: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the arena fits `budget` bytes.

    `proof` is the smallest set of the plan's proving buffers whose bytes exceed the budget: no two of
    them may overlap, so no choice of offsets can help. It is empty when the plan fits, when the budget
    lies between the lower bound and the arena, where neither is proven, and when the bound is proven
    by a search that refuted every smaller arena, which no set of buffers shows.
    """

    budget: int
    fits: bool
    proof: tuple[LiveBuffer, ...] = ()


def buffers_at_peak(plan: MemoryPlan) -> tuple[LiveBuffer, ...]:
    """The buffers alive at the peak with their values alive there, largest first."""
    at_peak, point = set(plan.peak.values), plan.peak.point
    sizes, _ = _buffers(plan)
    alive: dict[int, tuple[str, ...]] = dict.fromkeys(sizes, ())
    for place in plan.in_arenas:
        if place.value in at_peak and place.buffer >= 0 and any(begin <= point < end for begin, end in place.live):
            alive[place.buffer] = (*alive[place.buffer], place.value)
    return _largest_first(LiveBuffer(sizes[number], names) for number, names in alive.items() if names)


def verdict(plan: MemoryPlan, budget: int) -> Verdict:
    """Hold a plan against a budget in bytes."""
    if plan.arena_bytes <= budget:
        return Verdict(budget, fits=True)
    if plan.lower_bound_bytes <= budget:
        return Verdict(budget, fits=False)
    sizes, values = _buffers(plan)
    alignment = plan.alignment if len(plan.arenas) == 1 else 1  # the last one in every arena needs no padding
    chosen: list[int] = []
    total = slack = 0
    for number in sorted(plan.proof, key=lambda number: -sizes[number]):
        chosen.append(number)
        total += _rounded(sizes[number], alignment)
        slack = max(slack, _rounded(sizes[number], alignment) - sizes[number])
        if total - slack > budget:
            return Verdict(budget, fits=False, proof=_stacked(chosen, sizes, values, alignment))
    return Verdict(budget, fits=False)


def _stacked(
    numbers: list[int], sizes: dict[int, int], values: dict[int, tuple[str, ...]], alignment: int
) -> tuple[LiveBuffer, ...]:
    """Buffers side by side: the one whose padding is largest lies on top, where it needs none."""
    top = max(numbers, key=lambda number: _rounded(sizes[number], alignment) - sizes[number])
    return _largest_first(
        LiveBuffer(sizes[n] if n == top else _rounded(sizes[n], alignment), values[n]) for n in numbers
    )


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _buffers(plan: MemoryPlan) -> tuple[dict[int, int], dict[int, tuple[str, ...]]]:
    """The bytes and the values of every buffer of the arenas, by number."""
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    values: dict[int, tuple[str, ...]] = {}
    for place in plan.in_arenas:
        region, number = place.region, place.buffer
        if number >= 0:
            low[number] = min(low.get(number, region.offset), region.offset)
            high[number] = max(high.get(number, 0), region.end)
            values[number] = (*values.get(number, ()), place.value)
    return {number: high[number] - low[number] for number in low}, values


def _largest_first(buffers: Iterable[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    return tuple(sorted(buffers, key=lambda buffer: -buffer.nbytes))

"""Does a plan fit a budget, and if not, which tensors prove it?"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.plan import ARENA, MemoryPlan


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is alive at the peak: its size, and the values alive in it then."""

    nbytes: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the arena fits `budget` bytes.

    `proof` is the smallest set of buffers, alive at one point and so all in memory together, whose
    bytes exceed the budget: no order of offsets can help. It is empty when the plan fits, and when
    the budget lies between the lower bound and the arena, where neither is proven.
    """

    budget: int
    fits: bool
    proof: tuple[LiveBuffer, ...] = ()


def buffers_at_peak(plan: MemoryPlan) -> tuple[LiveBuffer, ...]:
    """The buffers alive at the peak, largest first."""
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    for place in plan.placements:
        if place.region.storage == ARENA and place.buffer >= 0:
            low[place.buffer] = min(low.get(place.buffer, place.region.offset), place.region.offset)
            high[place.buffer] = max(high.get(place.buffer, 0), place.region.end)
    alive: dict[int, list[str]] = {}
    at_peak = set(plan.peak.values)
    for place in plan.placements:
        if place.value in at_peak and place.buffer >= 0:
            alive.setdefault(place.buffer, []).append(place.value)
    found = [LiveBuffer(high[buffer] - low[buffer], tuple(names)) for buffer, names in alive.items()]
    return tuple(sorted(found, key=lambda live: -live.nbytes))


def verdict(plan: MemoryPlan, budget: int) -> Verdict:
    """Hold a plan against a budget in bytes."""
    if plan.arena_bytes <= budget:
        return Verdict(budget, fits=True)
    proof: list[LiveBuffer] = []
    total = 0
    for live in buffers_at_peak(plan):
        proof.append(live)
        total += live.nbytes
        if total > budget:
            return Verdict(budget, fits=False, proof=tuple(proof))
    return Verdict(budget, fits=False)

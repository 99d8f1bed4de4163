"""Records of answers on a plan: the verdict on a memory budget, and advice to lower the arena.

A negative verdict lists the proving tensors. Advice lists changes, each with the arena of the changed graph as planned.

The counted values need the arena, and no packing in this order needs less than the lower bound. Values outside of the
plan need additional memory: an unknown amount, or a bounded amount if element type and rank are known and the caller
bounds the open extents. The network fits if the arena plus all bounds fit, does not fit if the arena alone does not
fit, and the verdict is unknown otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from sublet.base.errors import PlanError
from sublet.base.formatting import known_names, printable
from sublet.base.ranges import holds
from sublet.base.tensor import MAX_BYTES
from sublet.plan import MemoryPlan
from sublet.plan.statistics import PlannedBuffer, planned_buffers

EVERY = ""
"""The key of `largest` for every value outside a plan."""

Extents = int | Mapping[str, int] | None
"""The maximum of open extents: one number for all values outside a plan, or one a value."""


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer: the size, and the relevant values.

    In a proof the size counts the bytes up to the next possible start of a buffer: all sizes except for the topmost
    buffer's are rounded up to the alignment.
    """

    nbytes: int
    values: tuple[str, ...]


class BudgetOutcome(StrEnum):
    """The kinds of verdict on a plan and a budget."""

    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"

    @property
    def fits(self) -> bool | None:
        """True or False if the verdict is known; None otherwise."""
        return None if self is BudgetOutcome.UNKNOWN else self is BudgetOutcome.FITS


def outcome_within(budget: int, least: int, most: int | None) -> BudgetOutcome:
    """Return the kind of verdict on a need between `least` and `most` bytes, None for no known upper end."""
    if most is not None and most <= budget:
        return BudgetOutcome.FITS
    return BudgetOutcome.UNKNOWN if least <= budget else BudgetOutcome.DOES_NOT_FIT


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on the whole network under a budget of `budget` bytes, with values outside of the plan.

    least      the lower bound of the planned values: no packing in this order takes fewer bytes
    most       the arena plus the maximum size of every value outside; None if the size of a value has no bound
    proof      the smallest set of the plan's proving buffers whose bytes exceed the budget: no two of the buffers
               may overlap, so no choice of offsets can help. Empty unless `is_settled`, and empty for a bound proven by
               a search (which refuted every smaller arena): no set of buffers shows the bound of a search
    largest    the assumed maximum of an open extent, by value; under "" for every value
    assumed    values with a declared, not computed, type: the verdict holds if the types are true
    """

    budget: int
    outcome: BudgetOutcome
    least: int
    most: int | None
    proof: tuple[LiveBuffer, ...] = ()
    largest: tuple[tuple[str, int], ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()

    @property
    def fits(self) -> bool | None:
        """True or False if the plan decides; None if values outside of the plan decide."""
        return self.outcome.fits

    @property
    def is_settled(self) -> bool:
        """True if the verdict holds for every packing in this order, provided that the assumed types are true."""
        return self.outcome is BudgetOutcome.FITS or self.least > self.budget

    @property
    def is_proven(self) -> bool:
        """True if the verdict holds for every packing in this order, without any assumption."""
        return self.is_settled and not self.assumed


def buffers_at_peak(plan: MemoryPlan) -> tuple[LiveBuffer, ...]:
    """Return the buffers live at the peak, with the bytes needed and the values live there, largest first."""
    point = plan.peak.point
    alive = (block for block in planned_buffers(plan) if holds(block.live, point))
    return _largest_first(
        LiveBuffer(sum(block.sizes_needed_at(point)), tuple(p.value for p in block.members if holds(p.live, point)))
        for block in alive
    )


def verdict(plan: MemoryPlan, budget: int, max_dim: Extents = None) -> Verdict:
    """Return the verdict on a plan and a budget in bytes, with the values outside of the plan.

    `max_dim` is the maximum of every unknown extent: one number for all values outside, or one a value.
    Raises PlanError for a value not outside of the plan, and for an invalid extent.
    """
    largest = _extents_by_value(plan, max_dim)
    least, most = plan.lower_bound_bytes, max_total_bytes(plan, largest)
    outcome = outcome_within(budget, plan.arena_bytes, most)
    proof = _proof(plan, budget) if outcome is BudgetOutcome.DOES_NOT_FIT else ()
    return Verdict(budget, outcome, least, most, proof, tuple(largest.items()), plan.assumed_types)


def max_total_bytes(plan: MemoryPlan, largest: Mapping[str, int] = MappingProxyType({})) -> int | None:
    """Return the arena plus the maximum size of every value outside, each once; None if a size has no bound.

    `largest` maps the name of a value, or "" for every value, to the maximum of its open extents.
    """
    sizes = [value.max_bytes(largest.get(value.value, largest.get(EVERY))) for value in plan.not_counted]
    known = [size for size in sizes if size is not None]
    return plan.arena_bytes + sum(known) if len(known) == len(sizes) else None


def _extents_by_value(plan: MemoryPlan, max_dim: Extents) -> dict[str, int]:
    by_value = {} if max_dim is None else {EVERY: max_dim} if isinstance(max_dim, int) else dict(max_dim)
    outside = [value.value for value in plan.outside]
    for name, extent in by_value.items():
        if type(extent) is not int or not 0 <= extent <= MAX_BYTES:
            raise PlanError(f"the largest extent {extent!r} must be an integer from 0 to 2^56")
        if name != EVERY and name not in outside:
            known = known_names(outside)
            raise PlanError(f"no value outside the plan has the name {printable(name)!r}; known: {known}")
    return by_value


def _proof(plan: MemoryPlan, budget: int) -> tuple[LiveBuffer, ...]:
    if plan.lower_bound_bytes <= budget:
        return ()
    chosen: list[_ProvingBuffer] = []
    for one in sorted(_proving_buffers(plan), key=lambda one: -one.nbytes):
        chosen.append(one)
        if _stacked_bytes(chosen) > budget:
            top = max(chosen, key=lambda one: one.slack)
            return _largest_first(
                LiveBuffer(one.rounded - one.slack if one is top else one.rounded, one.values) for one in chosen
            )
    return ()


@dataclass(frozen=True, slots=True)
class _ProvingBuffer:
    """A buffer of a proof: the values, the needed bytes, the needed bytes rounded up to the alignment, and `slack`.

    `slack` is the largest padding that the topmost buffer may omit.
    """

    values: tuple[str, ...]
    nbytes: int
    rounded: int
    slack: int


def _proving_buffers(plan: MemoryPlan) -> list[_ProvingBuffer]:
    """Return the buffers of the lower bound's proof, sized at the common live point with the largest sum.

    Without a common live point the function returns the buffers in whole.
    """
    alignment = plan.alignment if len(plan.arenas) == 1 else 1  # the topmost buffer of every arena needs no padding
    members = [block for block in planned_buffers(plan) if block.buffer in set(plan.proof)]
    points = {begin for block in members for strip in block.segments for begin, _ in strip.live}
    common = [point for point in points if all(holds(block.live, point) for block in members)]
    candidates = [
        [_proving_buffer(b, b.sizes_needed_at(point), alignment) for b in members] for point in sorted(common)
    ]
    alone = [_proving_buffer(block, (block.nbytes,), alignment) for block in members]
    return max(candidates, key=_stacked_bytes, default=alone)


def _stacked_bytes(several: Iterable[_ProvingBuffer]) -> int:
    """Return the bytes of buffers side by side, with the buffer of the largest padding on top, without padding."""
    buffers = list(several)
    return sum(one.rounded for one in buffers) - max((one.slack for one in buffers), default=0)


def _proving_buffer(block: PlannedBuffer, sizes: tuple[int, ...], alignment: int) -> _ProvingBuffer:
    """Return the proof record of a buffer with segments of the given sizes, rounded like `packing` rounds.

    The code repeats the rounding of `packing`, because executing a plan must not import `packing`.
    """
    rounded = [-(-size // alignment) * alignment for size in sizes]
    slack = max(whole - size for whole, size in zip(rounded, sizes, strict=True))
    return _ProvingBuffer(block.values, sum(sizes), sum(rounded), slack)


def _largest_first(buffers: Iterable[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    return tuple(sorted(buffers, key=lambda buffer: -buffer.nbytes))


Kind = Literal["option", "model", "what-if"]


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, and the arena planned for the changed graph.

    kind    "option": the same graph, or an equivalent graph, by another choice on the command line
            "model": another graph with the same results (but for rounding where `what` says so), to be written by the
            exporter of the model
            "what-if": another network or kernel; the figures show the value of the change
    what    the change
    how     instructions for the change
    arena_bytes    the arena of the plan of the changed graph
    saved_bytes    the reduction against the plan under advice; <= 0 for a change without benefit
    outside_bytes  the increase of memory outside the arena (inputs, outputs, weights)
    unplanned      the increase of unplannable values: if above 0, the arenas are not comparable
    """

    kind: Kind
    what: str
    how: str
    arena_bytes: int
    saved_bytes: int
    outside_bytes: int = 0
    unplanned: int = 0


@dataclass(frozen=True, slots=True)
class Advised:
    """All advice about one plan, the largest saving first.

    failed    changes without a plan, each with the reason
    stopped   why the search for changes ended early; "" for a complete search
    """

    advice: tuple[Advice, ...]
    failed: tuple[str, ...] = ()
    stopped: str = ""

    def _repr_html_(self) -> str:
        """Return a table for a notebook. Only a notebook loads the code that draws."""
        return str(import_module("sublet.viz.notebook").advice_html(self))

    @property
    def helpful(self) -> tuple[Advice, ...]:
        """The changes with a smaller arena; of options with equal arenas only the shortest."""
        known = {(each.how, each.arena_bytes) for each in self.advice}
        better = (each for each in self.advice if each.saved_bytes > 0 and each.unplanned <= 0)
        return tuple(each for each in better if (each.how.rpartition(" --")[0], each.arena_bytes) not in known)

    @property
    def unhelpful(self) -> tuple[Advice, ...]:
        """The changes without a smaller arena, or with arenas that are not comparable."""
        return tuple(each for each in self.advice if each.saved_bytes <= 0 or each.unplanned > 0)

    @property
    def content(self) -> dict[str, Any]:
        """The advice as a JSON-serialisable dict."""
        names = ("kind", "what", "how", "arena_bytes", "saved_bytes", "outside_bytes", "unplanned")
        return {
            "advice": [{name: getattr(each, name) for name in names} for each in self.advice],
            "advice_failed": list(self.failed),
            "advice_stopped": self.stopped,
        }

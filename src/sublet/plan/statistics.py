"""Statistics computed from a plan: values in several regions, bytes copied by control flow, updated values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sublet.base.errors import PlanError
from sublet.base.formatting import abbreviated_list, count_with_noun, human, printable
from sublet.base.ranges import LiveCurve, LiveSegment, Ranges, holds, merge, single_segment, split_into_segments
from sublet.ir.recipe import AS_IS, PATCHES_PREFIX
from sublet.plan import POINTER, UnplannedValue
from sublet.plan.records import ARENA, UPDATE, Edge, MemoryPlan, Peak, Placement, Region
from sublet.plan.schedule import is_serial

# A plan as allocation intervals of buffers, for viewers of allocators and for packers.
#
# In one stream a buffer is a list of live segments, each with its own live range. In several streams a buffer is one
# rectangular block, live when any of its values is live.

Segmenter = Callable[[Iterable[LiveSegment]], tuple[LiveSegment, ...]]


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """A buffer of a plan: number, bytes in an arena, and live range.

    members   the placements sharing the bytes on purpose
    segments  the live segments, with addresses relative to `offset`
    """

    buffer: int
    arena: str
    offset: int
    nbytes: int
    live: Ranges
    members: tuple[Placement, ...]
    segments: tuple[LiveSegment, ...]

    @property
    def owner(self) -> Placement:
        """The placement with own bytes, shared by the remaining members."""
        return next((place for place in self.members if place.how == "own"), self.members[0])

    @property
    def values(self) -> tuple[str, ...]:
        """The names of all values in the buffer, in order."""
        return tuple(dict.fromkeys(place.value for place in self.members))

    def sizes_needed_at(self, point: int) -> tuple[int, ...]:
        """Return the sizes in bytes of the segments live at a point."""
        return tuple(strip.nbytes for strip in self.segments if holds(strip.live, point))


def segmenter_of(plan: MemoryPlan) -> Segmenter:
    """Return the function from members to segments of a buffer: live segments, or one block for several streams."""
    return (
        (lambda members: split_into_segments(members, plan.alignment)) if is_serial(plan.schedule) else single_segment
    )


def planned_buffers(plan: MemoryPlan) -> Iterator[PlannedBuffer]:
    """Yield the buffers of a plan in order of their numbers, without empty placements and without slices and rows."""
    return buffers_from(
        (place for place in plan.in_arenas if place.buffer >= 0 and not place.strides), segmenter_of(plan)
    )


def buffers_from(placements: Iterable[Placement], shape: Segmenter) -> Iterator[PlannedBuffer]:
    """Yield the buffers formed by placements, in order of their numbers, without buffers never live."""
    members: dict[int, list[Placement]] = {}
    for place in placements:
        if place.region.nbytes:
            members.setdefault(place.buffer, []).append(place)
    for buffer, places in sorted(members.items()):
        low, high = min(p.region.offset for p in places), max(p.region.end for p in places)
        live = merge(piece for place in places for piece in place.live if piece[0] < piece[1])
        if live:
            needed = (LiveSegment(p.region.offset - low, p.region.end - low, merge(p.live)) for p in places)
            yield PlannedBuffer(buffer, places[0].region.storage, low, high - low, live, tuple(places), shape(needed))


def live_curve_of(blocks: Iterable[PlannedBuffer]) -> LiveCurve:
    """Return the live bytes of buffers; shared bytes of a buffer count once."""
    return LiveCurve.from_sizes((strip.live, strip.nbytes) for block in blocks for strip in block.segments)


def find_peak(plan: MemoryPlan) -> Peak:
    """Return the first point with the most live bytes, and the values live there."""
    buffers = list(planned_buffers(plan))
    point, nbytes = live_curve_of(buffers).peak
    members = {id(place) for block in buffers for place in block.members}
    alive = (place.value for place in plan.placements if id(place) in members and holds(place.live, point))
    return Peak(point, nbytes, tuple(dict.fromkeys(alive)))


def require_counted(plan: MemoryPlan, form: str) -> None:
    """Raise PlanError for a plan with uncounted values: an export in `form` would claim to be complete."""
    if plan.not_counted:
        names = ", ".join(repr(value.value) for value in plan.not_counted[:3])
        raise PlanError(
            f"{plan.graph}: values without a size in the plan: {names}{', ...' if len(plan.not_counted) > 3 else ''}; "
            f"{form} cannot mark these values (`sublet plan` gives the reasons)"
        )


def multiview_values(plan: MemoryPlan) -> tuple[str, ...]:
    """Return the values with several regions in turn [NNC: multi-view tensors]."""
    regions: dict[str, set[Region]] = {}
    for place in plan.placements:
        regions.setdefault(place.value, set()).add(place.region)
    return tuple(value for value, places in regions.items() if len(places) > 1)


def bytes_by_edge(plan: MemoryPlan) -> dict[Edge, int]:
    """Return, for each control-flow edge with copies, the most bytes copied when the run passes the edge once.

    A destination receives one source at a time; the arm or the body version selects the source.
    """
    edges: dict[Edge, dict[str, int]] = {}
    for move in plan.moves:
        to = edges.setdefault(move.edge, {})
        to[move.destination] = max(move.nbytes, to.get(move.destination, 0))
    return {edge: sum(to.values()) for edge, to in edges.items()}


@dataclass(frozen=True, slots=True)
class UpdateStatistics:
    """The number of inputs and weights updated by a run, their total bytes, and the bytes copied by the updates.

    `exchanged` counts the values in storage swaps.
    """

    count: int
    nbytes: int
    copied: int
    exchanged: int

    @property
    def description(self) -> str:
        """The count and the storage swaps in words."""
        exchanged = f", {self.exchanged} of which exchange their memory" if self.exchanged else ""
        return f"{count_with_noun(self.count, 'value')}{exchanged}"


def update_statistics(plan: MemoryPlan) -> UpdateStatistics:
    """Return the statistics of a plan's updates."""
    sizes = {place.value: place.region.nbytes for place in plan.placements}
    copied = sum(move.nbytes for move in plan.moves if move.edge.kind == UPDATE)
    exchanged = sum(map(len, plan.exchanged))
    return UpdateStatistics(len(plan.updated), sum(sizes[name] for name in plan.updated), copied, exchanged)


def state_outside(plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of the updated values outside of all arenas, by name: states, and trained weights."""
    arenas = {arena.name for arena in plan.arenas}
    kept = {place.value: place.region for place in plan.placements if place.value in plan.updated}
    return {value: region.nbytes for value, region in kept.items() if region.storage not in arenas}


# The part of a network covered by a plan: all proofs about the plan hold for the covered part only.
#
# Every output with an arena, a bound or a gap calls this module first, and names the values left out.

NAMED = 3
"""Values named in one line of text; more values are counted only."""


def planned_values(plan: MemoryPlan) -> tuple[str, ...]:
    """Return the values with bytes in an arena, and the renamed values bound to such values."""
    pointers = (place for place in plan.placements if place.how == POINTER)
    return tuple(dict.fromkeys(place.value for place in (*plan.in_arenas, *pointers)))


def bytes_outside(plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of the storages outside the arenas, by kind."""
    sums: dict[str, int] = {}
    for storage in plan.storages:
        if storage.kind != ARENA:
            sums[storage.kind] = sums.get(storage.kind, 0) + storage.nbytes
    return sums


def coverage(plan: MemoryPlan) -> str:
    """Return a sentence with the number of planned values and the first values left out; "" for complete coverage."""
    if not plan.not_counted:
        return ""
    planned = len(planned_values(plan))
    whole = planned + len(plan.not_counted)
    outside = f"{len(plan.not_counted)} outside, not counted: {first_names(plan.not_counted)}"
    return f"{planned} of {whole} tensors planned; {outside}"


def checked_summary(plan: MemoryPlan) -> str:
    """Return a sentence with the values, the arena and the assumptions covered by a successful check."""
    size = human(plan.arena_bytes)
    words = coverage(plan) or count_with_noun(len(planned_values(plan)), "tensor")
    summary = f"{words}, in an arena of {size}" if not plan.not_counted else f"an arena of {size}; {words}"
    return f"{summary}; assumed: {assumptions(plan)}" if plan.assumed_types else summary


def first_names(outside: Iterable[UnplannedValue], most: int = NAMED) -> str:
    """Return the first values by name and type, and the number of values left out."""
    return abbreviated_list([printable(f"{value.value} {value.type}") for value in outside], most)


def assumptions(plan: MemoryPlan) -> str:
    """Return in words the types declared by the caller, the file or ONNX Runtime; "" for none.

    Sublet did not compute these types.
    """
    texts = [f"{name} is {spec}" for name, spec in plan.recipe.assumed]
    whose = "the file declares" if plan.recipe.optimize == AS_IS else "ONNX Runtime infers"
    texts += [f"{name} is {spec}, as {whose}" for name, spec in plan.recipe.declared]
    return printable(abbreviated_list(texts, NAMED))


# Contributors to the peak: for each buffer live at the peak, the peak without the buffer, or with half of its bytes.
#
# The figures are estimates, and every output calls them so: the planner does not run again, and coalescing, order and
# packing may change. `--advise` plans the changes.

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
    curve = live_curve_of(blocks)
    point = plan.peak.point
    at_peak = [(sum(block.sizes_needed_at(point)), block) for block in blocks if holds(block.live, point)]
    largest = sorted(at_peak, key=lambda pair: -pair[0])[:MOST]
    contributors = [
        PeakContributor(nbytes, _live_values(block, point), *(_peak_without(curve, block, part) for part in (1, 2)))
        for nbytes, block in largest
    ]
    return tuple(sorted(contributors, key=lambda one: (one.without_bytes, -one.nbytes)))


def _live_values(block: PlannedBuffer, point: int) -> tuple[str, ...]:
    """Return the values of a buffer that are live at a point."""
    alive = (place.value for place in block.members if holds(place.live, point))
    return tuple(dict.fromkeys(alive))


def _peak_without(curve: LiveCurve, block: PlannedBuffer, part: int) -> int:
    """Return the peak of live bytes if a buffer were smaller by a fraction 1/`part`."""
    return curve.peak_without((strip.live, strip.nbytes // part) for strip in block.segments)


# Growth of a plan over an earlier plan of the model, the baseline.


@dataclass(frozen=True, slots=True)
class GrownValue:
    """A value with more bytes than in the baseline, at the peak or as state; 0 bytes there for a new value."""

    value: str
    nbytes: int
    bytes_before: int


@dataclass(frozen=True)
class Growth:
    """The comparison of a plan with a baseline: arena, peak and state in bytes, and the values behind the growth.

    values   the values behind a larger peak, the largest growth first; empty if the peak did not grow
    state    the values behind more state, which lies outside the arena; empty if the state did not grow
    options  the options of planning that differ: the name, and the values now and before
    """

    arena_bytes: int
    arena_bytes_before: int
    peak_bytes: int
    peak_bytes_before: int
    values: tuple[GrownValue, ...]
    options: tuple[tuple[str, str, str], ...] = ()
    state_bytes: int = 0
    state_bytes_before: int = 0
    state: tuple[GrownValue, ...] = ()

    @property
    def is_grown(self) -> bool:
        """True if the arena, the peak or the state needs more bytes than in the baseline."""
        return self._arena_is_grown or self.state_bytes > self.state_bytes_before

    @property
    def _arena_is_grown(self) -> bool:
        return self.arena_bytes > self.arena_bytes_before or self.peak_bytes > self.peak_bytes_before

    @property
    def description(self) -> str:
        """The comparison in a line, and a line for each value behind a larger peak or state."""
        pairs = [
            ("arena", self.arena_bytes_before, self.arena_bytes),
            ("peak", self.peak_bytes_before, self.peak_bytes),
        ]
        if self.state_bytes or self.state_bytes_before:
            pairs.append(("state", self.state_bytes_before, self.state_bytes))
        pairs.sort(key=lambda pair: pair[2] <= pair[1])  # the figures that grew stand first
        head = ", ".join(f"{what} {before:,} -> {now:,} bytes" for what, before, now in pairs)
        lines = [
            f"  {printable(each.value)}: {each.nbytes:,} bytes at the peak, {each.bytes_before:,} in the baseline"
            for each in self.values
        ]
        if self._arena_is_grown and not lines:
            cause = "sharing or alignment" if self.peak_bytes > self.peak_bytes_before else "only the packing"
            lines = [f"  no value grew at the peak: {cause} needs more bytes"]
        lines += [
            f"  {printable(each.value)}: {each.nbytes:,} bytes of state, {each.bytes_before:,} in the baseline"
            for each in self.state
        ]
        lines += [
            f"  planned with other options: {name} {now}, in the baseline {before}"
            for name, now, before in self.options
            if self.is_grown
        ]
        return "\n".join([head, *lines])


def growth(plan: MemoryPlan, baseline: MemoryPlan) -> Growth:
    """Return the growth of a plan over a baseline. Values correspond by name."""
    options = tuple(
        (name, str(of(plan)), str(of(baseline))) for name, of in _OPTIONS.items() if of(plan) != of(baseline)
    )
    at_peak = _grown_values(_bytes_at_peak(plan), _bytes_at_peak(baseline))
    state, state_before = state_outside(plan), state_outside(baseline)
    state_bytes, state_bytes_before = sum(state.values()), sum(state_before.values())
    return Growth(
        plan.arena_bytes,
        baseline.arena_bytes,
        plan.peak.nbytes,
        baseline.peak.nbytes,
        at_peak if plan.peak.nbytes > baseline.peak.nbytes else (),
        options,
        state_bytes,
        state_bytes_before,
        _grown_values(state, state_before) if state_bytes > state_bytes_before else (),
    )


def _grown_values(now: Mapping[str, int], before: Mapping[str, int]) -> tuple[GrownValue, ...]:
    """Return the values with more bytes than before, the largest growth first."""
    grown = [GrownValue(value, nbytes, before.get(value, 0)) for value, nbytes in now.items()]
    grown = [each for each in grown if each.nbytes > each.bytes_before]
    return tuple(sorted(grown, key=lambda each: (each.bytes_before - each.nbytes, each.value)))


def io_of(plan: MemoryPlan) -> Literal["arena", "bound"]:
    """Return the storage of inputs and outputs: "bound" if one has a storage of its own, else "arena"."""
    return "bound" if any(storage.kind in ("input", "output") for storage in plan.storages) else "arena"


_OPTIONS: Mapping[str, Callable[[MemoryPlan], object]] = {
    "--align": lambda plan: plan.alignment,
    "--order": lambda plan: plan.recipe.order,
    "--optimize": lambda plan: plan.recipe.optimize,
    "--patches": lambda plan: plan.recipe.changed.partition(PATCHES_PREFIX)[2] or "none",
    "--io": io_of,
}
"""The options of planning that a plan records, by the name on the command line."""


def _bytes_at_peak(plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of the values live at the peak, by name."""
    alive = set(plan.peak.values)
    return {place.value: place.region.nbytes for place in plan.placements if place.value in alive}

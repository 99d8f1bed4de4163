"""The buffers of a plan: placements sharing bytes on purpose; different buffers must not overlap while live.

Rules: false-buffer, false-sharing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sublet.base.errors import Finding
from sublet.checker.liveness import Ranges, merge_ranges
from sublet.checker.sharing_reasons import PlacementSets, SharingReasons
from sublet.plan import POINTER, MemoryPlan, Placement, Region
from sublet.plan.schedule import is_serial

REASONED_HOWS = ("view", "part", "inplace", "carry", "slice", "row")
"""The values of `Placement.how` that need a derived sharing reason."""
JOINED = "joined"
BufferKey = int | str
"""The number of a buffer in an arena, or the name of a bound storage: a bound storage is one buffer."""


class CheckerSegment(NamedTuple):
    """Bytes [low, high) of an arena, and the points where the bytes are needed."""

    low: int
    high: int
    live: Ranges


@dataclass(frozen=True, slots=True)
class CheckerBuffer:
    """A buffer: its bytes in an arena, its live range and its members, without slices and rows.

    In one stream some parts of a buffer may be dead while the rest is live: `segments` are the live segments, the
    lowest first.
    """

    storage: str
    low: int
    high: int
    live: Ranges
    members: tuple[int, ...]
    segments: tuple[CheckerSegment, ...]

    @property
    def nbytes(self) -> int:
        """The size of the buffer."""
        return self.high - self.low

    def sizes_needed_at(self, point: int) -> list[int]:
        """Return the sizes of the segments live at a point."""
        return [strip.high - strip.low for strip in self.segments if _contains(strip.live, point)]


def rebuild_buffers(plan: MemoryPlan, live: Mapping[int, Ranges]) -> dict[int, CheckerBuffer]:
    """Return the buffers in the arenas, by number, for the live ranges `live` of placements."""
    members: dict[int, list[int]] = {}
    for i, place in enumerate(plan.placements):
        if place.buffer >= 0 and not place.strides:
            members.setdefault(place.buffer, []).append(i)
    buffers = {}
    serial = is_serial(plan.schedule)
    for number, numbers in members.items():
        regions = [plan.placements[i].region for i in numbers]
        low, high = min(region.offset for region in regions), max(region.end for region in regions)
        lives = [live.get(i, ()) for i in numbers]
        always = merge_ranges(piece for pieces in lives for piece in pieces)
        strips = _live_segments(regions, lives, plan.alignment) if serial else (CheckerSegment(low, high, always),)
        buffers[number] = CheckerBuffer(regions[0].storage, low, high, always, tuple(numbers), strips)
    return buffers


def _live_segments(regions: Sequence[Region], lives: Sequence[Ranges], alignment: int) -> tuple[CheckerSegment, ...]:
    """Return the live segments of values, in cells of `alignment` bytes, without the bytes above the highest value.

    Adjacent cells with equal live ranges form one segment.
    """
    changes: dict[int, list[int]] = {}
    for i, region in enumerate(regions):
        if lives[i]:
            changes.setdefault(region.offset // alignment * alignment, []).append(i)
            changes.setdefault(-(-region.end // alignment) * alignment, []).append(i)
    edges = sorted(changes)
    inside: set[int] = set()
    segments: list[CheckerSegment] = []
    reached = -1
    for low, after in pairwise(edges):
        inside.symmetric_difference_update(changes[low])
        if not inside:
            continue
        live = merge_ranges(piece for i in inside for piece in lives[i])
        first = segments.pop().low if segments and reached == low and segments[-1].live == live else low
        segments.append(CheckerSegment(first, min(after, max(regions[i].end for i in inside)), live))
        reached = after
    return tuple(segments)


def buffer_key(plan: MemoryPlan, place: Placement, arenas: frozenset[str]) -> BufferKey | None:
    """Return the key of the buffer of a placement; None for a renamed value, and for an empty placement."""
    if place.how == POINTER or not place.region.nbytes:
        return None
    return place.buffer if place.region.storage in arenas else place.region.storage


def check_buffers(plan: MemoryPlan, reasons: SharingReasons, standing: Mapping[str, set[int]]) -> Iterator[Finding]:
    """Yield findings for wrong buffer numbers, buffers without a single owner, and unjustified sharing.

    `standing` maps each pointer to the placements bound to the pointer at any point.
    """
    arenas = frozenset(storage.name for storage in plan.arenas)
    groups: dict[BufferKey, list[int]] = {}
    for i, place in enumerate(plan.placements):
        group = buffer_key(plan, place, arenas)
        in_arena = place.region.storage in arenas and group is not None
        if (place.buffer >= 0) is not in_arena:
            yield _placement_finding(
                "false-buffer",
                place,
                f"has buffer {place.buffer}",
                "expected -1 for a value without bytes in an arena, else a buffer number",
            )
        if group is None:
            if place.how not in ("own", POINTER) or place.shares:
                yield _placement_finding(
                    "false-sharing",
                    place,
                    f"is declared as {_declared_reason(place)}",
                    "a value without bytes shares none",
                )
            continue
        groups.setdefault(group, []).append(i)
    tied: dict[tuple[str, int], list[tuple[int, set[str]]]] = {}
    kin = PlacementSets()
    for (how, one, other), names in reasons.items():
        tied.setdefault((how, one), []).append((other, names))
        if buffer_key(plan, plan.placements[one], arenas) == buffer_key(plan, plan.placements[other], arenas):
            kin.merge_sets(one, other)
    for group, members in groups.items():
        yield from _check_one_buffer(plan, members, kin)
        inside = set(members)
        names = {plan.placements[i].value for i in members}
        names |= {pointer for pointer, bound in standing.items() if bound & inside}
        for i in members:
            place = plan.placements[i]
            around = [known for other, known in tied.get((place.how, i), ()) if other in inside]
            if not _is_justified(place, around, names):
                yield _placement_finding(
                    "false-sharing", place, f"is declared as {_declared_reason(place)}", _advice(group)
                )


def _check_one_buffer(plan: MemoryPlan, members: Sequence[int], kin: PlacementSets) -> Iterator[Finding]:
    """Yield findings for a disconnected buffer, a buffer in several storages, or a buffer without a single owner."""
    places = [plan.placements[i] for i in members]
    for place in places:
        if place.region.storage != places[0].region.storage:
            yield _placement_finding("false-buffer", place, "lies in another storage than the rest of its buffer")
    for i, place in zip(members, places, strict=True):
        if kin.find_set(i) != kin.find_set(members[0]):
            what = f"is in one buffer with %{places[0].value}, but the program does not make them share bytes"
            yield _placement_finding("false-buffer", place, what)
    first = [place for place in places if place.how == "own"]
    if len(first) != 1:
        what = f"is in a buffer with {len(first)} values declared as own, expected 1"
        yield _placement_finding(
            "false-sharing", places[0], what, "declare the first value as own, and the others as sharing its bytes"
        )


def _is_justified(place: Placement, around: Sequence[set[str]], names: set[str]) -> bool:
    """True if the declared reason of a placement to share bytes is among the derived reasons."""
    if place.how == "own":
        return not place.shares
    if place.how == JOINED:
        return place.shares in names
    return place.how in REASONED_HOWS and any(place.shares in known for known in around)


def _declared_reason(place: Placement) -> str:
    """Return the declared reason in words."""
    return f"{place.how} {place.shares}".strip()


def _advice(group: BufferKey) -> str:
    """Return advice for a placement without a reason."""
    where = f"buffer {group}" if isinstance(group, int) else f"storage {group}"
    return f"no op and no control-flow edge implies that in {where}"


def check_live_overlaps(plan: MemoryPlan, known: Mapping[int, CheckerBuffer]) -> Iterator[Finding]:
    """Yield findings for different buffers that overlap in bytes live at a common point."""
    strips = [(number, strip) for number, block in known.items() for strip in block.segments]
    events: list[tuple[int, int, int]] = []
    for i, (_, strip) in enumerate(strips):
        for begin, end in strip.live:
            events += [(begin, 1, i), (end, 0, i)]
    active: dict[str, list[tuple[int, int]]] = {}
    for _, begins, i in sorted(events):
        number, strip = strips[i]
        row = active.setdefault(known[number].storage, [])
        at = bisect_left(row, (strip.low, i))
        if not begins:
            if at < len(row) and row[at] == (strip.low, i):
                del row[at]
            continue
        for _, j in row[max(0, at - 1) : at + 1]:
            other, beside = strips[j]
            if beside.low < strip.high and strip.low < beside.high:
                one = plan.placements[known[number].members[0]]
                what = f"lies in buffer {number}, which overlaps buffer {other} while both are live"
                yield _placement_finding("false-buffer", one, what, "values that share bytes must be in one buffer")
        row.insert(at, (strip.low, i))


def _contains(ranges: Ranges, point: int) -> bool:
    """True if any range contains the point."""
    return any(begin <= point < end for begin, end in ranges)


def _placement_finding(rule: str, place: Placement, what: str, fix: str = "") -> Finding:
    """Return a finding about a placement."""
    return Finding(rule, f"value %{place.value}", what, fix)

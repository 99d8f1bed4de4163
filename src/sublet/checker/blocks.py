"""The buffers of a plan: which placements are one block on purpose, and that different blocks stay apart.

Rules: false-buffer, false-sharing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sublet.base.errors import Finding
from sublet.checker.kinship import Kin, Ties
from sublet.checker.lives import Ranges, union, within
from sublet.plan import HOLE, POINTER, MemoryPlan, Placement

HOWS = ("view", "part", "inplace", "carry", "slice", "row")
JOINED = "joined"
Group = int | str
"""The number of a buffer, or the name of the bound storage that is one."""


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of one buffer in its arena and when they are needed; slices and rows lie in those of their whole."""

    storage: str
    low: int
    high: int
    live: Ranges
    members: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.high - self.low


def blocks(plan: MemoryPlan, live: Mapping[int, Ranges]) -> dict[int, Block]:
    """The buffers in the arenas, by number, where placements are live as `live` says."""
    members: dict[int, list[int]] = {}
    for i, place in enumerate(plan.placements):
        if place.buffer >= 0 and not place.strides:
            members.setdefault(place.buffer, []).append(i)
    found = {}
    for number, several in members.items():
        regions = [plan.placements[i].region for i in several]
        low, high = min(region.offset for region in regions), max(region.end for region in regions)
        lives = union(piece for i in several for piece in live.get(i, ()))
        found[number] = Block(regions[0].storage, low, high, lives, tuple(several))
    return found


def group_of(plan: MemoryPlan, place: Placement, arenas: frozenset[str]) -> Group | None:
    """The block that a placement is in; None for a pointer and for what has no bytes."""
    if place.how == POINTER or not place.region.nbytes:
        return None
    return place.buffer if place.region.storage in arenas else place.region.storage


def check_groups(plan: MemoryPlan, found: Ties, standing: Mapping[str, set[int]]) -> Iterator[Finding]:
    """Every block has its number, one that came first, and for all others a reason to be the same bytes.

    `standing` gives the placements that each pointer stands for at some time.
    """
    arenas = frozenset(storage.name for storage in plan.arenas)
    groups: dict[Group, list[int]] = {}
    for i, place in enumerate(plan.placements):
        group = group_of(plan, place, arenas)
        in_arena = place.region.storage in arenas and group is not None
        if (place.buffer >= 0) is not in_arena:
            yield _wrong("false-buffer", place, f"has buffer {place.buffer}", "-1 is for what has no bytes in an arena")
        if group is None:
            if place.how not in ("own", POINTER) or place.shares:
                yield _wrong("false-sharing", place, f"is said to be {_words(place)}", "it has no bytes")
            continue
        groups.setdefault(group, []).append(i)
    tied: dict[tuple[str, int], list[tuple[int, set[str]]]] = {}
    kin = Kin()
    for (how, one, other), names in found.items():
        tied.setdefault((how, one), []).append((other, names))
        if group_of(plan, plan.placements[one], arenas) == group_of(plan, plan.placements[other], arenas):
            kin.join(one, other)
    for group, members in groups.items():
        yield from _group(plan, members, kin)
        inside = set(members)
        names = {plan.placements[i].value for i in members}
        names |= {pointer for pointer, several in standing.items() if several & inside}
        for i in members:
            place = plan.placements[i]
            around = [known for other, known in tied.get((place.how, i), ()) if other in inside]
            if not _true(place, around, names):
                yield _wrong("false-sharing", place, f"is said to be {_words(place)}", _reason(group))


def _group(plan: MemoryPlan, members: Sequence[int], kin: Kin) -> Iterator[Finding]:
    """A block is in one storage, one of it came first, and what is not tied to that lies in holes of it."""
    places = [plan.placements[i] for i in members]
    for place in places:
        if place.region.storage != places[0].region.storage:
            yield _wrong("false-buffer", place, "lies in another storage than the others of its buffer")
    first = [place for place in places if place.how == "own"]
    tied: dict[int, list[Placement]] = {}
    for i, place in zip(members, places, strict=True):
        tied.setdefault(kin.of(i), []).append(place)
    around = next((several for several in tied.values() if first and first[0] in several), tied[kin.of(members[0])])
    guests = []
    for several in tied.values():
        holes = sum(place.how == HOLE for place in several)
        if several is not around and holes == 1:
            guests.append(several)
        elif several is not around:
            what = f"is in one buffer with %{around[0].value}, but nothing makes them the same bytes"
            yield _wrong("false-buffer", several[0], what)
        elif holes:
            yield _wrong("false-sharing", several[0], "is tied to what is said to lie in a hole of its buffer")
    if len(first) != 1:
        what = f"is in a buffer of which {len(first)} values are said to have bytes of their own"
        yield _wrong("false-sharing", places[0], what, "one came first, and the others share its bytes")
    if guests:
        yield from _holes(around, guests)


def _holes(around: Sequence[Placement], guests: Sequence[Sequence[Placement]]) -> Iterator[Finding]:
    """Guests lie within the bytes of a buffer, and within the life that the plan tells of it."""
    low, high, life = _extent(around)
    for guest in guests:
        first, last, live = _extent(guest)
        if first < low or last > high or not within(live, life):
            what = f"lies in a hole of the buffer of %{around[0].value}, but reaches beyond its bytes or its life"
            yield _wrong("false-sharing", guest[0], what)


def _extent(places: Sequence[Placement]) -> tuple[int, int, Ranges]:
    """The bytes from the first to the last of some values, and when any of them is needed."""
    low, high = min(place.region.offset for place in places), max(place.region.end for place in places)
    return low, high, union(piece for place in places for piece in place.live)


def _true(place: Placement, around: Sequence[set[str]], names: set[str]) -> bool:
    if place.how == "own":
        return not place.shares
    if place.how in (JOINED, HOLE):
        return place.shares in names
    return place.how in HOWS and any(place.shares in known for known in around)


def _words(place: Placement) -> str:
    return f"{place.how} {place.shares}".strip()


def _reason(group: Group) -> str:
    where = f"buffer {group}" if isinstance(group, int) else f"storage {group}"
    return f"no op and no edge of control flow makes it so in {where}"


def check_apart(plan: MemoryPlan, known: Mapping[int, Block]) -> Iterator[Finding]:
    """Different buffers do not overlap while both are live."""
    events: list[tuple[int, int, int]] = []
    for number, block in known.items():
        for begin, end in block.live:
            events += [(begin, 1, number), (end, 0, number)]
    active: dict[str, list[tuple[int, int]]] = {}
    for _, begins, number in sorted(events):
        block = known[number]
        row = active.setdefault(block.storage, [])
        at = bisect_left(row, (block.low, number))
        if not begins:
            if at < len(row) and row[at] == (block.low, number):
                del row[at]
            continue
        for _, other in row[max(0, at - 1) : at + 1]:
            if known[other].low < block.high and block.low < known[other].high:
                one = plan.placements[block.members[0]]
                what = f"lies in buffer {number}, which overlaps buffer {other} while both are live"
                yield _wrong("false-buffer", one, what, "what shares bytes on purpose is one buffer")
        row.insert(at, (block.low, number))


def _wrong(rule: str, place: Placement, what: str, fix: str = "") -> Finding:
    return Finding(rule, f"value %{place.value}", what, fix)

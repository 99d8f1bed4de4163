"""Memory that programs need only while one of their calls runs: the same bytes for all programs that take turns.

    alone   A bytes for each of n calls in flight                                        n A
    apart   K bytes for each, kept from forward to backward, and S that pass, for all    n K + max S

`max S` is the largest S of all programs that are apart, which use the same bytes in turn. K + S is no less than A, so
for one call in flight alone is best; where several are, of one program or of the graphs that a model breaks into, most
of their arenas would hold nothing while another one runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from sublet.base.forks import fork_lock
from sublet.base.ranges import merge
from sublet.ops.cuts import CUT
from sublet.plan import MemoryPlan, Placement
from sublet.runtime.memory import aligned_bytes

LEAST = 1 << 20
"""Bytes that must be saved: plans are made anew for it."""


class Sizes(NamedTuple):
    """Bytes that a call needs: alone, A; apart, K that are kept and S that pass."""

    alone: int
    kept: int
    passing: int


class Sharing(Protocol):
    """A program with `arenas` of its own."""

    sizes: Sizes

    @property
    def is_apart(self) -> bool: ...

    @property
    def arenas(self) -> int: ...


@dataclass(eq=False)
class Common:
    """Bytes for one run at a time, which holds the lock. Who needs more gets others, and so does who comes next."""

    raw: Any
    lock: Any = field(default_factory=fork_lock)


class Programs:
    """All programs of this process that may share memory."""

    def __init__(self) -> None:
        self._lock = fork_lock()
        self._programs: WeakSet[Sharing] = WeakSet()
        self._commons: WeakSet[Common] = WeakSet()

    def add(self, program: Sharing) -> None:
        """From now on it counts."""
        with self._lock:
            self._programs.add(program)

    def should_be_apart(self, program: Sharing) -> bool:
        """Whether all together need least where what this one keeps lies apart; once it does, it stays so."""
        with self._lock:
            others = [each for each in self._programs if each is not program]
        return program.is_apart or program.sizes.passing <= _most_passing([program, *others])

    def common(self, nbytes: int, alignment: int) -> Common:
        """Bytes that nobody runs in now."""
        with self._lock:
            free = [each for each in self._commons if not each.lock.locked()]
            found = max(free, key=lambda each: int(each.raw.size), default=None)
            if found is None:
                found = Common(aligned_bytes(nbytes, alignment))
                self._commons.add(found)
            if found.raw.size < nbytes or found.raw.ctypes.data % alignment:
                found.raw = aligned_bytes(max(nbytes, found.raw.size), alignment)
            return found


PROGRAMS = Programs()


def _most_passing(programs: Sequence[Sharing]) -> int:
    """How many bytes to share: programs of which no more pass are apart then, and all need least; -1 to share none.

    Programs that are apart stay so. Only what passes in one of them is tried: bytes in between serve no more of them.
    """
    begin = max((each.sizes.passing for each in programs if each.is_apart), default=-1)
    alone = _together(programs, begin)
    best = min(
        ((_together(programs, each.sizes.passing), each.sizes.passing) for each in programs if not each.is_apart),
        default=(alone, begin),
    )
    return max(best[1], begin) if alone - best[0] >= LEAST else begin


def _together(programs: Iterable[Sharing], common: int) -> int:
    """The bytes of all arenas, where `common` ones are shared by all programs that need no more."""
    total = max(common, 0)
    for each in programs:
        shares = each.is_apart or each.sizes.passing <= common
        total += max(1, each.arenas) * (each.sizes.kept if shares else each.sizes.alone)
        if each.is_apart:
            total += max(0, each.sizes.passing - max(common, 0))
    return total


def sizes_of(plan: MemoryPlan) -> Sizes:
    """What a program with a plan in one arena needs, alone and apart, as far as its placements tell."""
    ops = {described.name: described.op for described in plan.nodes}
    cuts = [t for t, point in enumerate(plan.points) if ops.get(point.node) == CUT]
    alive: list[list[Placement]] = [[] for _ in plan.points]
    for place in plan.in_arenas:
        for begin, end in place.live:
            for point in range(begin, end):
                alive[point].append(place)
    block = _blocks(alive)
    kept = {block[id(place)] for cut in cuts for place in alive[cut]}
    passing = ([place for place in places if block[id(place)] not in kept] for places in alive)
    held = [place for place in plan.in_arenas if block[id(place)] in kept]
    return Sizes(plan.arena_bytes, _bytes(held), max(map(_bytes, passing), default=0))


def _blocks(alive: Sequence[Sequence[Placement]]) -> dict[int, int]:
    """By identity of a placement the number of its block: those that are alive together and meet are of one."""
    found = {id(place): id(place) for places in alive for place in places}

    def first(number: int) -> int:
        while found[number] != number:
            found[number] = number = found[found[number]]
        return number

    for places in alive:
        end, last = -1, 0
        for place in sorted(places, key=lambda each: each.region.offset):
            if place.region.offset < end:
                found[first(id(place))] = first(last)
            if place.region.end > end:
                end, last = place.region.end, id(place)
    return {number: first(number) for number in found}


def _bytes(places: Iterable[Placement]) -> int:
    """Of the union of their regions."""
    return sum(end - begin for begin, end in merge((each.region.offset, each.region.end) for each in places))

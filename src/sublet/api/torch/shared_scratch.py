"""A scratch arena shared by programs running in turn: memory needed only while a call runs.

    single arena   A bytes for each of n calls in flight                                              n A
    split          K bytes a call, saved from forward to backward, and S scratch bytes for all        n K + max S

`max S` is the largest S of all split programs; split programs use the same scratch bytes in turn. K + S is at least A,
so a single arena is best for a single call in flight. With several calls in flight, of a program or of the graphs of a
broken-up model, most single arenas would lie idle while another arena is in use, and splitting lowers the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from sublet.base.forks import fork_lock
from sublet.base.ranges import merge
from sublet.ops.suspension import SUSPEND
from sublet.plan import MemoryPlan, Placement
from sublet.runtime.memory import aligned_bytes

MIN_SAVED_BYTES = 1 << 20
"""Bytes to save in total before programs are split: splitting costs a new plan for each program."""


class ProgramSizes(NamedTuple):
    """Bytes of a call of one program.

    single_arena   A: everything in a single arena
    saved          K: tensors saved from forward to backward, if the program is split
    scratch        S: tensors of a single pass, if the program is split
    """

    single_arena: int
    saved: int
    scratch: int


class ArenaSharingProgram(Protocol):
    """A program with arenas, as seen by `ScratchRegistry`: sizes, arena count and split state."""

    sizes: ProgramSizes

    @property
    def is_split(self) -> bool: ...

    @property
    def arena_count(self) -> int: ...


@dataclass(eq=False)
class SharedScratch:
    """Scratch bytes for a single run at a time. The running program holds `lock`.

    A program in need of more bytes replaces `raw` by a larger array, also for all later programs.

    raw       the bytes
    lock      held while a program runs in the bytes
    reserved  True if a call owns the bytes without holding the lock yet; only for scratch bytes of one inference graph
    """

    raw: Any
    lock: Any = field(default_factory=fork_lock)
    reserved: bool = False


class ScratchRegistry:
    """All programs of the process allowed to share scratch memory."""

    def __init__(self) -> None:
        self._lock = fork_lock()
        self._programs: WeakSet[ArenaSharingProgram] = WeakSet()
        self._commons: WeakSet[SharedScratch] = WeakSet()

    def register(self, program: ArenaSharingProgram) -> None:
        """Count the arenas of a program from now on."""
        with self._lock:
            self._programs.add(program)

    def should_split(self, program: ArenaSharingProgram) -> bool:
        """True if the total memory of all programs is least with `program` split. A split program stays split."""
        with self._lock:
            others = [each for each in self._programs if each is not program]
        return program.is_split or program.sizes.scratch <= _best_shared_bytes([program, *others])

    def idle_scratch(self, nbytes: int, alignment: int) -> SharedScratch:
        """Return idle scratch bytes: at least `nbytes` bytes, aligned to `alignment` bytes.

        The method prefers the largest idle scratch, enlarges a scratch too small, and allocates if every scratch is in
        use.
        """
        with self._lock:
            free = [each for each in self._commons if not each.lock.locked()]
            scratch = max(free, key=lambda each: int(each.raw.size), default=None)
            if scratch is None:
                scratch = SharedScratch(aligned_bytes(nbytes, alignment))
                self._commons.add(scratch)
            if scratch.raw.size < nbytes or scratch.raw.ctypes.data % alignment:
                scratch.raw = aligned_bytes(max(nbytes, scratch.raw.size), alignment)
            return scratch


SCRATCH_REGISTRY = ScratchRegistry()


def _best_shared_bytes(programs: Sequence[ArenaSharingProgram]) -> int:
    """Return the size of the shared scratch, in bytes, with the least total memory; -1 for no shared scratch.

    Every program with at most as many scratch bytes is then split, and a split program stays split. The candidates are
    the scratch sizes of the programs: a size in between would serve no further program. Splitting must save
    `MIN_SAVED_BYTES`, since programs are planned again.
    """
    begin = max((each.sizes.scratch for each in programs if each.is_split), default=-1)
    alone = _total_bytes(programs, begin)
    best = min(
        ((_total_bytes(programs, each.sizes.scratch), each.sizes.scratch) for each in programs if not each.is_split),
        default=(alone, begin),
    )
    return max(best[1], begin) if alone - best[0] >= MIN_SAVED_BYTES else begin


def _total_bytes(programs: Iterable[ArenaSharingProgram], common: int) -> int:
    """Return the bytes of all arenas with a shared scratch of `common` bytes for all programs with fitting scratch."""
    total = max(common, 0)
    for each in programs:
        shares = each.is_split or each.sizes.scratch <= common
        total += max(1, each.arena_count) * (each.sizes.saved if shares else each.sizes.single_arena)
        if each.is_split:
            total += max(0, each.sizes.scratch - max(common, 0))
    return total


def program_sizes_of(plan: MemoryPlan) -> ProgramSizes:
    """Return the bytes of a program planned in a single arena, unsplit and split, as estimated from the placements.

    Blocks of placements live at a suspension point are saved; all other placements are scratch.
    """
    ops = {described.name: described.op for described in plan.nodes}
    cuts = [t for t, point in enumerate(plan.points) if ops.get(point.node) == SUSPEND]
    alive: list[list[Placement]] = [[] for _ in plan.points]
    for place in plan.in_arenas:
        for begin, end in place.live:
            for point in range(begin, end):
                alive[point].append(place)
    block = _overlapping_blocks(alive)
    kept = {block[id(place)] for cut in cuts for place in alive[cut]}
    passing = ([place for place in places if block[id(place)] not in kept] for places in alive)
    held = [place for place in plan.in_arenas if block[id(place)] in kept]
    return ProgramSizes(plan.arena_bytes, _union_bytes(held), max(map(_union_bytes, passing), default=0))


def _overlapping_blocks(alive: Sequence[Sequence[Placement]]) -> dict[int, int]:
    """Return the block number of each placement, keyed by `id(placement)`; union-find over overlapping placements.

    Placements live at the same point and overlapping in memory belong to one block.
    """
    parents = {id(place): id(place) for places in alive for place in places}

    def root_of(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for places in alive:
        end, last = -1, 0
        for place in sorted(places, key=lambda each: each.region.offset):
            if place.region.offset < end:
                parents[root_of(id(place))] = root_of(last)
            if place.region.end > end:
                end, last = place.region.end, id(place)
    return {number: root_of(number) for number in parents}


def _union_bytes(places: Iterable[Placement]) -> int:
    """Return the bytes of the union of the placements' regions."""
    return sum(end - begin for begin, end in merge((each.region.offset, each.region.end) for each in places))

"""Leases of arenas, and memory shared by programs: scratch bytes used in turn, and a stack of arenas in flight.

    single arena   A bytes for each of n calls in flight                                              n A
    stack          K bytes a call, saved from forward to backward, one call above another; the S scratch bytes of a
                   running call lie above the saved bytes of the call: max over calls (K of all calls before, K + S)

K + S is at least A, so a single arena is best for a single call in flight. The graphs of a broken-up model run forward
one after another, and backward in reverse order: most single arenas would lie idle while another arena is in use. On
the stack, the scratch of an early graph lies in the bytes saved later by the following graphs. A call without scratch
bytes, with A bytes saved, is on the stack too. Graphs never in flight at the same time, as of batches of two sizes, lie
in the same bytes of the stack. Inference programs save nothing, and use scratch bytes in turn.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import lcm
from threading import Lock, get_ident
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sublet.base.disjoint_sets import DisjointSets
from sublet.base.interrupts import fork_lock
from sublet.base.ranges import union_length
from sublet.integrations.torch.compile.joint_graph import CallResult, CapturedProgram, PassValue
from sublet.ops.op import SUSPEND
from sublet.packing.problem import round_up
from sublet.plan import MemoryPlan, Placement
from sublet.runtime.memory import Raw, aligned_bytes

if TYPE_CHECKING:
    from torch import Tensor

MIN_SAVED_BYTES = 1 << 20
"""Bytes to save in total before programs are split: splitting costs a new plan for each program."""


class LeasableArena(Protocol):
    """An arena for one call at a time, on any device."""

    @property
    def exclusive_scratch(self) -> AbstractContextManager[object]:
        """A context manager with exclusive use of the scratch bytes."""


Arena = TypeVar("Arena", bound=LeasableArena, contravariant=True)


class CapturedGraphPool(Protocol):
    """A pool of arenas for one captured program, on any device.

    captured     the program, changed if a budget requires
    plan         the plan of all arenas
    allocations  see `arena_pool.allocating_operators`
    """

    captured: CapturedProgram
    plan: MemoryPlan
    allocations: tuple[tuple[str, int], ...]

    def lease(self, args: Sequence[PassValue] = ()) -> ArenaLease:
        """Return the lease of an arena without another call, preferably of an arena bound to the weights in `args`."""


class _PoolOf(Protocol[Arena]):
    """A pool as seen by a lease: passes run in a leased arena, and the arena returns at the end."""

    plan: MemoryPlan

    def run_pass(
        self, arena: Arena, number: int, args: Sequence[PassValue], into: Mapping[int, Tensor] | None = None
    ) -> list[PassValue]: ...

    def saved_tensor(self, arena: Arena, result: CallResult, flight: ArenaLease) -> Tensor: ...

    def release(self, arena: Arena) -> None: ...


class ArenaLease:
    """The lease of an arena by one call.

    A lease without references is released too: every saved tensor in the arena holds a reference to the lease.

    recomputes        see `recomputes`
    run_pass          see `ArenaPool.run_pass`
    release           returns the arena to the pool
    read_again        the weights read again by a backward pass that recomputes values, each with the version at the
                      time of the forward pass
    saved_addresses   the addresses of the saved tensors
    """

    read_again: Sequence[tuple[Tensor, int]] = ()
    saved_addresses: Collection[int] = ()

    def __init__(self, pool: _PoolOf[Arena], arena: Arena) -> None:
        self.arena: LeasableArena = arena
        self.recomputes = recomputes(pool.plan)
        self.run_pass = partial(pool.run_pass, arena)
        self._saved_tensor = partial(pool.saved_tensor, arena)
        self.release = weakref.finalize(self, pool.release, arena)
        self.release.atexit = False

    def take_saved(self, captured: CapturedProgram) -> dict[int, Tensor]:
        """Return tensors over the saved tensors in the arena, by position, each with a reference to the lease."""
        saved = captured.passes[0].saved_results.items()
        tensors = {position: self._saved_tensor(result, self) for position, result in saved}
        self.saved_addresses = {each.data_ptr() for each in tensors.values() if each.numel()}
        return tensors


def recomputes(plan: MemoryPlan) -> bool:
    """True if a budget changed the program: a saved tensor may lose its content after the last reader."""
    return bool(plan.recipe.again or plan.recipe.split)


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
    """A program with arenas, as seen by `ScratchRegistry`: sizes, counts of arenas and calls, and split state."""

    sizes: ProgramSizes
    max_in_flight: int
    shares_in_turn: bool

    @property
    def is_split(self) -> bool: ...

    @property
    def arena_count(self) -> int: ...

    def discard_free_arenas(self) -> None: ...


@dataclass(eq=False)
class SharedScratch:
    """Scratch bytes for a single run at a time. The running program holds `lock`.

    A program in need of more bytes replaces `raw` by a larger array, also for all later programs.

    raw       the bytes
    lock      held while a program runs in the bytes
    reserved  True if a call owns the bytes without holding the lock yet; only for scratch bytes of one inference graph
    """

    raw: Raw
    lock: Lock = field(default_factory=fork_lock)
    reserved: bool = False


class StackRegion(NamedTuple):
    """The bytes of a call on an `ArenaStack`: saved in [begin, saved_end), scratch in [saved_end, end) of `raw`."""

    raw: Raw
    begin: int
    saved_end: int
    end: int

    def overwrites(self, other: StackRegion) -> bool:
        """True if a call in this region writes to bytes saved in the other region."""
        return self.raw is other.raw and self.begin < other.saved_end and other.begin < self.end


class ArenaStack(SharedScratch):
    """Bytes for all calls in flight: a new call lies above the saved bytes of the calls before.

    The method `claim` rejects a region in conflict with another call. A backward pass in another order than the reverse
    order of the forward passes may still find saved bytes above: see `saved_above`.

    guard    held while a region is chosen or claimed
    claimed  the regions of the calls in flight
    """

    def __init__(self, nbytes: int, alignment: int) -> None:
        super().__init__(aligned_bytes(nbytes, alignment))
        self.alignment = alignment
        self.guard = fork_lock()
        self.claimed: dict[int, StackRegion] = {}

    def new_region(self, saved: int, scratch: int) -> StackRegion:
        """Return a region above all calls in flight; the stack is enlarged if needed. The caller holds `guard`."""
        begin = max((each.saved_end for each in list(self.claimed.values())), default=0)
        saved_end = round_up(begin + saved, self.alignment)
        end = round_up(saved_end + scratch, self.alignment)
        if end > self.raw.size:
            self.raw = aligned_bytes(end, self.alignment)  # the calls in flight keep the bytes of before
        return StackRegion(self.raw, begin, saved_end, end)

    def resize(self, nbytes: int) -> None:
        """Enlarge the idle stack to `nbytes`, or replace more than twice as many bytes, left by dropped programs."""
        with self.guard:
            if not nbytes <= self.raw.size <= 2 * nbytes:
                self.raw = aligned_bytes(nbytes, self.alignment)

    def claim(self, owner: object, region: StackRegion) -> bool:
        """True if the region conflicts with no call in flight; the region is then claimed. The caller holds `guard`."""
        others = list(self.claimed.values())
        fits = region.raw is self.raw and not any(region.overwrites(each) for each in others)
        if fits:
            self.claimed[id(owner)] = region
        return fits

    def release(self, owner: object) -> None:
        """End the claim of a call. Takes no lock: the garbage collector may call the method at any time."""
        self.claimed.pop(id(owner), None)

    def saved_above(self, owner: object, region: StackRegion) -> list[slice]:
        """Return the bytes saved by other calls which a pass in the region would overwrite."""
        others = [each for key, each in list(self.claimed.items()) if key != id(owner) and region.overwrites(each)]
        return [slice(max(each.begin, region.begin), min(each.saved_end, region.end)) for each in others]


class ScratchRegistry:
    """All programs of the process allowed to share memory.

    stack  the stack of all training programs; None while single arenas need no more bytes
    """

    def __init__(self) -> None:
        self._lock = fork_lock()
        self._programs: WeakSet[ArenaSharingProgram] = WeakSet()
        self._commons: WeakSet[SharedScratch] = WeakSet()
        self._numbers = count()
        self._order: WeakKeyDictionary[ArenaSharingProgram, int] = WeakKeyDictionary()
        self._is_split: WeakKeyDictionary[ArenaSharingProgram, bool] = WeakKeyDictionary()
        self._decided: list[list[tuple[int, int]]] = []
        self._in_flight: dict[int, ArenaSharingProgram] = {}  # by id of the arena
        self._together = DisjointSets[int]()
        self._threads: WeakKeyDictionary[ArenaSharingProgram, set[int]] = WeakKeyDictionary()
        self._stack: weakref.ref[ArenaStack] | None = None

    def register(self, program: ArenaSharingProgram) -> None:
        """Count the arenas of a program from now on."""
        with self._lock:
            self._programs.add(program)
            self._order[program] = next(self._numbers)

    def record_lease(self, arena: object, program: ArenaSharingProgram) -> int:
        """Count a call in flight of a training program, and return the number of calls in flight of the program.

        The registry notes the programs in flight at the same time. Programs called by different threads count as such.
        """
        with self._lock:
            self._threads.setdefault(program, set()).add(get_ident())
            running = list(self._in_flight.values())
            self._in_flight[id(arena)] = program
            if running:  # earlier calls were united when the later of each two began
                self._together.union(self._order[running[-1]], self._order[program])
            return 1 + running.count(program)

    def end_lease(self, arena: object) -> None:
        """End the call in an arena. Takes no lock: the garbage collector may call the method at any time."""
        self._in_flight.pop(id(arena), None)

    def stack_for(self, program: ArenaSharingProgram, alignment: int) -> tuple[ArenaStack | None, bool]:
        """Return the stack, None for a program with single arenas, and True for a program to split.

        The registry decides for all programs together, while no call is in flight: then every program of the last step
        is known. A program on the stack stays there, and a split program stays split.
        """
        with self._lock:
            if not self._in_flight:
                self._decide()
            if program not in self._is_split:
                return None, False
            stack = self._stack() if self._stack is not None else None
            if stack is None or stack.alignment % alignment:
                common = lcm(alignment, stack.alignment if stack is not None else 1)
                stack = ArenaStack(self._stack_bytes(common), common)
                self._stack = weakref.ref(stack)
            return stack, self._is_split[program]

    def _training_programs(self) -> list[ArenaSharingProgram]:
        """Return the programs with a backward pass, in the order of the first calls."""
        found = [each for each in self._programs if not each.shares_in_turn]
        return sorted(found, key=self._order.__getitem__)

    def _decide(self) -> None:
        """Put all programs on the stack if the stack needs fewer bytes than the single arenas."""
        groups = self._groups_in_flight()
        state = [[(self._order[each], each.max_in_flight) for each in group] for group in groups]
        if state == self._decided:
            return
        self._decided = state
        splits = [_best_split(group) for group in groups]
        total = max((nbytes for _, nbytes in splits), default=0)
        alone = sum(each.max_in_flight * each.sizes.single_arena for group in groups for each in group)
        if len(self._is_split) or alone - total >= MIN_SAVED_BYTES:
            for group, (choice, _) in zip(groups, splits, strict=True):
                for program, is_split in zip(group, choice, strict=True):
                    if self._is_split.get(program) != is_split:
                        self._is_split[program] = is_split
                        program.discard_free_arenas()
            stack = self._stack() if self._stack is not None else None
            if stack is not None:
                stack.resize(self._stack_bytes(stack.alignment))

    def _groups_in_flight(self) -> list[list[ArenaSharingProgram]]:
        """Return the programs with a backward pass, in the order of the first calls, in groups in flight together.

        A program is first in a group of its own. A group that later proves too small costs a larger stack, and no
        wrong bytes: a call always lies above all calls in flight.
        """
        programs = self._training_programs()
        if len(set[int]().union(*(self._threads.get(each, ()) for each in programs))) > 1:
            return [programs]
        groups: defaultdict[int, list[ArenaSharingProgram]] = defaultdict(list)
        for each in programs:
            groups[self._together.find(self._order[each])].append(each)
        return list(groups.values())

    def _stack_bytes(self, alignment: int) -> int:
        """Return the bytes of the stack for the largest group, with room to align each call."""
        groups = self._groups_in_flight()
        needs = (_best_split(each)[1] + 2 * alignment * sum(one.max_in_flight for one in each) for each in groups)
        return max(needs, default=0)

    def should_split(self, program: ArenaSharingProgram) -> bool:
        """True if the memory of all programs using scratch bytes in turn is least with `program` split."""
        with self._lock:
            others = [each for each in self._programs if each is not program and each.shares_in_turn]
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


def _best_split(programs: Sequence[ArenaSharingProgram]) -> tuple[list[bool], int]:
    """Return for each program True if split, and the bytes of the stack: the least bytes for calls in this order.

    Dynamic programming from the last program to the first; `height` is the bytes needed above the calls before.
    """
    choice, height = [False] * len(programs), 0
    for at in range(len(programs) - 1, -1, -1):
        sizes, calls = programs[at].sizes, max(1, programs[at].max_in_flight)
        split = calls * sizes.saved + max(sizes.scratch, height)
        whole = calls * sizes.single_arena + height
        choice[at] = programs[at].is_split or split < whole
        height = split if choice[at] else whole
    return choice, height


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
    """Return the block number of each placement, keyed by `id(placement)`.

    Placements live at the same point and overlapping in memory belong to one block.
    """
    blocks = DisjointSets[int]()
    for places in alive:
        end, last = -1, 0
        for place in sorted(places, key=lambda each: each.region.offset):
            if place.region.offset < end:
                blocks.union(last, id(place))
            if place.region.end > end:
                end, last = place.region.end, id(place)
    return {id(place): blocks.find(id(place)) for places in alive for place in places}


def _union_bytes(places: Iterable[Placement]) -> int:
    """Return the bytes of the union of the placements' regions."""
    return union_length((each.region.offset, each.region.end) for each in places)

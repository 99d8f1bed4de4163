"""Locks for executables with shared memory: runs over the same bytes are serialized across threads.

Every executable has a private lock. The caller may let several executables compute in one arena, or lend the
weights of one executable to another. If one of two executables writes bytes of the other, both also take a shared
lock, common to all executables connected by shared memory. Bound inputs and outputs are excluded: the caller reads
and writes bound memory between runs, and must order the runs anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from time import sleep
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from sublet.base.errors import RunError
from sublet.base.interrupts import fork_lock, free_lock_in_child
from sublet.base.ranges import Ranges, merge, overlap

TRIES, PAUSE_SECONDS = 500, 0.01
"""Attempts to find the executables of a group idle, and the pause between: five seconds in all, then RunError."""

if TYPE_CHECKING:
    _Lock = Any
else:
    _Lock = type(RLock())


class SharedLock(_Lock):  # type: ignore[misc]  # RLock is a C type without a public name
    """The lock of all executables connected by shared memory.

    running   the name of the executable running under the lock; "" between runs
    """

    running: str = ""


class _Turn:
    """Notes in a shared lock, as a context manager, which executable runs. A generator would be slower."""

    __slots__ = ("_lock", "_name")

    def __init__(self, lock: SharedLock, name: str) -> None:
        self._lock, self._name = lock, name

    def __enter__(self) -> None:
        self._lock.running = self._name

    def __exit__(self, *raised: object) -> None:
        self._lock.running = ""


class RunLocks:
    """The locks of an executable: a private lock, and the lock shared with executables over the same memory.

    Take `own` first: `with locks.own, locks.shared_lock():`. Both locks are C locks, so that no interrupt can occur
    between the acquisition and its record.
    """

    def __init__(self) -> None:
        self.own = RLock()
        self._lock = SharedLock()
        self._spans: dict[str, tuple[int, int, bool]] = {}
        self._kept_spans: dict[str, Ranges] = {}
        self._is_settled = True
        self._written: Ranges = ()
        self._all: Ranges = ()
        self._kept: Ranges = ()
        self._overwrites: tuple[ref[RunLocks], ...] = ()  # those with kept bytes written here
        self._is_overwritten = False
        with _MUTEX:
            _ALL_LOCKS.add(self)

    def claim(self, storage: str, begin: int, end: int, writes: bool, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Record that the executable uses the bytes [begin, end) for a possibly shared storage.

        `kept` are the ranges of the storage with contents needed by the next run.
        """
        span = (begin, end, writes)
        if self._spans.get(storage) != span and begin < end:
            self._spans[storage] = span
            self._kept_spans[storage] = tuple((begin + first, begin + last) for first, last in kept)
            self._is_settled = False

    def enter(self) -> bool:
        """Mark the kept bytes of other executables as overwritten; True if others overwrote bytes kept here.

        The caller holds both locks.
        """
        for other in filter(None, (each() for each in self._overwrites)):
            other._is_overwritten = True
        lost, self._is_overwritten = self._is_overwritten, False
        return lost

    def shared_lock(self) -> SharedLock:
        """Return the lock common to all executables connected by shared memory. The caller holds `own`.

        Raises RunError when executables with different locks stay busy while their groups must merge.
        """
        if not self._is_settled:
            self._join_group()
        return self._lock

    def running(self, name: str) -> _Turn:
        """Return a guard of a run under both locks, a context manager.

        Raises RunError when this thread already runs an executable over the same bytes, as from a command.
        """
        if self._lock.running:
            raise RunError(f"{name} cannot run inside a run of {self._lock.running}: both use the same bytes")
        return _Turn(self._lock, name)

    def renew_locks(self) -> bool:
        """Free the locks in the child of a fork; True if another thread was in a run of the executable."""
        if free_lock_in_child(self._lock):
            self._lock.running = ""
        return free_lock_in_child(self.own)

    def _join_group(self) -> None:
        """Share a lock with all executables over the same memory, and with no further executable."""
        for _ in range(TRIES):
            with _MUTEX:
                if self._try_to_join():
                    self._is_settled = True
                    return
            sleep(PAUSE_SECONDS)
        raise RunError(
            "the executable joins two groups of executables in one memory, and one runs. Bind memory while none runs."
        )

    def _try_to_join(self) -> bool:
        """Recompute the group of the executable; True if all members share its lock, False if a member is busy."""
        self._written = merge((begin, end) for begin, end, writes in self._spans.values() if writes)
        self._all = merge((begin, end) for begin, end, _ in self._spans.values())
        self._kept = merge(span for spans in self._kept_spans.values() for span in spans)
        others = [each for each in _ALL_LOCKS if each is not self]
        met = [each for each in others if self._writes_shared_bytes(each)]
        self._overwrites = tuple(ref(each) for each in met if overlap(self._written, each._kept))
        for other in others:
            still = tuple(each for each in other._overwrites if each() not in (None, self))
            other._overwrites = (*still, ref(self)) if overlap(other._written, self._kept) else still
        if not any(each._lock is self._lock for each in met):
            self._lock = SharedLock()  # a new group: the shared memory was replaced
        for other in met:
            group = [each for each in others if each._lock is self._lock]
            if other._lock is not self._lock and not _move_to_lock(group, other._lock):
                return False
            self._lock = other._lock
        return True

    def _writes_shared_bytes(self, other: RunLocks) -> bool:
        """True if either executable writes bytes used by the second."""
        return overlap(self._written, other._all) or overlap(other._written, self._all)


_ALL_LOCKS: WeakSet[RunLocks] = WeakSet()
_MUTEX = fork_lock()


def _move_to_lock(group: Sequence[RunLocks], lock: SharedLock) -> bool:
    """Give another lock to executables, unless an executable runs; True if all have the lock."""
    idle: list[RunLocks] = []
    try:
        for each in group:
            if not each.own.acquire(blocking=False):
                return False
            idle.append(each)
        for each in group:
            each._lock = lock
        return True
    finally:
        for each in idle:
            each.own.release()

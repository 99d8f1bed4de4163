"""Turns: executables that compute in the same bytes run one after another, whatever threads call them.

Every executable has a lock of its own. The caller may let several executables compute in one arena, or lend the
weights of one to another. Where one of two executables writes to bytes of the other, both take one more lock, which is
the same for all executables that meet in memory. Bound inputs and outputs are left out: the caller reads and
writes these between runs, and orders the runs anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from time import sleep
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sublet.base.errors import RunError
from sublet.base.forks import fork_lock, freed
from sublet.base.ranges import merge

Ranges = Sequence[tuple[int, int]]

TRIES, PAUSE_SECONDS = 500, 0.01
"""How often, and after what pause, an executable asks for those that it joins to be idle: five seconds in all."""

if TYPE_CHECKING:
    _Lock = Any
else:
    _Lock = type(RLock())


class SharedLock(_Lock):  # type: ignore[misc]  # a lock of C
    """The lock of all executables that meet in memory.

    running   names the executable that runs under the lock; "" between runs
    """

    running: str = ""


class Turn:
    """When one executable may run: it holds its own lock, and the one that it shares.

    The lock `own` is taken first: `with turn.own, turn.shared():`. Both are locks of C, so that no interrupt comes
    between taking and noting that they are taken.
    """

    def __init__(self) -> None:
        self.own = RLock()
        self._lock = SharedLock()
        self._spans: dict[str, tuple[int, int, bool]] = {}
        self._is_settled = True
        self._written: Ranges = ()
        self._all: Ranges = ()
        with _MUTEX:
            _TURNS.add(self)

    def claim(self, storage: str, begin: int, end: int, writes: bool) -> None:
        """Note that the executable has the bytes [begin, end) for a storage, which others may have too."""
        span = (begin, end, writes)
        if self._spans.get(storage) != span and begin < end:
            self._spans[storage] = span
            self._is_settled = False

    def shared(self) -> SharedLock:
        """Return the lock that all executables share which meet in memory. The caller holds `own`.

        Raises RunError when executables that did not share a lock before do not come to rest.
        """
        if not self._is_settled:
            self._settle()
        return self._lock

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Around a run, which holds both locks.

        Raises RunError when this thread runs an executable over the same bytes already, as from a command.
        """
        lock = self._lock
        if lock.running:
            raise RunError(f"{name} cannot run inside of a run of {lock.running}: both compute in the same bytes")
        lock.running = name
        try:
            yield
        finally:
            lock.running = ""

    def renewed(self) -> bool:
        """Free the locks in the child of a fork; True if another thread was in a run of the executable."""
        if freed(self._lock):
            self._lock.running = ""
        return freed(self.own)

    def _settle(self) -> None:
        """Share a lock with those that the executable meets, and no lock with others."""
        for _ in range(TRIES):
            with _MUTEX:
                if self._is_joined():
                    self._is_settled = True
                    return
            sleep(PAUSE_SECONDS)
        raise RunError("the executable joins two groups of executables in one memory: bind memory while none runs")

    def _is_joined(self) -> bool:
        self._written = merge((begin, end) for begin, end, writes in self._spans.values() if writes)
        self._all = merge((begin, end) for begin, end, _ in self._spans.values())
        others = [each for each in _TURNS if each is not self]
        met = [each for each in others if self._meets(each)]
        if not any(each._lock is self._lock for each in met):
            self._lock = SharedLock()  # of its own: memory was bound elsewhere
        for other in met:
            group = [each for each in others if each._lock is self._lock]
            if other._lock is not self._lock and not _moved(group, other._lock):
                return False
            self._lock = other._lock
        return True

    def _meets(self, other: Turn) -> bool:
        return _overlap(self._written, other._all) or _overlap(other._written, self._all)


_TURNS: WeakSet[Turn] = WeakSet()
_MUTEX = fork_lock()


def _moved(group: Sequence[Turn], lock: SharedLock) -> bool:
    """Give another lock to executables, unless one of them runs; True if all have it."""
    idle: list[Turn] = []
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


def _overlap(first: Ranges, second: Ranges) -> bool:
    """True if a range of one meets a range of the other; both are sorted and disjoint."""
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i][0] < second[j][1] and second[j][0] < first[i][1]:
            return True
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return False

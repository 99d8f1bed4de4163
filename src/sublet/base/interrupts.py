"""Interruptions: delays of Ctrl-C until a consistent state, and repair of locks and threads in a fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from sublet.base.optional_imports import imported_module


@contextmanager
def defer_interrupts() -> Iterator[list[Any]]:
    """Defer interrupts (SIGINT) until the block ends; yield the list of interrupts received until now.

    When the block ends the previous handler runs once for the first interrupt. Outside of the main thread the context
    manager does nothing.
    """
    received: list[Any] = []
    previous = signal.getsignal(signal.SIGINT)
    # None: the handler was not installed from Python, so Python cannot restore the handler.
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield received
        return
    signal.signal(signal.SIGINT, lambda *given: received.append(given))
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, previous)
        if received and callable(previous):
            previous(*received[0])


@contextmanager
def record_first_interrupt() -> Iterator[list[Any]]:
    """Record the first interrupt, for an orderly end of the block; raise KeyboardInterrupt at the second interrupt.

    Yields the list of interrupts received until now. Outside of the main thread the context manager does nothing.
    """
    received: list[Any] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield received
        return

    def note_interrupt(*given: Any) -> None:
        received.append(given)
        if len(received) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, previous)


# Repair of locks and threads in a child process of `os.fork`.
#
# A fork copies one thread only. A lock held by another thread at the time of the fork stays locked in the child for
# ever, unless the child replaces the lock.


class Renewable(Protocol):
    """An object owning locks or threads."""

    def renew_in_child(self) -> None:
        """Make the object usable in the child of a fork, or raise an error with the reason."""


_LOCKS: WeakSet[Any] = WeakSet()
_RENEWED: WeakSet[Renewable] = WeakSet()


def fork_lock() -> Lock:
    """Return a lock released in the child of a fork, even if a thread of the parent held the lock."""
    lock = Lock()
    release_in_children(lock)
    return lock


def release_in_children(lock: Any) -> None:
    """Release a lock in every child of a fork, even if a thread of the parent holds the lock."""
    _LOCKS.add(lock)


def renew_in_children(renewable: Renewable) -> None:
    """Call `renew_in_child` of the object in every child of a fork, as long as the object exists."""
    _RENEWED.add(renewable)


def free_lock_in_child(lock: Any) -> bool:
    """Release a re-entrant lock held by a thread of the parent; True if a thread of the parent held the lock."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    lock._at_fork_reinit()
    return True


def _renew() -> None:
    for lock in list(_LOCKS):
        lock._at_fork_reinit()
    renewables = list(_RENEWED)
    for renewable in renewables:
        renewable.renew_in_child()
    torch = imported_module("torch") if renewables else None
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # OpenMP waits for ever for threads that a fork left behind


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

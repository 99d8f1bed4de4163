"""What a child process of `os.fork` renews: locks whose holders are threads of the parent, and threads themselves.

A fork copies one thread only. A lock that another thread held at that moment stays locked in the child for ever,
unless the child makes the lock anew.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from sublet.base.extras import imported


class Renewable(Protocol):
    """An object with locks or threads of its own."""

    def renew_in_child(self) -> None:
        """Let the object work in the child of a fork, or say why not."""


_LOCKS: WeakSet[Any] = WeakSet()
_RENEWED: WeakSet[Renewable] = WeakSet()


def fork_lock() -> Lock:
    """Return a lock that is free in the child of a fork, whoever held the lock in the parent."""
    made = Lock()
    _LOCKS.add(made)
    return made


def renew_in_children(renewable: Renewable) -> None:
    """Call `renew_in_child` of the object in every child of a fork, as long as the object exists."""
    _RENEWED.add(renewable)


def freed(lock: Any) -> bool:
    """Free a re-entrant lock that a thread of the parent holds; True if the lock was held by such a thread."""
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
    torch = imported("torch") if renewables else None
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # OpenMP waits for ever for threads that a fork left behind


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

"""A time limit polled by inner loops, for abandoning slow strategies midway.

A strategy is a plain function of the problem. A context variable carries the limit, since the limit is
no part of the problem.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEADLINE: ContextVar[float | None] = ContextVar("sublet_packing_deadline", default=None)


class OutOfTime(Exception):
    """Raised after the time limit; `pack` catches the exception and keeps the best packing found."""


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """Make `stop_when_late` raise inside the block once `time.monotonic()` passes `deadline`."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def is_late() -> bool:
    """True if a limit is set and has passed."""
    deadline = _DEADLINE.get()
    return deadline is not None and time.monotonic() > deadline


def stop_when_late() -> None:
    """Raise OutOfTime when a limit is set and has passed."""
    if is_late():
        raise OutOfTime

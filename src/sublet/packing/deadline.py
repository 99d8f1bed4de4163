"""A time limit that inner loops look at, so that a slow strategy can be abandoned half way.

A strategy is a plain function of the problem; the limit reaches it through a context variable, as it
is no part of the question.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEADLINE: ContextVar[float | None] = ContextVar("sublet_packing_deadline", default=None)


class OutOfTime(Exception):
    """The time limit has passed; caught by `pack`, which keeps the best packing so far. No error of a caller."""


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """Make `stop_when_late` raise inside this block once `time.monotonic()` passes `deadline`."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def is_late() -> bool:
    """Whether a limit is set and has passed."""
    deadline = _DEADLINE.get()
    return deadline is not None and time.monotonic() > deadline


def stop_when_late() -> None:
    """Raise OutOfTime when a limit is set and has passed."""
    if is_late():
        raise OutOfTime

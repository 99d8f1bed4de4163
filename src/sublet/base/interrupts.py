"""Ctrl-C at a time when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[list[Any]]:
    """An interrupt waits until what is inside is done; it is told of those that came."""
    came: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None is not from Python
        yield came
        return
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


@contextmanager
def awaited() -> Iterator[list[Any]]:
    """The first interrupt is only told, for who is inside to end in order; the second interrupts."""
    came: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield came
        return

    def noted(*given: Any) -> None:
        came.append(given)
        if len(came) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, noted)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)

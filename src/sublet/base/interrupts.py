"""Context managers to delay Ctrl-C until a consistent state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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

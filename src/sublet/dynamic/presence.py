"""Presence: a dynamic graph has one thread in it at a time; a second one is told so, instead of meeting half a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

from sublet.base.errors import RunError
from sublet.base.forks import freed
from sublet.nn.lines import at_line

M = TypeVar("M", bound=Callable[..., Any])


class Presence:
    """The right to be in a graph, which one thread has at a time. A thread may take it again while it has it."""

    def __init__(self) -> None:
        self._lock = RLock()
        # Every command takes and gives the right: methods of the lock itself cost a third of a microsecond less.
        self.acquire, self.leave = self._lock.acquire, self._lock.release

    def enter(self) -> None:
        """Take the right. Raises RunError when another thread has it."""
        if not self.acquire(False):
            raise RunError(
                at_line(
                    "another thread is in this dynamic graph: the thread computes, or is in a remembered function, a "
                    "scope or a loop. Let one thread at a time use a DynamicGraph, or make one for each thread"
                )
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Around what only one thread may do. Raises RunError when another thread is there."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def renewed(self) -> bool:
        """Free the right in the child of a fork; True if a thread of the parent had it."""
        return freed(self._lock)


def by_one_thread(method: M) -> M:
    """Return the method of a graph, which raises RunError while another thread is in the graph."""

    @wraps(method)
    def alone(graph: Any, *args: Any, **named: Any) -> Any:
        presence = graph.presence
        presence.enter()
        try:
            return method(graph, *args, **named)
        finally:
            presence.leave()

    return cast("M", alone)


def holding(method: M) -> M:
    """Return the method, whose context manager keeps other threads out of the graph until it is left."""

    @wraps(method)
    @contextmanager
    def held(graph: Any, *args: Any, **named: Any) -> Iterator[Any]:
        with graph.presence.held(), method(graph, *args, **named) as given:
            yield given

    return cast("M", held)

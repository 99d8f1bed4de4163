"""Exclusive use of a dynamic graph: one thread at a time; a second thread gets a RunError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

from sublet.base.errors import RunError
from sublet.base.interrupts import free_lock_in_child
from sublet.nn.source_location import at_line

M = TypeVar("M", bound=Callable[..., Any])


class ExclusiveAccess:
    """The exclusive use of a graph by a thread. The thread may enter again while inside."""

    def __init__(self) -> None:
        self._lock = RLock()
        # Every command enters and leaves: the lock's own methods save a third of a microsecond per command.
        self.acquire, self.leave = self._lock.acquire, self._lock.release

    def enter(self) -> None:
        """Enter the graph. Raises RunError if another thread is inside."""
        if not self.acquire(False):
            raise RunError(
                at_line(
                    "another thread is in this dynamic graph: the thread computes, or is in a jit function, a "
                    "scope or a loop. Let one thread at a time use a DynamicGraph, or make one for each thread"
                )
            )

    @contextmanager
    def held_inside(self) -> Iterator[None]:
        """Enter the graph inside `with`. Raises RunError if another thread is inside."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def release_in_child(self) -> bool:
        """Free the graph in the child of a fork; True if a thread of the parent was inside."""
        return free_lock_in_child(self._lock)


def exclusive_method(method: M) -> M:
    """Return the method of a graph, raising RunError while another thread is inside the graph."""

    @wraps(method)
    def exclusive(graph: Any, *args: Any, **named: Any) -> Any:
        presence = graph.exclusive_access
        presence.enter()
        try:
            return method(graph, *args, **named)
        finally:
            presence.leave()

    return cast("M", exclusive)


def exclusive_context(method: M) -> M:
    """Return the context manager method of a graph, keeping other threads out of the graph inside `with`."""

    @wraps(method)
    @contextmanager
    def exclusive(graph: Any, *args: Any, **named: Any) -> Iterator[Any]:
        with graph.exclusive_access.held_inside(), method(graph, *args, **named) as given:
            yield given

    return cast("M", exclusive)

"""State: the inputs and weights that a graph updates, and what they hold from one run to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sublet.errors import RunError
from sublet.ir.graph import Graph, Value
from sublet.printable import printable
from sublet.runtime.memory import Memory, Raw

Saved = Mapping[Value, Raw]
"""Copies of the bytes of those values whose content is known."""


class State:
    """Knows which updated values have a content: they were given one, and no run has failed since.

    A run that fails may have overwritten some and not yet others, so that all of them must be set anew.
    """

    def __init__(self, graph: Graph, memory: Memory) -> None:
        self.values = graph.updated
        self._memory = memory
        self._known: set[Value] = set()

    def known(self, value: Value) -> bool:
        """Whether the value is updated and has a content."""
        return value in self._known

    def set(self, value: Value) -> None:
        """The value has been given a content; nothing happens unless it is updated."""
        if value in self.values:
            self._known.add(value)

    def save(self) -> Saved:
        """What they hold, to be put back by `restore`."""
        places = self._memory.here()
        return {value: places.bytes_of(value).copy() for value in self.values if value in self._known and value.nbytes}

    def restore(self, saved: Saved) -> None:
        """Put back what `save` returned, wherever the values lie by now."""
        places = self._memory.here()
        for value, content in saved.items():
            places.bytes_of(value)[:] = content

    @contextmanager
    def kept(self) -> Iterator[Saved]:
        """Afterwards all is as it was before, also after an error. Their storages must be the same again by then."""
        saved, known = self.save(), set(self._known)
        try:
            yield saved
        finally:
            self._known = known
            self.restore(saved)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a run: when it fails, nobody knows what they hold."""
        try:
            yield
        except BaseException:
            self._known.clear()
            raise

    def require(self, value: Value, name: str) -> Value:
        """The value. Raises RunError, which calls it `name`, unless it has a content."""
        if value not in self._known:
            raise RunError(
                f"what {printable(name)!r} holds is not known: it was not given yet, or a run failed midway; "
                "give it as an input or by `set_state`"
            )
        return value

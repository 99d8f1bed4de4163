"""State: the inputs and weights that a graph updates, and what they hold from one run to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sublet.base.errors import RunError
from sublet.base.printable import printable
from sublet.ir.graph import Graph, Value
from sublet.runtime.left import Left
from sublet.runtime.memory import Memory, Raw

Saved = Mapping[Value, Raw]
"""Copies of the bytes of those values whose content is known."""


class State:
    """Knows which updated values have a content.

    A run that fails leaves each as it was, or updated, or maybe half written: then it can be read, but no run starts
    from it before it is set anew.
    """

    def __init__(self, graph: Graph, memory: Memory) -> None:
        self.values = graph.updated
        self._memory = memory
        self._known: set[Value] = set()
        self._uncertain: set[Value] = set()

    def known(self, value: Value) -> bool:
        """Whether the value is updated and has a content."""
        return value in self._known

    def set(self, value: Value) -> None:
        """The value has been given a content; nothing happens unless it is updated."""
        if value in self.values:
            self._known.add(value)
            self._uncertain.discard(value)

    @contextmanager
    def written(self, value: Value) -> Iterator[None]:
        """Around writing a content to the value, which an interrupt may leave half written."""
        if value in self.values:
            self._known.discard(value)
            self._uncertain.add(value)
        yield
        self.set(value)

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
        saved, known, uncertain = self.save(), set(self._known), set(self._uncertain)
        try:
            yield saved
        finally:
            self._known, self._uncertain = known, uncertain
            self.restore(saved)

    @contextmanager
    def running(self, left: Callable[[], Left]) -> Iterator[None]:
        """Around a run: when it fails, `left` tells what it left, and the error gets a note of that."""
        try:
            yield
        except BaseException as error:
            if self.values:
                found = left()
                self._known.difference_update(found.uncertain)
                self._uncertain.update(found.uncertain)
                error.add_note(found.words)
            raise

    def interrupted(self) -> None:
        """Note that a run was broken off which cannot tell where: of a thread that a fork left behind."""
        self._uncertain.update(self._known)
        self._known.clear()

    def require(self, value: Value, name: str) -> None:
        """Raises RunError, which calls the value `name`, unless a run may start from its content."""
        self.require_certain(value, name)
        self.readable(value, name)

    def require_certain(self, value: Value, name: str) -> None:
        """Raises RunError when a failed run may have left the value half written."""
        if value in self._uncertain:
            raise RunError(
                f"what {printable(name)!r} holds is uncertain, for a run failed while it was updated, "
                "or the process forked meanwhile: set it by `set_state`, or "
                "take it as it is by set_state(name, executable.state(name))"
            )

    def readable(self, value: Value, name: str) -> Value:
        """The value. Raises RunError unless it ever got a content."""
        if value not in self._known and value not in self._uncertain:
            raise RunError(f"what {printable(name)!r} holds was not given yet: give it as an input or by `set_state`")
        return value

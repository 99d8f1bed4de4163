"""Persistent state of an executable: inputs and weights updated by the graph, kept from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sublet.base.errors import RunError
from sublet.base.escape import printable
from sublet.ir.graph import Graph, Value
from sublet.runtime.failed_state import StateAfterFailure
from sublet.runtime.memory import ExecutableMemory, Raw

SavedContents = Mapping[Value, Raw]
"""Copies of the bytes of all values with a known content."""


class ExecutableState:
    """The set of updated values with a known content.

    A failed run leaves each value unchanged, updated, or possibly half-written. A half-written value can be read, but
    the next run starts only after the caller has set the value.
    """

    def __init__(self, graph: Graph, memory: ExecutableMemory) -> None:
        self.values = graph.updated_values
        self._memory = memory
        self._known: set[Value] = set()
        self._uncertain: set[Value] = set()

    def has_content(self, value: Value) -> bool:
        """True if the value is updated by the graph and has a content."""
        return value in self._known

    def set(self, value: Value) -> None:
        """Note that an updated value has received a content; no effect for other values."""
        if value in self.values:
            self._known.add(value)
            self._uncertain.discard(value)

    @contextmanager
    def writing(self, value: Value) -> Iterator[None]:
        """Mark the value uncertain inside the block, during which an interrupt may leave a half-written content."""
        if value in self.values:
            self._known.discard(value)
            self._uncertain.add(value)
        yield
        self.set(value)

    def save(self) -> SavedContents:
        """Return a copy of all known contents, for `restore`."""
        places = self._memory.places_at()
        return {value: places.bytes_of(value).copy() for value in self.values if value in self._known and value.nbytes}

    def restore(self, saved: SavedContents) -> None:
        """Write the contents returned by `save` to the current storages."""
        places = self._memory.places_at()
        for value, content in saved.items():
            places.bytes_of(value)[:] = content

    @contextmanager
    def restoring(self) -> Iterator[SavedContents]:
        """Restore contents and flags after the block, also after an error; the storages must then be the same."""
        saved, known, uncertain = self.save(), set(self._known), set(self._uncertain)
        try:
            yield saved
        finally:
            self._known, self._uncertain = known, uncertain
            self.restore(saved)

    @contextmanager
    def running(self, left: Callable[[], StateAfterFailure]) -> Iterator[None]:
        """Guard a run: on failure, call `left` for the state after the failure, and add the state to the error."""
        try:
            yield
        except BaseException as error:
            if self.values:
                found = left()
                self._known.difference_update(found.uncertain)
                self._uncertain.update(found.uncertain)
                error.add_note(found.sentence)
            raise

    def mark_all_uncertain(self) -> None:
        """Mark all known values uncertain: a fork left a run behind at an unknown point."""
        self._uncertain.update(self._known)
        self._known.clear()

    def require(self, value: Value, name: str) -> None:
        """Raise RunError, naming the value `name`, unless a run may start from its content."""
        self.require_certain(value, name)
        self.require_readable(value, name)

    def require_certain(self, value: Value, name: str) -> None:
        """Raise RunError if a failed run may have left the value half-written."""
        if value in self._uncertain:
            raise RunError(
                f"the content of {printable(name)!r} is uncertain: a run failed during the update, "
                "or the process forked during a run. Set it with `set_state`, or "
                "keep the current content with set_state(name, executable.state(name))."
            )

    def require_readable(self, value: Value, name: str) -> Value:
        """Return the value. Raises RunError if the value never received a content."""
        if value not in self._known and value not in self._uncertain:
            raise RunError(f"{printable(name)!r} has no content yet. Pass it as an input or with `set_state`.")
        return value

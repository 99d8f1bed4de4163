"""The weights of an executable by name: to read, set, save, and share with other executables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakMethod

from sublet.base.errors import RunError
from sublet.base.formatting import known_names, printable
from sublet.base.interrupts import defer_interrupts
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.plan import bound_storage_name
from sublet.runtime.caller_memory import CallerContents, content_for
from sublet.runtime.kernel import Array
from sublet.runtime.memory import ExecutableMemory
from sublet.runtime.state import ExecutableState


class ExecutableWeights(Mapping[str, Any]):
    """Every parameter, state and frozen weight by name, including optimizer state and the random key.

    `weights[name]` is a copy of the content at the start of the next run; `weights[name] = array` sets another content.
    `sublet.compile(..., weights=executable.weights)` compiles another executable that computes in the same memory.
    Constants of the program are excluded; an updated input is included once the caller has passed a content.
    """

    def __init__(
        self,
        graph: Graph,
        contents: CallerContents,
        memory: ExecutableMemory,
        state: ExecutableState,
        constants: Collection[str],
        inputs: Mapping[str, Value],
        changed: WeakMethod[Callable[[bool], None]],
    ) -> None:
        """Create the mapping.

        `changed` is called after a change of memory, with True if kernels depend on the old content. The reference is
        weak: else the arena of a dropped executable would wait for the garbage collector.
        """
        self._updated = frozenset(graph.updated_values)
        self._values = {v.name: v for v in graph.weights if v.literal is None and v.name not in constants}
        self._inputs = {name: value for name, value in inputs.items() if value in self._updated}
        self._values |= self._inputs
        self._contents, self._memory, self._state = contents, memory, state
        self._turn, self._on_change = memory.locks, changed

    def _report_change(self, content: bool) -> None:
        """Drop the bound programs of the executable, if the executable exists."""
        changed = self._on_change()
        if changed is not None:
            changed(content)

    def __repr__(self) -> str:
        return f"<Weights: {len(self)}, {sum(value.nbytes for value in self._available_values().values()):,} bytes>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._available_values())

    def __len__(self) -> int:
        return len(self._available_values())

    def __contains__(self, name: object) -> bool:
        return name in self._available_values()

    def __getitem__(self, name: str) -> Any:
        with self._turn.own, self._turn.shared_lock():
            self._contents.enter_arena()
            found = self._array(self._value_by_name(name), name)
            return found.copy() if hasattr(found, "copy") else found

    def __setitem__(self, name: str, content: Any) -> None:
        self.take({name: content})

    def take(self, contents: Mapping[str, Any]) -> None:
        """Set several contents: all are checked before the first is written, and an interrupt waits.

        Raises RunError for an unknown name, or for a type or shape that does not fit.
        """
        with self._turn.own, self._turn.shared_lock(), defer_interrupts():
            self._contents.enter_arena()
            values = {name: self._values[self._require_known(name)] for name in contents}
            given = {name: content_for(value, contents[name], f"weight {name}") for name, value in values.items()}
            for name, content in given.items():
                if values[name] in self._updated:
                    self._contents.set_content(values[name], content, f"weight {name}")
                else:
                    self._contents.replace(values[name], content)
            if not self._updated.issuperset(values.values()):
                self._report_change(True)

    @contextmanager
    def reading(self) -> Iterator[dict[str, Array]]:
        """Yield all weights as arrays over their storages, while no run is possible."""
        with self._turn.own, self._turn.shared_lock():
            self._contents.enter_arena()
            yield {name: self._array(self._value_by_name(name), name) for name in self._available_values()}

    def lend_weight(self, name: str) -> Array:
        """Return the memory of a weight, fixed from now on; valid until other memory is bound.

        Raises RunError when the weight lies in the arena.
        """
        with self._turn.own:
            value = self._value_by_name(name)
            if bound_storage_name(value.name) not in self._memory.storages:
                raise RunError(f"weight {printable(name)!r} lies in the arena: plan with weights='bound' to share it")
            if any(value.name in cycle for cycle in self._memory.plan.exchanged):
                self._memory.caller_storages.add(bound_storage_name(value.name))
                self._report_change(False)
            self._memory.lend(bound_storage_name(value.name))
            return self._memory.places_at().array(value)

    def set_initial_contents(self, contents: Mapping[str, Any]) -> None:
        """Do nothing: an executable creates no weights after compilation."""

    def _available_values(self) -> dict[str, Value]:
        """Return the weights with a content, by name."""
        return {
            name: value
            for name, value in self._values.items()
            if name not in self._inputs or self._state.has_content(value)
        }

    def _require_known(self, name: str) -> str:
        """Return the name. Raises RunError for an unknown name."""
        if name not in self._values:
            raise RunError(f"there is no weight {printable(name)!r}; there are {known_names(self._values)}")
        return name

    def _value_by_name(self, name: str) -> Value:
        """Return the value of a weight. Raises RunError if an updated value has no content."""
        value = self._values[self._require_known(name)]
        return self._state.require_readable(value, name) if value in self._updated else value

    def _array(self, value: Value, name: str) -> Any:
        if not isinstance(value.spec, TensorSpec):
            raise RunError(f"weight {printable(name)!r} is outside the plan: {value.spec}")
        return self._memory.places_at().array(value)

"""Lazily bound actions: operands with addresses known only during the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.plan import Context, Region, Stride
from sublet.runtime.memory import ExecutableMemory, ValuePlaces

MAX_BOUND_ACTIONS = 256
"""Most combinations of carry bindings and iterations with a cached action; beyond, actions are bound each time."""

Strides = Mapping[str, tuple[Stride, ...]]
"""By name, the strides of values over the iterations of loops."""


class LazyBinding:
    """An action bound lazily, once per combination of carry bindings and iterations, and cached.

    `fixed` gives the renamed carries bound to one region here, `varying` the carries with a binding known only in the
    run.
    """

    def __init__(
        self,
        memory: ExecutableMemory,
        context: Context,
        fixed: Mapping[str, Region],
        varying: Sequence[str],
        strides: Strides,
        make: Callable[[ValuePlaces], Any],
    ) -> None:
        self._memory = memory
        self._context = context
        self._fixed = fixed
        self._names = tuple(varying)
        self._loops = tuple(dict.fromkeys(stride.loop for chain in strides.values() for stride in chain))
        self._make = make
        self._bound: dict[object, Any] = {}
        self.strides = strides
        self.current: Mapping[str, int] = memory.current_iterations

    @property
    def depends_only_on_iterations(self) -> bool:
        """True if the action depends on iterations only."""
        return not self._names

    def __call__(self, *arguments: int) -> Any:
        pointed, current = self._memory.pointed, self.current
        key = (tuple([pointed[name] for name in self._names]), tuple([current[loop] for loop in self._loops]))
        call = self._bound.get(key)
        if call is None:
            call = self.bind_now()
            if len(self._bound) < MAX_BOUND_ACTIONS:
                self._bound[key] = call
        return call(*arguments)

    def bind_now(self, rounds: Mapping[str, int] | None = None) -> Any:
        """Return the action bound for the iterations `rounds`, or for the current iterations."""
        here = {**self._fixed, **{name: self._memory.pointed[name] for name in self._names}}
        return self._make(ValuePlaces(self._memory, self._context, here, rounds))

    def with_action(self, strides: Strides, make: Callable[[], Any]) -> LazyBinding:
        """Return another action with the same dependence on iterations, made by `make` in each iteration."""
        return LazyBinding(self._memory, self._context, {}, (), strides, lambda places: make())

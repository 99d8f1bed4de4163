"""Actions whose places depend on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.plan import Context, Region, Stride
from sublet.runtime.memory import Memory, Places

KEPT = 256
"""Rounds, or what pointers stand for, for which bound actions are kept; later ones are bound each time."""

Strides = Mapping[str, tuple[Stride, ...]]
"""By name, how values move from round to round."""


class Varying:
    """An action bound for each combination of what pointers stand for and of rounds, when it first comes up.

    `fixed` pointers stand for the same here always, `varying` ones for what the run lets them.
    """

    def __init__(
        self,
        memory: Memory,
        context: Context,
        fixed: Mapping[str, Region],
        varying: Sequence[str],
        strides: Strides,
        make: Callable[[Places], Any],
    ) -> None:
        self._memory = memory
        self._context = context
        self._fixed = fixed
        self._names = tuple(varying)
        self._loops = tuple(dict.fromkeys(stride.loop for several in strides.values() for stride in several))
        self._make = make
        self._bound: dict[object, Any] = {}
        self.strides = strides
        self.current: Mapping[str, int] = memory.current

    @property
    def by_round(self) -> bool:
        """Whether it depends on rounds and on nothing else."""
        return not self._names

    def __call__(self, *arguments: int) -> Any:
        pointed, current = self._memory.pointed, self.current
        key = (tuple([pointed[name] for name in self._names]), tuple([current[loop] for loop in self._loops]))
        call = self._bound.get(key)
        if call is None:
            call = self.bound()
            if len(self._bound) < KEPT:
                self._bound[key] = call
        return call(*arguments)

    def bound(self, rounds: Mapping[str, int] | None = None) -> Any:
        """The action for these rounds, or the current ones."""
        here = {**self._fixed, **{name: self._memory.pointed[name] for name in self._names}}
        return self._make(Places(self._memory, self._context, here, rounds))

    def instead(self, strides: Strides, make: Callable[[], Any]) -> Varying:
        """Another action that depends on rounds: what `make` makes in each."""
        return Varying(self._memory, self._context, {}, (), strides, lambda places: make())

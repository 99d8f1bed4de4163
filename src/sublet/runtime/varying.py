"""Actions whose places depend on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sublet.plan import Context, Region
from sublet.runtime.memory import Memory, Places


class Varying:
    """An action bound for each combination of what pointers stand for, when it first comes up."""

    def __init__(
        self,
        memory: Memory,
        context: Context,
        fixed: Mapping[str, Region],
        varying: Mapping[str, str],
        make: Callable[[Places], Any],
    ) -> None:
        self._memory = memory
        self._context = context
        self._fixed = fixed
        self._names = tuple(varying)
        self._roots = tuple(varying.values())
        self._make = make
        self._bound: dict[tuple[Region, ...], Any] = {}

    def __call__(self, *arguments: int) -> Any:
        pointed = self._memory.pointed
        key = tuple([pointed[root] for root in self._roots])
        call = self._bound.get(key)
        if call is None:
            here = {**self._fixed, **dict(zip(self._names, key, strict=True))}
            call = self._bound[key] = self._make(self._memory.here(self._context, here))
        return call(*arguments)

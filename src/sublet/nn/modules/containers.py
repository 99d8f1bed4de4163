"""Modules made of others, or of any functions of tensors, as `nn.relu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add, mul
from typing import Any

from sublet.base.errors import SpecError
from sublet.nn.lines import at_line
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor
from sublet.nn.writer import graph_of

Step = Callable[..., Any]
"""A module, or any function of tensors."""


class _Several(Module):
    """Steps by name: those without one are called 0, 1, ..."""

    def __init__(self, *steps: Step, name: str | None = None, **named: Step) -> None:
        self.name = name
        self.steps: dict[str, Step] = {**{str(i): step for i, step in enumerate(steps)}, **named}
        for key, step in self.steps.items():
            if not callable(step):
                raise SpecError(at_line(f"{type(self).__name__}: step {key} is {step!r}: give modules and functions"))

    def children(self) -> Iterator[tuple[str, object]]:
        yield from self.steps.items()

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps.values())

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, key: int | str) -> Step:
        return self.steps[key] if isinstance(key, str) else list(self.steps.values())[key]

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={step if isinstance(step, Module) else step.__name__}" if not key.isdigit() else
                           str(step if isinstance(step, Module) else getattr(step, "__name__", step))
                           for key, step in self.steps.items())  # fmt: skip
        return f"{type(self).__name__}({inside})"


class Sequential(_Several):
    """One step after another: `Sequential(Conv(16, 3), nn.relu, MaxPool(2))`, `Sequential(conv=Conv(16, 3), ...)`."""

    def forward(self, *inputs: Any) -> Any:
        given = inputs
        for step in self.steps.values():
            given = (step(*given),)
        return given[0]


JOINS: dict[str, Callable[[list[Tensor], int], Tensor]] = {
    "concat": lambda made, axis: graph_of(made[0]).apply("nn.concat", *made, axis=axis)[0],
    "sum": lambda made, axis: reduce(add, made),
    "product": lambda made, axis: reduce(mul, made),
}


class Parallel(_Several):
    """Branches that all read the same, joined: "concat" along `axis`, "sum", "product", or a function of the results.

    Without a join it gives all results, as a tuple.
    """

    def __init__(
        self,
        *branches: Step,
        join: str | Callable[..., Any] | None = None,
        axis: int = 1,
        name: str | None = None,
        **named: Step,
    ) -> None:
        super().__init__(*branches, name=name, **named)
        if isinstance(join, str) and join not in JOINS:
            raise SpecError(at_line(f"Parallel: join is {join!r}, not one of {', '.join(JOINS)} or a function"))
        self.join, self.axis = join, axis

    def forward(self, *inputs: Any) -> Any:
        made = [branch(*inputs) for branch in self.steps.values()]
        if self.join is None:
            return tuple(made)
        return JOINS[self.join](made, self.axis) if isinstance(self.join, str) else self.join(*made)


class Residual(Module):
    """`then(inner(x) + shortcut(x))`: what `inner` adds to x; x goes by itself without a shortcut (He et al., 2016)."""

    def __init__(
        self, inner: Step, shortcut: Step | None = None, *, then: Step | None = None, name: str | None = None
    ) -> None:
        self.inner, self.shortcut, self.then, self.name = inner, shortcut, then, name

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return y if self.then is None else self.then(y)

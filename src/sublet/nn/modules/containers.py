"""Modules composed of modules, or of any functions of tensors, such as `nn.relu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add, mul
from typing import Any

from sublet.base.errors import SpecError
from sublet.nn.graph_protocol import graph_of
from sublet.nn.modules.module import Module
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Tensor

Step = Callable[..., Any]
"""A module, or any function of tensors."""


class _NamedSteps(Module):
    """Steps by name; steps without a name are numbered 0, 1, ... Raises SpecError for a step not callable."""

    def __init__(self, *steps: Step, name: str | None = None, **named: Step) -> None:
        self.name = name
        self.steps: dict[str, Step] = {**{str(i): step for i, step in enumerate(steps)}, **named}
        for key, step in self.steps.items():
            if not callable(step):
                raise SpecError(at_line(f"{type(self).__name__}: step {key} is {step!r}: give modules and functions"))

    def children(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the module or function of each step."""
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


class Sequential(_NamedSteps):
    """Steps applied in order: `Sequential(Conv(16, 3), nn.relu, MaxPool(2))`, `Sequential(conv=Conv(16, 3), ...)`."""

    def forward(self, *inputs: Any) -> Any:
        """Return the result of the last step; the first step receives all `inputs`."""
        given = inputs
        for step in self.steps.values():
            given = (step(*given),)
        return given[0]


JOINS: dict[str, Callable[[list[Tensor], int], Tensor]] = {
    "concat": lambda made, axis: graph_of(made[0]).apply("nn.concat", *made, axis=axis)[0],
    "sum": lambda made, axis: reduce(add, made),
    "product": lambda made, axis: reduce(mul, made),
}


class Parallel(_NamedSteps):
    """Branches over the same inputs, joined by `join`: "concat" along `axis`, "sum", "product", or a function.

    A function receives the results of all branches as arguments. Without a `join`, the result is a tuple of the
    branches' results. Raises SpecError for another `join`.
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
        """Return the joined results of all branches applied to `inputs`."""
        results = [branch(*inputs) for branch in self.steps.values()]
        if self.join is None:
            return tuple(results)
        return JOINS[self.join](results, self.axis) if isinstance(self.join, str) else self.join(*results)


class Residual(Module):
    """A residual connection: `then(inner(x) + shortcut(x))`, by default with x as the shortcut (He et al., 2016)."""

    def __init__(
        self, inner: Step, shortcut: Step | None = None, *, then: Step | None = None, name: str | None = None
    ) -> None:
        self.inner, self.shortcut, self.then, self.name = inner, shortcut, then, name

    def forward(self, x: Tensor) -> Any:
        """Return `then(inner(x) + shortcut(x))`; both terms must be of one shape after broadcasting."""
        y = self.inner(x)
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return y if self.then is None else self.then(y)

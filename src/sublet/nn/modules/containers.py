"""Modules composed of modules, or of any functions of tensors, such as `nn.relu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add, mul
from typing import Any

from sublet import nn
from sublet.base.errors import SpecError
from sublet.nn.graph import graph_of
from sublet.nn.modules.convolution import Conv, Extents, MaxPool
from sublet.nn.modules.linear import CrossAttention, Dense, SelfAttention
from sublet.nn.modules.module import Module
from sublet.nn.modules.normalization import BatchNorm, Dropout, LayerNorm
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


# Common building blocks of networks.

relu: Callable[[Tensor], Tensor] = nn.relu
gelu: Callable[[Tensor], Tensor] = nn.gelu


class ConvNorm(Module):
    """A convolution without bias, batch normalisation, and an activation: x[N, C, spatial...] -> [N, channels, ...].

    activation   a function of a tensor; None for none
    epsilon      added to the variance in the normalisation
    attrs        further arguments of `Conv`
    """

    def __init__(
        self,
        channels: int,
        kernel: Extents,
        *,
        activation: Step | None = relu,
        epsilon: float = 1e-5,
        name: str | None = None,
        **attrs: Any,
    ) -> None:
        self.name = name
        self.conv = Conv(channels, kernel, bias=False, **attrs)
        self.bn = BatchNorm(epsilon)
        self.activation = activation

    def forward(self, x: Tensor) -> Any:
        """Return the block applied to x[N, C, spatial...], of shape [N, channels, spatial...]."""
        y = self.bn(self.conv(x))
        return y if self.activation is None else self.activation(y)


class Inception(Parallel):
    """Four branches over x[N, C, H, W], concatenated along the channels (Szegedy et al., 2015).

    ones     channels of the 1 x 1 branch
    threes   channels after the 1 x 1 reduction, and after the 3 x 3 convolution
    fives    channels after the 1 x 1 reduction, and after the `wide` x `wide` convolution
    pooled   channels of the branch with pooling
    unit     constructor of a convolution, such as `ConvNorm` or `Conv`, called with channels and kernel
    """

    def __init__(
        self,
        ones: int,
        threes: tuple[int, int],
        fives: tuple[int, int],
        pooled: int,
        *,
        wide: int = 5,
        unit: Callable[[int, int], Step] = ConvNorm,
        name: str | None = None,
    ) -> None:
        super().__init__(
            join="concat",
            name=name,
            branch1=unit(ones, 1),
            branch2=Sequential(unit(threes[0], 1), unit(threes[1], 3)),
            branch3=Sequential(unit(fives[0], 1), unit(fives[1], wide)),
            branch4=Sequential(MaxPool(3, strides=1, pads=1, ceil=True), unit(pooled, 1)),
        )


class ResidualBlock(Residual):
    """Two 3 x 3 convolutions with batch normalisation, and a shortcut (He et al., 2016).

    x[N, C, H, W] -> [N, channels, H / strides, W / strides]. `project` adds a 1 x 1 convolution to the shortcut, as
    needed for another number of channels; strides above 1 imply `project`. `bottleneck` uses three convolutions (1 x 1,
    3 x 3, 1 x 1), the last with 4 * channels.
    """

    def __init__(
        self,
        channels: int,
        *,
        strides: int = 1,
        project: bool = False,
        bottleneck: bool = False,
        name: str | None = None,
    ) -> None:
        wide = 4 * channels if bottleneck else channels
        first = [ConvNorm(channels, 1)] if bottleneck else []
        last = ConvNorm(wide, 1 if bottleneck else 3, activation=None)
        inner = Sequential(*first, ConvNorm(channels, 3, strides=strides), last)
        shortcut = ConvNorm(wide, 1, strides=strides, activation=None) if project or strides > 1 else None
        super().__init__(inner, shortcut, then=relu, name=name)


@dataclass(frozen=True, eq=False)
class TransformerBlock(Module):
    """Attention and a feed-forward network over x[B, T, D], each with a residual connection (Vaswani et al., 2017).

    heads        number of heads
    hidden       width of the feed-forward network; 4 * D by default
    dropout      rate of dropout after the attention, and in the feed-forward network
    causal       each step reads only itself and earlier steps
    norm_first   normalise the inputs of the parts (pre-norm) instead of the sums (post-norm)
    activation   function between the two dense layers
    epsilon      added to the variance in the normalisations

    With a `context` [B, S, E], an attention to the context follows the self-attention.
    """

    heads: int
    hidden: int | None = None
    dropout: float = 0.0
    causal: bool = False
    norm_first: bool = True
    activation: Callable[[Tensor], Tensor] = gelu
    epsilon: float = 1e-5
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the block applied to x[B, T, D], of shape [B, T, D].

        `context` has the shape [B, S, E]; `mask` is for the logits of the self-attention, [B, heads, T, T]. Raises
        SpecError for other axes.
        """
        self.graph_of(x, "B T D")
        x = self._add_residual(x, "1", lambda y: SelfAttention(self.heads, self.causal, name="attention")(y, mask))
        if context is not None:
            x = self._add_residual(x, "2", lambda y: CrossAttention(self.heads, name="cross_attention")(y, context))
        return self._add_residual(x, "3" if context is not None else "2", self._feed_forward)

    def _add_residual(self, x: Tensor, number: str, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x plus `inner` of x, with normalisation and dropout; `number` is the suffix of the names."""
        norm = LayerNorm(epsilon=self.epsilon, name=f"norm{number}")
        y = inner(norm(x) if self.norm_first else x)
        y = x + (Dropout(self.dropout, name=f"dropout{number}")(y) if self.dropout else y)
        result: Tensor = y if self.norm_first else norm(y)
        return result

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward network applied to x[B, T, D]."""
        y = self.activation(Dense(self.hidden or 4 * x.shape[-1], name="up")(x))
        y = Dropout(self.dropout, name="dropout")(y) if self.dropout else y
        result: Tensor = Dense(x.shape[-1], name="down")(y)
        return result

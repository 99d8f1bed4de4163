"""Common building blocks of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sublet import nn
from sublet.nn.modules.attention import CrossAttention, SelfAttention
from sublet.nn.modules.containers import Parallel, Residual, Sequential, Step
from sublet.nn.modules.convolution import Conv, Extents
from sublet.nn.modules.dropout import Dropout
from sublet.nn.modules.linear import Dense
from sublet.nn.modules.module import Module
from sublet.nn.modules.normalization import BatchNorm, LayerNorm
from sublet.nn.modules.pooling import MaxPool
from sublet.nn.tensor import Tensor

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

"""Dense layers and embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

from sublet.base.errors import SpecError
from sublet.nn.modules.module import Module, normal, uniform_by_fan_in
from sublet.nn.source_location import Draw, at_line
from sublet.nn.tensor import Tensor, describe


@dataclass(frozen=True, eq=False)
class Dense(Module):
    """A dense layer: x[..., I] @ weight[units, I].T + bias[units] -> [..., units].

    units     width of the output
    bias      add a bias
    initial   function drawing the initial weight; uniform in +-1/sqrt(I) by default
    name      name of the scope
    """

    units: int
    bias: bool = True
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer applied to x[..., I], of shape [..., units]. Raises SpecError for a scalar."""
        graph = self.graph_of(x, "... I")
        draw = uniform_by_fan_in(x.shape[-1:])
        w = graph.parameter("weight", (self.units, x.shape[-1]), x.dtype, self.initial or draw)
        b = graph.parameter("bias", (self.units,), x.dtype, draw) if self.bias else None
        return graph.apply("nn.linear", x, w, b)[0]


@dataclass(frozen=True, eq=False)
class Embedding(Module):
    """A table of rows: row i of weight[rows, width] for every index i, indices[...] -> [..., width].

    rows, width   shape of the table
    dtype         type of the elements
    initial       function drawing the initial table; the standard normal distribution by default
    name          name of the scope
    """

    rows: int
    width: int
    dtype: str = "f32"
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows at the indices, of shape [..., width]. Raises SpecError unless the indices are integers."""
        graph = self.graph_of(indices, "...")
        w = graph.parameter("weight", (self.rows, self.width), self.dtype, self.initial or normal(1))
        return graph.apply("nn.embedding", w, indices)[0]


# Multi-head attention (Vaswani et al., 2017).


def _head_width(module: Module, x: Tensor, heads: int) -> int:
    """Return the width of a head. Raises SpecError if the last axis is not divisible by `heads`."""
    if heads < 1 or x.shape[-1] % heads:
        raise SpecError(at_line(f"{type(module).__name__}: {describe(x)} cannot be split into {heads} heads"))
    return x.shape[-1] // heads


def _join_heads(y: Tensor) -> Tensor:
    """Return the heads concatenated: y[B, heads, T, width] -> [B, T, heads * width]."""
    batch, heads, length, width = y.shape
    return y.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


@dataclass(frozen=True, eq=False)
class SelfAttention(Module):
    """Self-attention: x[B, T, D] -> [B, T, D]. `mask` is for the logits [B, heads, T, T]: bools, or numbers to add.

    heads    number of heads; D must be divisible by `heads`, else SpecError
    causal   each step reads only itself and earlier steps
    bias     add biases to the projections
    name     name of the scope
    """

    heads: int
    causal: bool = False
    bias: bool = True
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention of x[B, T, D], of shape [B, T, D].

        `mask`, if given, is for the logits [B, heads, T, T]: bools, or numbers to add. Raises SpecError for other axes.
        """
        graph = self.graph_of(x, "B T D")
        (batch, length, depth), width = x.shape, _head_width(self, x, self.heads)
        joint = Dense(3 * depth, bias=self.bias, name="qkv")(x).reshape(batch, length, 3, self.heads, width)
        q, k, v = (joint[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        given = (q, k, v) if mask is None else (q, k, v, mask)
        y, *_ = graph.apply("nn.attention", *given, scale=1 / sqrt(width), causal=self.causal)
        result: Tensor = Dense(depth, bias=self.bias, name="out")(_join_heads(y))
        return result


@dataclass(frozen=True, eq=False)
class CrossAttention(Module):
    """Attention of x[B, T, D] to context[B, S, E] -> [B, T, D].

    heads   number of heads; D must be divisible by `heads`, else SpecError
    bias    add biases to the projections
    name    name of the scope
    """

    heads: int
    bias: bool = True
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention of x[B, T, D] to context[B, S, E], of shape [B, T, D].

        `mask`, if given, is for the logits [B, heads, T, S]: bools, or numbers to add. Raises SpecError for other axes.
        """
        graph = self.graph_of(x, "B T D")
        self.graph_of(context, "B S E")
        depth, width = x.shape[2], _head_width(self, x, self.heads)

        def split_heads(of: Tensor, name: str) -> Tensor:
            result: Tensor = Dense(depth, bias=self.bias, name=name)(of)
            return result.reshape(*of.shape[:2], self.heads, width).transpose(0, 2, 1, 3)

        q, k, v = split_heads(x, "q"), split_heads(context, "k"), split_heads(context, "v")
        given = (q, k, v) if mask is None else (q, k, v, mask)
        y, *_ = graph.apply("nn.attention", *given, scale=1 / sqrt(width))
        result: Tensor = Dense(depth, bias=self.bias, name="out")(_join_heads(y))
        return result

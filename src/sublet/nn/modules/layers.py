"""Layers as functions: modules that are called once, named by the scope they are written in.

A layer that is given no name is called by what it is, and numbered where there is one already: "dense", "dense_2".
Weights start as PyTorch's layers do unless said otherwise: uniform in +-1/sqrt(fan in). They are drawn when
the graph is compiled, from a generator seeded by the name of the parameter, so that two runs start alike.
"""

from __future__ import annotations

from sublet.nn.modules.attention import SelfAttention
from sublet.nn.modules.convolution import Conv
from sublet.nn.modules.dropout import Dropout
from sublet.nn.modules.initial import normal, uniform
from sublet.nn.modules.linear import Dense, Embedding
from sublet.nn.modules.normalization import BatchNorm, LayerNorm
from sublet.nn.modules.sequences import LSTM
from sublet.nn.tensor import Tensor

__all__ = [
    "batch_norm",
    "conv",
    "dense",
    "dropout",
    "embedding",
    "layer_norm",
    "lstm",
    "normal",
    "self_attention",
    "uniform",
]


def dense(x: Tensor, units: int, *, bias: bool = True, name: str | None = None) -> Tensor:
    """x[..., I] @ weight[units, I].T + bias[units]."""
    made: Tensor = Dense(units, bias, name=name)(x)
    return made


def conv(
    x: Tensor,
    channels: int,
    kernel: int | tuple[int, ...],
    *,
    strides: int | tuple[int, ...] = 1,
    pads: int | tuple[int, ...] | None = None,
    dilations: int | tuple[int, ...] = 1,
    groups: int = 1,
    bias: bool = True,
    name: str | None = None,
) -> Tensor:
    """A convolution of x[N, C, spatial...], see `sublet.nn.modules.Conv`."""
    made: Tensor = Conv(channels, kernel, strides, pads, dilations, groups, bias, name=name)(x)
    return made


def batch_norm(x: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.1, name: str | None = None) -> Tensor:
    """Batch normalisation over axis 1. In training the running statistics are state, updated in place."""
    made: Tensor = BatchNorm(epsilon, momentum, name=name)(x)
    return made


def layer_norm(x: Tensor, *, epsilon: float = 1e-5, name: str | None = None) -> Tensor:
    """Layer normalisation over the last axis."""
    made: Tensor = LayerNorm(epsilon=epsilon, name=name)(x)
    return made


def embedding(indices: Tensor, rows: int, width: int, *, dtype: str = "f32", name: str | None = None) -> Tensor:
    """Row i of weight[rows, width] for every index i."""
    made: Tensor = Embedding(rows, width, dtype, name=name)(indices)
    return made


def dropout(x: Tensor, rate: float, *, key: Tensor | None = None, name: str | None = None) -> Tensor:
    """Zeros for a share of the elements in training, see `sublet.nn.modules.Dropout`."""
    made: Tensor = Dropout(rate, name=name)(x, key)
    return made


def self_attention(
    x: Tensor, heads: int, *, causal: bool = False, bias: bool = True, name: str | None = None
) -> Tensor:
    """Multi-head self-attention of x[B, T, D] (Vaswani et al., 2017)."""
    made: Tensor = SelfAttention(heads, causal, bias, name=name)(x)
    return made


def lstm(xs: Tensor, units: int, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A loop of LSTM cells over xs[T, B, I] from zero; gives all h[T, B, units], the last h and the last c."""
    ys, [(h, c)] = LSTM(units, hidden_bias=False, fused=False, name=name)(xs)
    return ys, h, c

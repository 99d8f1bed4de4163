"""Layers as functions: modules called once, named by the open scope.

A layer without a name has the name of its kind, numbered from the second: "dense", "dense_2". Weights start as in
PyTorch's layers by default: uniform in +-1/sqrt(fan in). Weights are drawn when the graph is compiled, by a generator
seeded with the name of the parameter: two runs start alike. Every layer raises SpecError, beginning with the user's
line, for a tensor without the documented axes, and for a name already in use.
"""

from __future__ import annotations

from sublet.nn.modules.convolution import Conv
from sublet.nn.modules.linear import Dense, Embedding, SelfAttention
from sublet.nn.modules.module import kaiming_normal, kaiming_uniform, normal, uniform, xavier_normal, xavier_uniform
from sublet.nn.modules.normalization import BatchNorm, Dropout, LayerNorm
from sublet.nn.modules.recurrent import LSTM
from sublet.nn.source_location import Draw
from sublet.nn.tensor import Tensor

__all__ = [
    "batch_norm",
    "conv",
    "dense",
    "dropout",
    "embedding",
    "kaiming_normal",
    "kaiming_uniform",
    "layer_norm",
    "lstm",
    "normal",
    "self_attention",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]


def dense(x: Tensor, units: int, *, bias: bool = True, initial: Draw | None = None, name: str | None = None) -> Tensor:
    """Return x[..., I] @ weight[units, I].T + bias[units], of shape [..., units]; see `sublet.nn.modules.Dense`."""
    result: Tensor = Dense(units, bias, initial, name=name)(x)
    return result


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
    initial: Draw | None = None,
    name: str | None = None,
) -> Tensor:
    """Return a convolution of x[N, C, spatial...], of shape [N, channels, spatial...]; see `sublet.nn.modules.Conv`."""
    result: Tensor = Conv(channels, kernel, strides, pads, dilations, groups, bias, initial, name=name)(x)
    return result


def batch_norm(x: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.1, name: str | None = None) -> Tensor:
    """Return x[N, C, ...] normalised over all axes but C, of the same shape.

    In training, the running statistics are states, updated in place with weight `momentum`; in evaluation, the running
    statistics normalise. See `sublet.nn.modules.BatchNorm`.
    """
    result: Tensor = BatchNorm(epsilon, momentum, name=name)(x)
    return result


def layer_norm(x: Tensor, *, epsilon: float = 1e-5, name: str | None = None) -> Tensor:
    """Return x[..., D] normalised over the last axis, of the same shape."""
    result: Tensor = LayerNorm(epsilon=epsilon, name=name)(x)
    return result


def embedding(
    indices: Tensor, rows: int, width: int, *, dtype: str = "f32", initial: Draw | None = None, name: str | None = None
) -> Tensor:
    """Return row i of weight[rows, width] for every index i: indices[...] -> [..., width]."""
    result: Tensor = Embedding(rows, width, dtype, initial, name=name)(indices)
    return result


def dropout(x: Tensor, rate: float, *, key: Tensor | None = None, name: str | None = None) -> Tensor:
    """Return x with a share `rate` of zeros in training, x itself in evaluation; see `sublet.nn.modules.Dropout`."""
    result: Tensor = Dropout(rate, name=name)(x, key)
    return result


def self_attention(
    x: Tensor, heads: int, *, causal: bool = False, bias: bool = True, name: str | None = None
) -> Tensor:
    """Return the multi-head self-attention of x[B, T, D], of shape [B, T, D] (Vaswani et al., 2017).

    Raises SpecError if D is not divisible by `heads`.
    """
    result: Tensor = SelfAttention(heads, causal, bias, name=name)(x)
    return result


def lstm(xs: Tensor, units: int, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return all h[T, B, units], the last h and the last c, both [B, units], of an LSTM over xs[T, B, I] from zero.

    The LSTM is a loop of cells, without the hidden bias.
    """
    ys, [(h, c)] = LSTM(units, hidden_bias=False, fused=False, name=name)(xs)
    return ys, h, c

"""Losses: the difference between the output of a network and the target."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from sublet.integrations.torch.kernels.activation import SOFTPLUS_IDENTITY_FROM
from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Operands,
    Tensor,
    TorchKernel,
    backward_kernel,
    has_f32_or_f64,
    scratch_tensor,
    single_call_kernel,
    torch,
)
from sublet.ir.graph import Node
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call

NO_REDUCTION = 0
"""PyTorch's number for reduction="none"."""


def _column_scratch(node: Node) -> int:
    """Return the scratch bytes: an index, a number and a bool for each label."""
    labels = spec_of(operand(node, len(node.inputs) - 1))
    return labels.size * (8 + spec_of(operand(node, 0)).dtype.bits // 8 + 1)


class _Columns(NamedTuple):
    """Tensors [N, 1] in scratch memory, with the calls filling `index` and `absent`."""

    index: Tensor  # the labels as i64, with class 0 for a negative label
    absent: Tensor  # True for a negative label
    numbers: Tensor
    fill_calls: list[Call]


def _columns(labels: Tensor, dtype: Any, scratch: Tensor) -> _Columns:
    t, count = torch(), labels.numel()
    index = scratch_tensor(scratch, t.int64, (count, 1))
    numbers = scratch_tensor(scratch, dtype, (count, 1), 8 * count)
    absent = scratch_tensor(scratch, t.bool, (count, 1), (8 + dtype.itemsize) * count)
    copied = partial(index.copy_, labels.view(count, 1))
    return _Columns(index, absent, numbers, [copied, partial(t.lt, index, 0, out=absent), partial(index.clamp_min_, 0)])


def _as_rows(x: Tensor) -> Tensor:
    """Return [..., C] viewed as [N, C]."""
    return x.view(x.numel() // x.shape[-1], x.shape[-1])


def _cross_entropy(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    p, labels = inputs
    columns, loss = _columns(labels, p.dtype, scratch), outputs[0].view(-1, 1)
    return [
        *columns.fill_calls,
        partial(torch().gather, _as_rows(p), 1, columns.index, out=loss),
        loss.log_,
        loss.neg_,
        partial(loss.masked_fill_, columns.absent, 0),
    ]


def _cross_entropy_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Fill with zeros, and -dloss / p at the label; computed before the fill, because the result may overwrite p."""
    t, (dloss, p, labels), dp = torch(), inputs, _as_rows(outputs[0])
    columns = _columns(labels, p.dtype, scratch)
    value = columns.numbers
    return [
        *columns.fill_calls,
        partial(t.gather, _as_rows(p), 1, columns.index, out=value),
        partial(t.div, dloss.view(-1, 1), value, out=value),
        value.neg_,
        partial(value.masked_fill_, columns.absent, 0),
        dp.zero_,
        partial(dp.scatter_, 1, columns.index, value),
    ]


def _softmax_cross_entropy(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute (highest - x[label]) - log(highest probability).

    The highest probability is exp(0) / sum: no second exponential of all elements is needed.
    """
    t, x, labels = torch(), _as_rows(inputs[0]), inputs[1]
    loss, p = outputs[0].view(-1, 1), _as_rows(outputs[1])
    columns = _columns(labels, x.dtype, scratch)
    highest = columns.numbers
    return [
        *columns.fill_calls,
        partial(t.amax, x, 1, True, out=highest),
        partial(t.gather, x, 1, columns.index, out=loss),
        partial(t.sub, highest, loss, out=loss),
        partial(t._softmax, x, 1, False, out=p),
        partial(t.amax, p, 1, True, out=highest),
        highest.log_,
        partial(loss.sub_, highest),
        partial(loss.masked_fill_, columns.absent, 0),
    ]


def _softmax_cross_entropy_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute p * dloss, minus dloss at the label."""
    t, (dloss, p, labels), dx = torch(), inputs, _as_rows(outputs[0])
    columns = _columns(labels, p.dtype, scratch)
    weight = columns.numbers
    return [
        *columns.fill_calls,
        partial(weight.copy_, dloss.view(-1, 1)),
        partial(weight.masked_fill_, columns.absent, 0),
        partial(t.mul, _as_rows(p), weight, out=dx),
        weight.neg_,
        partial(dx.scatter_add_, 1, columns.index, weight),
    ]


def _logits_bytes(node: Node) -> int:
    return spec_of(operand(node, 0)).nbytes


def _logits(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute (max(x, 0) - t x) + softplus(-|x|).

    The simpler softplus(x) - t x needs no scratch memory, but cancels for large x and t = 1.
    """
    t, (x, target), (loss,) = torch(), inputs, outputs
    rest = scratch_tensor(scratch, x.dtype, x.shape)
    return [
        partial(t.clamp_min, x, 0, out=rest),
        partial(rest.addcmul_, x, target, value=-1),
        partial(t.abs, x, out=loss),
        loss.neg_,
        partial(t._C._nn.softplus, loss, 1, SOFTPLUS_IDENTITY_FROM, out=loss),
        partial(loss.add_, rest),
    ]


def _logits_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t, (dloss, x, target), (dx,) = torch(), inputs, outputs
    return [partial(t.sigmoid, x, out=dx), partial(dx.sub_, target), partial(dx.mul_, dloss)]


KERNELS: Mapping[str, TorchKernel] = {
    # ATen allocates memory to gather and scatter 16-bit floats.
    "categorical_cross_entropy": TorchKernel(_cross_entropy, _column_scratch, has_f32_or_f64),
    "categorical_cross_entropy_gradient": TorchKernel(_cross_entropy_gradient, _column_scratch, has_f32_or_f64),
    "softmax_cross_entropy": TorchKernel(_softmax_cross_entropy, _column_scratch, has_f32_or_f64),
    "softmax_cross_entropy_gradient": TorchKernel(_softmax_cross_entropy_gradient, _column_scratch, has_f32_or_f64),
    "sigmoid_binary_cross_entropy": TorchKernel(_logits, _logits_bytes),
    "sigmoid_binary_cross_entropy_gradient": TorchKernel(_logits_gradient),
    "binary_cross_entropy": TorchKernel(
        single_call_kernel("_C._nn.binary_cross_entropy", lambda node, _: (None, NO_REDUCTION))
    ),
    "binary_cross_entropy_gradient": TorchKernel(
        backward_kernel("binary_cross_entropy_backward", lambda node, _: (None, NO_REDUCTION))
    ),
    "mse": TorchKernel(single_call_kernel("_C._nn.mse_loss", lambda node, _: (NO_REDUCTION,))),
    "mse_gradient": TorchKernel(backward_kernel("mse_loss_backward", lambda node, _: (NO_REDUCTION,))),
    "smooth_l1": TorchKernel(
        single_call_kernel("_C._nn.smooth_l1_loss", lambda node, _: (NO_REDUCTION, node.attrs["beta"]))
    ),
    "smooth_l1_gradient": TorchKernel(
        backward_kernel("smooth_l1_loss_backward", lambda node, _: (NO_REDUCTION, node.attrs["beta"]))
    ),
}

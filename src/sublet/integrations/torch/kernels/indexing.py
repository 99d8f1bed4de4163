"""Reads and writes at indices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from sublet.base.tensor import DType
from sublet.integrations.torch.kernels.elementwise import has_float_input
from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import number_as, operand, result
from sublet.runtime.kernel import Call


def _axis(node: Node) -> int:
    """Return the axis counted from the front; 0 for embeddings, which select rows."""
    axis = int(pick(node.attrs, "axis")) if "axis" in node.attrs else 0
    return axis if axis >= 0 else axis + len(spec_of(operand(node, 0)).shape)


def _index_select(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Select with all axes of the indices merged into one axis."""
    x, indices = inputs
    axis = _axis(node)
    flat = outputs[0].view(*x.shape[:axis], indices.numel(), *x.shape[axis + 1 :])
    return partial(torch().index_select, x, axis, indices.view(-1), out=flat)


def _index_select_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, indices, dx = *inputs, outputs[0]
    axis = _axis(node)
    flat = dy.view(*dx.shape[:axis], indices.numel(), *dx.shape[axis + 1 :])
    return [dx.zero_, partial(dx.index_add_, axis, indices.view(-1), flat)]


def _wide_index_bytes(node: Node, position: int) -> int:
    """Return the bytes of the indices as i64, required by some ATen functions; 0 if the indices are i64."""
    spec = spec_of(operand(node, position))
    return 0 if spec.dtype is DType.I64 else 8 * prod(spec.shape)


def _as_i64(indices: Tensor, scratch: Tensor) -> tuple[Tensor, list[Call]]:
    """Return the indices as i64, and the calls converting the indices."""
    if scratch is None:
        return indices, []
    wide = scratch_tensor(scratch, torch().int64, indices.shape)
    return wide, [partial(wide.copy_, indices)]


def _gather(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    indices, calls = _as_i64(inputs[1], scratch)
    return [*calls, partial(torch().gather, inputs[0], _axis(node), indices, out=outputs[0])]


def _scatter_add(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    x, y = inputs[0], outputs[0]
    indices, calls = _as_i64(inputs[1], scratch)
    if x.data_ptr() != y.data_ptr():
        calls.append(partial(y.copy_, x))
    return [*calls, partial(y.scatter_add_, _axis(node), indices, inputs[2])]


def _one_hot(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    indices, calls = _as_i64(inputs[0], scratch)
    one = number_as(1, spec_of(result(node)).dtype)
    return [*calls, outputs[0].zero_, partial(outputs[0].scatter_, -1, indices.unsqueeze(-1), one)]


def _masked_fill(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    x, mask = inputs
    value = x.new_full((), number_as(pick(node.attrs, "value"), spec_of(result(node)).dtype))
    return partial(torch().where, mask, value, x, out=outputs[0])


def _select_row(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    return partial(torch().index_select, inputs[0], 0, inputs[1].view(1), out=outputs[0].unsqueeze(0))


KERNELS: Mapping[str, TorchKernel] = {
    "index_select": TorchKernel(_index_select),
    "index_select_gradient": TorchKernel(_index_select_gradient, supports=has_float_input),
    "embedding": TorchKernel(_index_select),
    "embedding_gradient": TorchKernel(_index_select_gradient, supports=has_float_input),
    "gather": TorchKernel(_gather, scratch=lambda node: _wide_index_bytes(node, 1)),
    "scatter_add": TorchKernel(_scatter_add, scratch=lambda node: _wide_index_bytes(node, 1), supports=has_float_input),
    "one_hot": TorchKernel(_one_hot, scratch=lambda node: _wide_index_bytes(node, 0)),
    "masked_fill": TorchKernel(_masked_fill),
    "select": TorchKernel(_select_row),
}

"""Mixed precision: an f32 kernel as a kernel for 16-bit floats.

The kernel widens operands into scratch memory, computes in f32 and rounds the results. The reference computes in the
same way, so no sum or quotient is rounded to 16 bits in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.runtime.backends.torch.kernel import Calls, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.runtime.kernel import Call

HALF_TYPES = (DType.F16, DType.BF16)
CACHE_LINE = 64
"""Alignment of widened operands in scratch memory, in bytes: a cache line."""


def computed_in_f32(fast: TorchKernel) -> TorchKernel:
    """Return the kernel extended to 16-bit floats; computation is in f32."""

    def scratch(node: Node) -> int:
        wide = _widened_node(node)
        return (
            fast.scratch(node)
            if wide is node
            else _round_up_to_line(fast.scratch(wide)) + sum(map(_widened_bytes, _half_operands(node)))
        )

    def make(node: Node, inputs: Operands, outputs: Operands, given: Tensor) -> Calls:
        wide = _widened_node(node)
        if wide is node:
            return fast.make(node, inputs, outputs, given)
        begin = _round_up_to_line(fast.scratch(wide))
        own = given[: fast.scratch(wide)] if fast.scratch(wide) else None
        places: list[Tensor] = []
        for value, operand in zip((*node.inputs, *node.outputs), (*inputs, *outputs), strict=True):
            if value is not None and _is_half(value):
                places.append(scratch_tensor(given, torch().float32, operand.shape, begin))
                begin += _widened_bytes(value)
            else:
                places.append(operand)
        count = len(inputs)
        calls = fast.make(wide, places[:count], places[count:], own)
        return [
            *_copies_between(inputs, places[:count]),
            *((calls,) if callable(calls) else calls),
            *_copies_between(places[count:], outputs),
        ]

    return replace(fast, make=make, scratch=scratch, supports=lambda node: fast.supports(_widened_node(node)))


def _copies_between(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Call]:
    pairs = zip(sources, targets, strict=True)
    return [_copy_call(source, to) for source, to in pairs if source is not to]


def _copy_call(source: Tensor, to: Tensor) -> Call:
    return lambda: to.copy_(source)


def _is_half(value: Value) -> bool:
    return spec_of(value).dtype in HALF_TYPES


def _half_operands(node: Node) -> list[Value]:
    """Return the operands to widen, in order; a repeated operand appears repeatedly."""
    return [value for value in (*node.inputs, *node.outputs) if value is not None and _is_half(value)]


def _widened_bytes(value: Value) -> int:
    return _round_up_to_line(4 * spec_of(value).size)


def _round_up_to_line(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE


def _widened_node(node: Node) -> Node:
    """Return the node with f32 in place of 16-bit floats; the same node if no operand is a 16-bit float."""
    if not _half_operands(node):
        return node
    inputs, outputs = (tuple(map(_widened_value, side)) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _widened_value(value: Value | None) -> Value | None:
    if value is None or not _is_half(value):
        return value
    return replace(value, spec=TensorSpec(DType.F32, spec_of(value).shape))

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
from sublet.runtime.backends.torch.kernel import Calls, Fast, Operands, Tensor, bytes_as, torch
from sublet.runtime.kernel import Call

HALVES = (DType.F16, DType.BF16)
LINE = 64
"""Alignment of widened operands in scratch memory, in bytes: a cache line."""


def in_single(fast: Fast) -> Fast:
    """Return the kernel extended to 16-bit floats; computation is in f32."""

    def scratch(node: Node) -> int:
        wide = _widened(node)
        return fast.scratch(node) if wide is node else _lined(fast.scratch(wide)) + sum(map(_bytes, _halves(node)))

    def make(node: Node, inputs: Operands, outputs: Operands, given: Tensor) -> Calls:
        wide = _widened(node)
        if wide is node:
            return fast.make(node, inputs, outputs, given)
        begin = _lined(fast.scratch(wide))
        own = given[: fast.scratch(wide)] if fast.scratch(wide) else None
        places: list[Tensor] = []
        for value, operand in zip((*node.inputs, *node.outputs), (*inputs, *outputs), strict=True):
            if value is not None and _is_half(value):
                places.append(bytes_as(given, torch().float32, operand.shape, begin))
                begin += _bytes(value)
            else:
                places.append(operand)
        count = len(inputs)
        calls = fast.make(wide, places[:count], places[count:], own)
        return [
            *_copies(inputs, places[:count]),
            *((calls,) if callable(calls) else calls),
            *_copies(places[count:], outputs),
        ]

    return replace(fast, make=make, scratch=scratch, takes=lambda node: fast.takes(_widened(node)))


def _copies(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Call]:
    pairs = zip(sources, targets, strict=True)
    return [_copy(source, to) for source, to in pairs if source is not to]


def _copy(source: Tensor, to: Tensor) -> Call:
    return lambda: to.copy_(source)


def _is_half(value: Value) -> bool:
    return spec_of(value).dtype in HALVES


def _halves(node: Node) -> list[Value]:
    """Return the operands to widen, in order; a repeated operand appears repeatedly."""
    return [value for value in (*node.inputs, *node.outputs) if value is not None and _is_half(value)]


def _bytes(value: Value) -> int:
    return _lined(4 * spec_of(value).size)


def _lined(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _widened(node: Node) -> Node:
    """Return the node with f32 in place of 16-bit floats; the same node if no operand is a 16-bit float."""
    if not _halves(node):
        return node
    inputs, outputs = (tuple(map(_wide, side)) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _wide(value: Value | None) -> Value | None:
    if value is None or not _is_half(value):
        return value
    return replace(value, spec=TensorSpec(DType.F32, spec_of(value).shape))

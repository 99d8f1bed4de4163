"""Comparisons and logic of single elements, without a session: a loop's condition costs less than the call of one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sublet.ir.graph import Node
from sublet.ops.onnx import PREFIX
from sublet.runtime.kernel import Call, Operand

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "And": operator.and_,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Not": operator.not_,
    "Or": operator.or_,
    "Xor": operator.xor,
}
"""Operators whose result is one bool, the same whoever computes it."""

EXACT = (np.bool_, np.int32, np.int64, np.float32, np.float64)
"""Element types whose values are Python's own."""

MOST = 8
"""With more nodes in a line, the session costs less."""


def scalar_call(node: Node, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None]) -> Call | None:
    """A call that computes the node in Python; None unless it is one of these operators, of single elements."""
    function = FUNCTIONS.get(node.op.removeprefix(PREFIX))
    operands = [
        operand
        for operand in (*inputs, *outputs)
        if isinstance(operand, np.ndarray) and operand.shape == () and operand.dtype.type in EXACT
    ]
    if function is None or len(operands) != len(inputs) + len(outputs):
        return None
    *read, out = operands
    if len(read) == 1:
        only = read[0].item

        def compute_one() -> None:
            out[()] = function(only())

        return compute_one
    left, right = (operand.item for operand in read)

    def compute() -> None:
        out[()] = function(left(), right())

    return compute

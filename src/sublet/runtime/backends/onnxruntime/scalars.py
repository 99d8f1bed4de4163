"""Comparisons and logic of single elements without a session, at less cost: for conditions of loops."""

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
"""Operators with a single bool as result, the same in Python and in ONNX Runtime."""

EXACT = (np.bool_, np.int32, np.int64, np.float32, np.float64)
"""Element types with an exact equivalent in Python."""

MAX_NODES = 8
"""Most neighbouring scalar nodes run in Python; with more, a session costs less."""


def scalar_call(node: Node, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None]) -> Call | None:
    """Return a call computing the node in Python; None for other operators, or operands that are no scalars."""
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

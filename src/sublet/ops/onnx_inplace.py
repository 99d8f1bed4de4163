"""In-place facts of ONNX operators: the inputs overwritable by the output.

An element-wise kernel reads element i of an input with the output's shape only to write element i. Tests verify every
entry by running ONNX Runtime's CPU kernels in a single buffer. Gelu, FastGelu and QuickGelu are missing: their kernels
read the input again after writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.op import Share, Shares

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu"),
    *("Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
)
BINARY = (
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
    *("GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor"),
)
VARIADIC = ("Mean", "Sum")
EXTREMES = ("Max", "Min")
"""Operators whose old kernels copy the first input to the output before reading the second input."""

ROW_READ_AGAIN = {"LogSoftmax": DType.F64}
"""Kernels reading a row again after writing the row, with the affected element type."""

NORMALIZATIONS = ("LayerNormalization", "LogSoftmax", "SimplifiedLayerNormalization", "Softmax")
SCATTERS = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")


def can_overwrite(source: Value | None, result: Value | None) -> bool:
    """True if both values are plannable, have equal shapes, and elements of equal size, of at least a byte."""
    if source is None or result is None:
        return False
    a, b = source.spec, result.spec
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
        return False
    return a.shape == b.shape and a.dtype.bits == b.dtype.bits >= 8 and a.nbytes > 0


def overwrite_any_of(positions: Sequence[int]) -> Shares:
    """Return the fact: output 0 may overwrite any fitting input at `positions`."""

    def shares(node: Node) -> tuple[Share, ...]:
        result = node.outputs[0] if node.outputs else None
        return tuple(Share(0, i) for i in positions if i < len(node.inputs) and can_overwrite(node.inputs[i], result))

    return shares


def _overwrite_first(node: Node) -> tuple[Share, ...]:
    """Return the share of output 0 with input 0, unless input 0 is repeated at a different position."""
    if not node.inputs or not node.outputs or not can_overwrite(node.inputs[0], node.outputs[0]):
        return ()
    return () if node.inputs[0] in node.inputs[1:] else (Share(0, 0),)


def _overwrite_in_inference(node: Node) -> tuple[Share, ...]:
    """Return the share for BatchNormalization with running statistics: a factor and a term for each channel."""
    training = node.attrs.get("training_mode", 0) or any(node.outputs[1:])
    return () if training else _overwrite_first(node)


def _overwrite_addend(node: Node) -> tuple[Share, ...]:
    """Return the share of a convolution with a fourth input, the initial value of the sum."""
    if len(node.inputs) < 4 or not node.outputs or not can_overwrite(node.inputs[3], node.outputs[0]):
        return ()
    return () if node.inputs[3] in node.inputs[:3] else (Share(0, 3),)


def _overwrite_rows(positions: Sequence[int]) -> Shares:
    """Return the fact for kernels reading each row along the last axis before writing the row.

    An attribute `axis` must name the last axis; without the attribute, the rows may span several axes.
    """

    any_of_them = overwrite_any_of(positions)

    def shares(node: Node) -> tuple[Share, ...]:
        result = node.outputs[0] if node.outputs else None
        spec = result.spec if result is not None else None
        if not isinstance(spec, TensorSpec) or node.attrs.get("axis", -1) not in (-1, len(spec.shape) - 1):
            return ()
        if ROW_READ_AGAIN.get(node.op.rpartition(".")[2]) is spec.dtype:
            return ()
        return any_of_them(node)

    return shares


INPLACE: Mapping[str, Shares] = {
    **dict.fromkeys(UNARY, overwrite_any_of((0,))),
    **dict.fromkeys(BINARY, overwrite_any_of((0, 1))),
    **dict.fromkeys(VARIADIC, overwrite_any_of((0, 1))),
    **dict.fromkeys(EXTREMES, overwrite_any_of((0,))),
    **dict.fromkeys(SCATTERS, _overwrite_first),
    "com.microsoft.BiasGelu": overwrite_any_of((0,)),
    "Where": overwrite_any_of((1, 2)),
    "BatchNormalization": _overwrite_in_inference,
    "com.microsoft.FusedConv": _overwrite_addend,
    "com.microsoft.nchwc.Conv": _overwrite_addend,
    **dict.fromkeys(NORMALIZATIONS, _overwrite_rows((0,))),
    "com.microsoft.SkipLayerNormalization": _overwrite_rows((0, 1)),
    "com.microsoft.SkipSimplifiedLayerNormalization": _overwrite_rows((0, 1)),
}

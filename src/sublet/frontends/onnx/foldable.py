"""What may be folded: operators whose results by ONNX's reference implementation were compared with ONNX Runtime's.

The reference implementation is wrong for some operators, attributes and types (the order of Unique, a OneHot of
floats, NaN in Clip); a constant computed by it would be a wrong answer that nobody sees. So this is a list of what
may be, not of what may not, and a test draws nodes of every row and computes them both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.extras import require
from sublet.frontends.onnx.weights import Array
from sublet.tensor import DType

if TYPE_CHECKING:
    import onnx

Types = frozenset[DType]

BOOL: Types = frozenset({DType.BOOL})
INDICES: Types = frozenset({DType.I32, DType.I64})
INTEGERS: Types = INDICES | {DType.I8, DType.I16, DType.U8, DType.U16, DType.U32, DType.U64}
FLOATS: Types = frozenset({DType.F32, DType.F64})
NUMBERS: Types = INDICES | FLOATS
COMMON: Types = BOOL | INTEGERS | FLOATS | {DType.F16}
MOVED: Types = COMMON | {DType.BF16}

SAME_ORDER = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Their result has the elements of the first operand in the same order."""

FOLDABLE: Mapping[str, Types] = {
    **dict.fromkeys(("And", "Not", "Or", "Xor"), BOOL),
    **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), INTEGERS),
    **dict.fromkeys(("Clip", "Mod"), INDICES),
    **dict.fromkeys(("Ceil", "Exp", "Floor", "Log", "Reciprocal", "Round", "Sqrt", "Cos", "Sin"), FLOATS),
    **{"IsInf": FLOATS | BOOL, "IsNaN": FLOATS | BOOL, "OneHot": frozenset({DType.I64})},
    **dict.fromkeys(
        ("Abs", "Add", "CumSum", "Div", "Max", "Min", "Mul", "Neg", "Pow", "Range", "Sign", "Sub"), NUMBERS
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), NUMBERS),
    **dict.fromkeys(("ArgMax", "ArgMin", "EyeLike", "TopK"), NUMBERS),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), NUMBERS | BOOL),
    **{"NonZero": INDICES | BOOL, "Pad": NUMBERS | BOOL, "Trilu": NUMBERS | BOOL},
    **dict.fromkeys(("Cast", "CastLike", "Compress", "Concat", "Expand", "Gather", "GatherElements"), COMMON),
    **dict.fromkeys(("GatherND", "ScatterElements", "ScatterND", "Slice", "Split", "Tile"), COMMON),
    "Where": NUMBERS | BOOL | {DType.F16, DType.U8},
    **dict.fromkeys((*SAME_ORDER, "Transpose"), MOVED),
}
"""Operator of ONNX's own domain -> the types its operands and results may have."""

OLDEST, NEWEST = 7, 26
"""For these versions of the operator set it was compared: ONNX Runtime runs them."""

LATER: Mapping[str, int] = {"Max": 8, "Min": 8}
"""Operators whose oldest forms ONNX Runtime does not have for all types."""

FILTERS = frozenset({"Compress", "NonZero"})
"""Their results are not larger than a few times their inputs, although no rule tells the shape."""

Guard = Callable[["onnx.NodeProto", Sequence["Array | None"]], bool]


def _quotient_exists(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """An integer divided by zero, and the smallest one by -1, end a process that computes them."""
    dividend, divisor = arrays[:2]
    if dividend is None or divisor is None or divisor.dtype.kind == "f":
        return divisor is not None
    overflows = bool((divisor == -1).any()) and bool((dividend == np.iinfo(dividend.dtype).min).any())
    return bool(divisor.all()) and not overflows


def _plain_remainder(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """ONNX Runtime takes fmod of 64-bit integers in floating point."""
    return _quotient_exists(node, arrays) and not any(a.name == "fmod" and a.i for a in node.attribute)


def _converts_alike(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """What an integer gets of NaN, infinity or a number out of range depends on the processor."""
    source, target = arrays[0], converted_to(node, arrays)
    if source is None or target is None or source.dtype.kind == "b" or target.kind not in "iu":
        return source is not None
    if source.dtype.kind in "iu":
        return True
    limits = np.iinfo(target)
    wide = source.astype(np.float64)
    return bool((wide > max(limits.min - 1, -(2.0**63))).all() and (wide < limits.max).all())


def converted_to(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> np.dtype[Any] | None:
    """The type of the elements that a Cast or CastLike gives."""
    if node.op_type == "CastLike":
        return None if len(arrays) < 2 or arrays[1] is None else arrays[1].dtype
    to = next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)
    found: np.dtype[Any] = require("onnx.helper", extra="onnx").tensor_dtype_to_np_dtype(to)
    return found


def _has_axes(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    return arrays[0] is not None and arrays[0].ndim > 0


def _ends_plainly(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """Going backwards, ONNX Runtime takes the largest integer for the very beginning; it is a place after the end."""
    if len(arrays) < 5 or arrays[2] is None or arrays[4] is None:
        return True
    return bool(((arrays[4] > 0) | (arrays[2] < np.iinfo(np.int32).max)).all())


def _chooses_numbers(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    return arrays[1] is not None and arrays[1].dtype.kind != "b"


GUARDS: Mapping[str, Guard] = {
    "Cast": _converts_alike,
    "CastLike": _converts_alike,
    "Div": _quotient_exists,
    "Mod": _plain_remainder,
    "NonZero": _has_axes,
    "Slice": _ends_plainly,
    "Where": _chooses_numbers,
}
"""What else must hold of the attributes and the content of the operands."""


def foldable(op_type: str, version: int, since: int, types: Sequence[DType]) -> bool:
    """Whether a node of this operator of ONNX's own domain, between such types, may be folded.

    `since` is the version of the operator set in which the operator became what it is in `version`.
    """
    return (
        version >= LATER.get(op_type, OLDEST)
        and since <= NEWEST
        and FOLDABLE.get(op_type, frozenset()).issuperset(types)
    )


def guarded(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """Whether its operands are such that every implementation gives the same."""
    guard = GUARDS.get(node.op_type)
    return guard is None or guard(node, arrays)

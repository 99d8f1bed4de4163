"""Table of foldable operators: ONNX's reference implementation and ONNX Runtime agree bit for bit.

The reference implementation is wrong for some operators, attributes and types (the order of Unique, a OneHot of floats,
NaN in Clip), and rounds differently in others (Exp, a sum of floats). A constant computed with a wrong rule would be a
silent wrong result, so the table is a whitelist. A test draws random nodes for every row and compares both
implementations. Floating-point operators are listed only if IEEE 754 defines the result exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.optional_imports import require
from sublet.base.tensor import INTEGERS, DType
from sublet.integrations.onnx.reader.weights import Array

if TYPE_CHECKING:
    import onnx

DTypeSet = frozenset[DType]

BOOL: DTypeSet = frozenset({DType.BOOL})
INDICES: DTypeSet = frozenset({DType.I32, DType.I64})
FLOATS: DTypeSet = frozenset({DType.F32, DType.F64})
NUMBERS: DTypeSet = INDICES | FLOATS
COMMON: DTypeSet = BOOL | FLOATS | {DType.F16, *INTEGERS}
MOVED: DTypeSet = COMMON | {DType.BF16}

SAME_ORDER = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result has the elements of the first operand in the same order."""

FOLDABLE: Mapping[str, DTypeSet] = {
    **dict.fromkeys(("And", "Not", "Or", "Xor"), BOOL),
    **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), frozenset(INTEGERS)),
    **dict.fromkeys(("Clip", "CumSum", "Mod", "Pow", "ReduceMean", "ReduceProd", "ReduceSum"), INDICES),
    **dict.fromkeys(("Ceil", "Floor", "Reciprocal", "Round", "Sqrt"), FLOATS),
    **{"IsInf": FLOATS | BOOL, "IsNaN": FLOATS | BOOL, "OneHot": frozenset({DType.I64})},
    **dict.fromkeys(("Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Range", "Sign", "Sub"), NUMBERS),
    **dict.fromkeys(("ArgMax", "ArgMin", "EyeLike", "ReduceMax", "ReduceMin", "TopK"), NUMBERS),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), NUMBERS | BOOL),
    **{"NonZero": INDICES | BOOL, "Pad": NUMBERS | BOOL, "Trilu": NUMBERS | BOOL},
    **dict.fromkeys(("Cast", "CastLike", "Compress", "Concat", "Expand", "Gather", "GatherElements"), COMMON),
    **dict.fromkeys(("GatherND", "ScatterElements", "ScatterND", "Slice", "Split", "Tile"), COMMON),
    "Where": NUMBERS | BOOL | {DType.F16, DType.U8},
    **dict.fromkeys((*SAME_ORDER, "Transpose"), MOVED),
}
"""Operator of ONNX's default domain -> the allowed types of operands and results."""

OLDEST_FOLDABLE_OPSET, NEWEST_FOLDABLE_OPSET = 7, 26
"""The versions of the operator set compared with ONNX Runtime; nodes of other versions are not folded."""

FIRST_FOLDABLE_OPSET: Mapping[str, int] = {"Max": 8, "Min": 8}
"""The first foldable version of operators whose older forms ONNX Runtime does not support for all types."""

DATA_DEPENDENT_FILTERS = frozenset({"Compress", "NonZero"})
"""Operators with a data-dependent shape whose result is at most a few times as large as the inputs."""

Guard = Callable[["onnx.NodeProto", Sequence["Array | None"]], bool]


def _has_no_nan(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if no operand holds NaN: implementations differ in the resulting NaN bits and in comparisons."""
    return not any(array is not None and array.dtype.kind == "f" and np.isnan(array).any() for array in arrays)


def _has_no_nan_or_negative_zero(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if no operand holds NaN or -0.0: implementations differ in choosing between 0.0 and -0.0."""
    floats = [array for array in arrays if array is not None and array.dtype.kind == "f"]
    return _has_no_nan(node, arrays) and not any((np.signbit(array) & (array == 0)).any() for array in floats)


def _has_exact_choice(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if the operands of Where are not bool and hold neither NaN nor -0.0."""
    return arrays[1] is not None and arrays[1].dtype.kind != "b" and _has_no_nan_or_negative_zero(node, arrays)


def _has_exact_steps(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if the float operands of Range are whole numbers below 2^23, so no step is rounded."""
    floats = [array for array in arrays if array is not None and array.dtype.kind == "f"]
    return all(bool((np.abs(array) < 1 << 23).all()) and bool((array % 1 == 0).all()) for array in floats)


def _is_exact_up_to(total: float, kind: np.dtype[Any]) -> bool:
    """True if a result of at most `total` is equal in integer arithmetic and in ONNX Runtime's double arithmetic."""
    return total < min(1 << 53, int(np.iinfo(kind).max))


def _has_exact_sum(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if a sum over all elements is exact in integers and in doubles."""
    return arrays[0] is not None and _is_exact_up_to(np.abs(arrays[0].astype(np.float64)).sum(), arrays[0].dtype)


def _has_exact_product(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if a product of all elements is exact in integers and in doubles."""
    if arrays[0] is None:
        return False
    return _is_exact_up_to(np.maximum(np.abs(arrays[0].astype(np.float64)), 1).prod(), arrays[0].dtype)


def _has_exact_powers(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if all exponents are at least 0 and every power is exact in integers and in doubles."""
    base, exponent = arrays[:2]
    if base is None or exponent is None or (exponent < 0).any():
        return False
    powers = np.power(np.abs(base.astype(np.float64)), exponent.astype(np.float64))
    return _is_exact_up_to(powers.max(initial=0), base.dtype)


def _has_exact_quotient(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if every quotient is defined: integer division by zero, and the minimum divided by -1, abort the process."""
    dividend, divisor = arrays[:2]
    if dividend is None or divisor is None or divisor.dtype.kind == "f":
        return divisor is not None and _has_no_nan(node, arrays)
    overflows = bool((divisor == -1).any()) and bool((dividend == np.iinfo(dividend.dtype).min).any())
    return bool(divisor.all()) and not overflows


def _has_exact_remainder(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if the remainder is exact: ONNX Runtime computes fmod of 64-bit integers in floating point."""
    return _has_exact_quotient(node, arrays) and not any(a.name == "fmod" and a.i for a in node.attribute)


F64_TO_F16 = (np.dtype(np.float64), np.dtype(np.float16))


def _has_exact_conversion(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if the conversion gives equal bits on every processor.

    Converting NaN, infinity or an out-of-range number to an integer depends on the processor. ONNX Runtime converts f64
    to f16 through f32, and so rounds twice.
    """
    source, target = arrays[0], cast_target_of(node, arrays)
    if source is None or target is None or (source.dtype, target) == F64_TO_F16:
        return False
    if target.kind == "f":
        return _has_no_nan(node, arrays)
    if source.dtype.kind != "f" or target.kind not in "iu":
        return True
    limits = np.iinfo(target)
    wide = source.astype(np.float64)
    return bool((wide > max(limits.min - 1, -(2.0**63))).all() and (wide < limits.max).all())


def cast_target_of(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> np.dtype[Any] | None:
    """Return the target element type of a Cast or CastLike, None if unknown."""
    if node.op_type == "CastLike":
        return None if len(arrays) < 2 or arrays[1] is None else arrays[1].dtype
    to = next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)
    dtype: np.dtype[Any] = require("onnx.helper", extra="onnx").tensor_dtype_to_np_dtype(to)
    return dtype


def _has_axes(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if the operand is not a scalar."""
    return arrays[0] is not None and arrays[0].ndim > 0


def _has_portable_ends(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if no Slice with a negative step ends at the largest integer.

    ONNX reads the largest integer as a place after the last element; ONNX Runtime reads the beginning.
    """
    if len(arrays) < 5 or arrays[2] is None or arrays[4] is None:
        return True
    return bool(((arrays[4] > 0) | (arrays[2] < np.iinfo(np.int32).max)).all())


GUARDS: Mapping[str, Guard] = {
    **dict.fromkeys(("Abs", "Add", "ArgMax", "ArgMin", "Ceil", "Floor", "Mul", "Neg"), _has_no_nan),
    **dict.fromkeys(("Reciprocal", "Round", "Sign", "Sqrt", "Sub"), _has_no_nan),
    **dict.fromkeys(("Max", "Min", "ReduceMax", "ReduceMin", "TopK"), _has_no_nan_or_negative_zero),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), _has_exact_sum),
    **dict.fromkeys(("Cast", "CastLike"), _has_exact_conversion),
    **{"Pow": _has_exact_powers, "Range": _has_exact_steps, "ReduceProd": _has_exact_product},
    **{"Div": _has_exact_quotient, "Mod": _has_exact_remainder},
    **{"NonZero": _has_axes, "Slice": _has_portable_ends, "Where": _has_exact_choice},
}
"""Operator -> the condition on attributes and operand contents for folding."""


def is_foldable(op_type: str, version: int, since: int, types: Sequence[DType]) -> bool:
    """True if a node of this operator of ONNX's default domain, with operands and results of `types`, may be folded.

    `version` is the imported version of the operator set; `since` is the version of the operator's current definition.
    """
    return (
        version >= FIRST_FOLDABLE_OPSET.get(op_type, OLDEST_FOLDABLE_OPSET)
        and since <= NEWEST_FOLDABLE_OPSET
        and FOLDABLE.get(op_type, frozenset()).issuperset(types)
    )


def has_foldable_content(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> bool:
    """True if both implementations give equal bits for the attributes and operand contents of the node."""
    guard = GUARDS.get(node.op_type)
    with np.errstate(all="ignore"):
        return guard is None or guard(node, arrays)

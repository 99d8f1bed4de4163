"""Constant folding: nodes with constant inputs are computed during import.

Folding shape arithmetic makes shapes known. ONNX's reference implementation computes small results immediately, for the
operators compared with ONNX Runtime (`foldable_operators`). Results that only move a large weight, or fill memory with
one number, become constants computed on first read. Any more expensive node stays a node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.integrations.onnx.reader.conversion_state import ImportState, KnownValue
from sublet.integrations.onnx.reader.type_inference import schema_of
from sublet.integrations.onnx.reader.types import DTYPES, STRING, TensorType, Type, spec_of
from sublet.integrations.onnx.reader.weights import (
    MAX_SMALL_BYTES,
    Array,
    Weight,
    weight_of_array,
    weight_of_sparse,
    weight_of_tensor,
)

# Table of foldable operators: ONNX's reference implementation and ONNX Runtime agree bit for bit.
#
# The reference implementation is wrong for some operators, attributes and types (the order of Unique, a OneHot of
# floats, NaN in Clip), and rounds differently in others (Exp, a sum of floats). A constant computed with a wrong rule
# would be a silent wrong result, so the table is a whitelist. A test draws random nodes for every row and compares both
# implementations. Floating-point operators are listed only if IEEE 754 defines the result exactly.

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


if TYPE_CHECKING:
    import onnx

MAX_FILL_BYTES = 1 << 30
"""The largest ConstantOfShape folded into a weight, in bytes; a larger result stays a node."""

DATA_MOVEMENT = SAME_ORDER | {"Cast", "Transpose"}
"""Operators folded also for large operands; the result is computed on read.

The import does not inspect the content, which leaves one exception: a Cast of a large weight from or to F16 may give
NaN bits different from ONNX Runtime's, if the weight has a NaN with unusual bits.
"""

CONSTANT_KINDS: dict[str, DType] = {
    "value_int": DType.I64,
    "value_ints": DType.I64,
    "value_float": DType.F32,
    "value_floats": DType.F32,
}


def fold_node(
    program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type]
) -> dict[str, Weight] | None:
    """Return the constant outputs of the node by name in the file; None if the node must run."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Constant":
        return {node.output[0]: _constant_weight(program, node)}
    if node.op_type in ("Shape", "Size"):
        return _fold_shape(program, node, inputs)
    weights = [None if known is None else known.weight for known in inputs]
    if any(known is not None and weight is None for known, weight in zip(inputs, weights, strict=True)):
        return None
    if node.op_type == "ConstantOfShape":
        return _fold_fill(program, node, types[0])
    if not _may_fold(program, node, weights, types):
        return None
    small = all(weight is None or weight.is_small for weight in weights)
    if small and (node.op_type in DATA_DEPENDENT_FILTERS or _are_all_small(types)):
        return _fold_small(program, node, weights, types)
    if node.op_type in DATA_MOVEMENT:
        return _fold_data_movement(program, node, weights, types)
    return None


def _may_fold(
    program: ImportState, node: onnx.NodeProto, weights: Sequence[Weight | None], types: Sequence[Type]
) -> bool:
    """True if the table of foldable operators allows the operator, version and types of the node."""
    version = program.opsets.get("", 1)
    schema = schema_of(node.op_type, "", version)
    between = [weight.spec.dtype for weight in weights if weight and isinstance(weight.spec, TensorSpec)]
    between += [DTYPES[type.elem] for type in types if isinstance(type, TensorType) and type.elem in DTYPES]
    if schema is None or len(between) < sum(weight is not None for weight in weights) + len(types):
        return False
    return is_foldable(node.op_type, version, schema.since_version, between)


def _constant_weight(program: ImportState, node: onnx.NodeProto) -> Weight:
    """Return the content of a Constant node. Raises ModelError for a node without exactly one value attribute."""
    where = f"{program.where}: Constant {node.output[0]!r}"
    if len(node.attribute) != 1:
        raise ModelError(f"{where}: has {len(node.attribute)} attributes instead of one value")
    attribute = node.attribute[0]
    if attribute.name == "value":
        return weight_of_tensor(attribute.t, program.folder, where)
    if attribute.name in CONSTANT_KINDS:
        single = attribute.name in ("value_int", "value_float")
        content: Any = attribute.i if attribute.name == "value_int" else attribute.f
        content = content if single else list(attribute.ints or attribute.floats)
        array = np.array(content, dtype="i8" if "int" in attribute.name else "f4")
        return weight_of_array(array, TensorSpec(CONSTANT_KINDS[attribute.name], array.shape))
    if attribute.name == "sparse_value":
        return weight_of_sparse(attribute.sparse_tensor, program.folder, where)
    if attribute.name in ("value_string", "value_strings"):
        return _string_weight(attribute)
    raise ModelError(f"{where}: has the attribute {attribute.name!r} instead of a value")


def _string_weight(attribute: onnx.AttributeProto) -> Weight:
    """Return the content of a Constant node holding strings."""
    single = attribute.name == "value_string"
    texts = [text.decode("utf-8", "replace") for text in ([attribute.s] if single else attribute.strings)]
    array = np.array(texts, dtype=object).reshape(() if single else (len(texts),))
    type = TensorType(STRING, array.shape)
    return Weight(spec_of(type, ""), lambda: array, type)


def _fold_shape(
    program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None]
) -> dict[str, Weight] | None:
    """Return the shape or element count of the input, for Shape and Size; None while any needed extent is open.

    The value is recorded in `shape_constants`, so a run checks an assumed shape.
    """
    known = inputs[0] if inputs else None
    type = known.type if known is not None else None
    if not isinstance(type, TensorType) or type.dims is None:
        return None
    bounds = {attribute.name: int(attribute.i) for attribute in node.attribute}
    dims = type.dims[bounds.get("start", 0) : bounds.get("end", len(type.dims))]
    extents = [extent for extent in dims if isinstance(extent, int)]
    if known is None or len(extents) < len(dims):
        return None
    program.assumed.shape_constants.add(known.value.name)
    array = np.array(prod(extents) if node.op_type == "Size" else extents, dtype=np.int64)
    return {node.output[0]: weight_of_array(array, TensorSpec(DType.I64, array.shape))}


def _fold_fill(program: ImportState, node: onnx.NodeProto, type: Type) -> dict[str, Weight] | None:
    """Return the filled tensor of a ConstantOfShape, allocated on read; None for an open or too large result."""
    spec = spec_of(type, "")
    if not isinstance(spec, TensorSpec) or spec.nbytes > MAX_FILL_BYTES or spec.dtype.bits < 8:
        return None
    number: Any = np.float32(0)
    if node.attribute:
        where = f"{program.where}: ConstantOfShape {node.output[0]!r}"
        content = weight_of_tensor(node.attribute[0].t, program.folder, where).array()
        if content.size != 1:
            raise ModelError(f"{where}: fills with {content.size} numbers instead of one")
        number = content.ravel()[0]
    return {node.output[0]: Weight(spec, lambda: np.full(spec.shape, number))}


def _are_all_small(types: Sequence[Type]) -> bool:
    """True if every type is fully known and at most `MAX_SMALL_BYTES` large."""
    specs = [spec_of(type, "") for type in types]
    return all(isinstance(spec, TensorSpec) and spec.nbytes <= MAX_SMALL_BYTES for spec in specs)


def _fold_small(
    program: ImportState, node: onnx.NodeProto, weights: Sequence[Weight | None], types: Sequence[Type]
) -> dict[str, Weight] | None:
    """Compute the outputs of a node immediately; None if folding is over budget, guarded against, or fails."""
    cost = sum(weight.spec.nbytes for weight in weights if weight and isinstance(weight.spec, TensorSpec))
    cost += sum(spec.nbytes for type in types if isinstance(spec := spec_of(type, ""), TensorSpec))
    if cost > program.fold_bytes:
        return None
    program.fold_bytes -= cost
    try:
        contents = [weight.array() if weight else None for weight in weights]
        if not has_foldable_content(node, contents):
            return None
        arrays = _output_arrays(program, node, contents, types)
    except ModelError:
        raise
    except Exception:  # the reference implementation of an operator may raise anything
        return None
    results: dict[str, Weight] = {}
    named = [(name, type) for name, type in zip(node.output, types, strict=True) if name]
    for array, (name, type) in zip(arrays, named, strict=True):
        computed = _spec_of_array(array, type)
        if computed is None:
            return None
        results[name] = weight_of_array(array, computed)
    return results


def _spec_of_array(array: Array, type: Type) -> TensorSpec | None:
    """Return the spec of a computed array, None if the array contradicts the inferred type."""
    if not isinstance(type, TensorType) or type.elem not in DTYPES or DTYPES[type.elem].bits < 8:
        return None
    spec = spec_of(TensorType(type.elem, array.shape), "")
    fits = type.dims is None or (
        len(type.dims) == array.ndim and all(d in (None, n) for d, n in zip(type.dims, array.shape, strict=True))
    )
    helper = require("onnx.helper", extra="onnx")
    same = array.dtype == helper.tensor_dtype_to_np_dtype(type.elem)
    return spec if fits and same and isinstance(spec, TensorSpec) else None


def _output_arrays(
    program: ImportState, node: onnx.NodeProto, arrays: Sequence[Array | None], types: Sequence[Type]
) -> list[Array]:
    """Compute the outputs of the node. May raise any exception."""
    if node.op_type in SAME_ORDER and arrays[0] is not None:
        spec = spec_of(types[0], "")
        return [arrays[0].reshape(spec.shape)] if isinstance(spec, TensorSpec) else []
    return _evaluate_by_reference(program, node, arrays)


def _evaluate_by_reference(program: ImportState, node: onnx.NodeProto, arrays: Sequence[Array | None]) -> list[Array]:
    """Compute the outputs of the node by ONNX's reference implementation. May raise any exception."""
    onnx = require("onnx", extra="onnx")
    reference = require("onnx.reference", extra="onnx")
    feeds = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.helper.make_empty_tensor_value_info(name) for name in feeds],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in program.opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = reference.ReferenceEvaluator(model).run(None, feeds)
    return [np.asarray(result) for result in results]


def _fold_data_movement(
    program: ImportState, node: onnx.NodeProto, weights: Sequence[Weight | None], types: Sequence[Type]
) -> dict[str, Weight] | None:
    """Return a large weight in another shape, axis order or type as a weight computed on read; None if unsafe."""
    spec = spec_of(types[0], "")
    if not isinstance(spec, TensorSpec) or spec.dtype.bits < 8 or _may_round_differently(weights, spec):
        return None
    where = f"{program.where}: {node.op_type} {node.output[0]!r}"

    def load() -> Array:
        try:
            array = _output_arrays(program, node, [weight.array() if weight else None for weight in weights], types)[0]
        except ModelError:
            raise
        except Exception as error:  # the reference implementation of an operator may raise anything
            raise ModelError(f"{where}: cannot be computed: {error}") from None
        if _spec_of_array(array, types[0]) != spec:
            raise ModelError(f"{where}: computed {array.dtype}{list(array.shape)}; expected {spec}")
        return array

    return {node.output[0]: Weight(spec, load)}


def _may_round_differently(weights: Sequence[Weight | None], spec: TensorSpec) -> bool:
    """True if the conversion depends on the content, or rounds differently in ONNX Runtime."""
    source = weights[0].spec if weights and weights[0] else None
    if not isinstance(source, TensorSpec) or source.dtype == spec.dtype:
        return False
    return spec.dtype in INTEGERS or (source.dtype, spec.dtype) == (DType.F64, DType.F16)

"""Constant folding: nodes with constant inputs are computed during import.

Folding shape arithmetic makes shapes known. ONNX's reference implementation computes small results immediately, for the
operators compared with ONNX Runtime (`foldable_operators`). Results that only move a large weight, or fill memory with
one number, become constants computed on first read. Any more expensive node stays a node.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.integrations.onnx.reader.conversion_state import ImportState, KnownValue
from sublet.integrations.onnx.reader.foldable_operators import (
    DATA_DEPENDENT_FILTERS,
    SAME_ORDER,
    has_foldable_content,
    is_foldable,
)
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
    extents = [extent for extent in dims if extent is not None]
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

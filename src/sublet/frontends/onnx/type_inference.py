"""Output types of a node, by the ONNX schema's inference function.

The inference function receives one node, the input types, and the contents of small constant inputs. Nodes are visited
in topological order and constants are folded on the way, so inference needs no fixpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.contrib import ALLOWED_BEFORE_OPSET, contrib_types
from sublet.frontends.onnx.import_state import ImportState, KnownValue
from sublet.frontends.onnx.model_file import domain_of
from sublet.frontends.onnx.rules.disputed_shapes import has_disputed_shape
from sublet.frontends.onnx.rules.shape_rule import NodeShapes
from sublet.frontends.onnx.rules.windows import corrected_shapes, is_corrected
from sublet.frontends.onnx.shape_conflicts import (
    MAX_CONSTANT_ELEMENTS,
    node_shapes_of,
    report_shape_conflict,
    shape_conflict_of,
)
from sublet.frontends.onnx.topological_order import node_title
from sublet.frontends.onnx.types import TensorType, Type, read_type, write_type

if TYPE_CHECKING:
    import onnx

SHAPE_CONFLICT = "shape inference failed"
"""The prefix of the reason for a shape conflict: no run with the bound dimensions reaches the node."""

SHAPE_DISPUTED = "ONNX and ONNX Runtime disagree about the shape"
TOO_STRICTLY_INFERRED = frozenset({"Range"})
"""Operators with a too strict rule in the onnx package: implementations accept one-element vectors as scalars."""

ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")

SAME_AS_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators without a rule in the onnx package: the output has the type of the first input."""


@lru_cache(maxsize=4096)
def schema_of(op_type: str, domain: str, version: int) -> Any | None:
    """Return the operator's schema in a version of the operator set; None for an operator unknown to ONNX."""
    defs = require("onnx.defs", extra="onnx")
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def infer_types(
    program: ImportState,
    node: onnx.NodeProto,
    inputs: Sequence[KnownValue | None],
    declared: Mapping[str, Type],
    names: Mapping[str, str],
) -> tuple[list[Type], str]:
    """Infer the types of the node's outputs, and the reason for open types.

    `declared` holds the types declared by the file. A declared type is used only for operators unknown to ONNX, and is
    then recorded under the unique name in `names`. Raises ModelError when the node does not follow the operator's
    schema.
    """
    unknown = next((known for known in inputs if known is not None and known.type is None), None)
    domain = domain_of(node.domain)
    if domain not in program.opsets and not node.domain.startswith("com.microsoft"):
        raise ModelError(f"{program.where}: node {node_title(node)}: the model imports no operator set {domain!r}")
    version = program.opsets.get(domain, 1)
    schema = schema_of(node.op_type, domain, version)
    if schema is None:
        _refuse_unknown(program, node, domain, version)
        newest = int(require("onnx.defs", extra="onnx").onnx_opset_version())
        node_shapes = node_shapes_of(node, inputs, [None] * len(node.output), version)
        if error := shape_conflict_of(node, node_shapes):
            return [None] * len(
                node.output
            ), f"{SHAPE_CONFLICT} at {report_shape_conflict(program, node, inputs, node_shapes, error)}"
        types = contrib_types(
            node, inputs, node_shapes, lambda like, given: _infer_by_schema(program, like, given, newest)[0]
        )
        for i, name in enumerate(node.output):
            if types[i] is None and (claim := declared.get(name)) is not None:
                types[i] = claim
                program.assumed.record_declared(names[name], claim)
        return types, f"no shape rule for the operator {domain or 'ai.onnx'}.{node.op_type} (node {node_title(node)})"
    if node.op_type in SAME_AS_FIRST_INPUT and inputs and inputs[0] is not None:
        types, error = [inputs[0].type] * len(node.output), ""
    else:
        types, error = _infer_by_schema(program, node, inputs, version)
    if not error and is_corrected(node.op_type, domain):
        types = _with_kernel_shapes(node, node_shapes_of(node, inputs, types, version), types)
    node_shapes = node_shapes_of(node, inputs, types, version)
    tensors = all(known is None or isinstance(known.type, TensorType) for known in inputs)
    if error and (node.op_type in TOO_STRICTLY_INFERRED or not tensors):
        return types, error
    if error := shape_conflict_of(node, node_shapes) or error or _negative_extent_message(types):
        unknown_types: list[Type] = [None] * len(node.output)
        return unknown_types, f"{SHAPE_CONFLICT} at {report_shape_conflict(program, node, inputs, node_shapes, error)}"
    if has_disputed_shape(node.op_type, node_shapes):
        return [_with_open_extents(type) for type in types], f"{SHAPE_DISPUTED} (node {node_title(node)})"
    return types, unknown.unplannable_reason if unknown is not None else _open_shape_reason(node, inputs)


def _with_kernel_shapes(node: onnx.NodeProto, node_shapes: NodeShapes, types: Sequence[Type]) -> list[Type]:
    """Return the types with the shapes computed by ONNX Runtime's kernel."""
    shapes = corrected_shapes(node.op_type, node_shapes, node_shapes.outputs)
    pairs = zip(types, shapes, strict=True)
    return [TensorType(type.elem, shape) if isinstance(type, TensorType) else type for type, shape in pairs]


def _refuse_unknown(program: ImportState, node: onnx.NodeProto, domain: str, version: int) -> None:
    """Raise ModelError for an operator missing from one of ONNX's own domains."""
    if domain not in ONNX_DOMAINS or node.op_type in ALLOWED_BEFORE_OPSET:
        return
    newest = schema_of(node.op_type, domain, 1 << 20)
    since = f"; the operator was added in version {_first_version_with(node.op_type, domain)}" if newest else ""
    raise ModelError(
        f"{program.where}: node {node_title(node)}: version {version} of the operator set "
        f"{domain or 'ai.onnx'!s} has no operator {node.op_type}{since} "
        "(a custom operator needs its own domain)"
    )


def _first_version_with(op_type: str, domain: str) -> int:
    """Return the first version of the operator set with the operator."""
    return next(version for version in range(1, 1 << 10) if schema_of(op_type, domain, version))


def _with_open_extents(type: Type) -> Type:
    """Return the type with every extent open."""
    return TensorType(type.elem, type.dims and (None,) * len(type.dims)) if isinstance(type, TensorType) else None


def _open_shape_reason(node: onnx.NodeProto, inputs: Sequence[KnownValue | None]) -> str:
    """Return the reason for an open output: the reason of the first open input, else a data-dependent shape."""
    reasons = (known.unplannable_reason for known in inputs if known is not None)
    return next(filter(None, reasons), f"the shape depends on data (node {node_title(node)})")


def _infer_by_schema(
    program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None], version: int
) -> tuple[list[Type], str]:
    """Infer the output types by the schema; return the types and the first line of an inference error, "" without one.

    Raises ModelError when the node does not follow the schema.
    """
    onnx = require("onnx", extra="onnx")
    inference = require("onnx.shape_inference", extra="onnx")
    schema = schema_of(node.op_type, domain_of(node.domain), version)
    unknown_types: list[Type] = [None] * len(node.output)
    present = {name: known for name, known in zip(node.input, inputs, strict=False) if known is not None}
    try:
        inferred = inference.infer_node_outputs(
            schema,
            node,
            {name: write_type(known.type) for name, known in present.items()},
            input_data={
                name: content for name, known in present.items() if (content := _small_content(known)) is not None
            },
            opset_imports=[onnx.helper.make_opsetid(domain, number) for domain, number in program.opsets.items()],
        )
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{program.where}: node {node_title(node)}: {_first_line_of(error)}") from None
    except Exception as error:  # the binding passes on every C++ exception
        return unknown_types, _first_line_of(error)
    return [read_type(inferred[name]) if name in inferred else None for name in node.output], ""


def _small_content(known: KnownValue) -> onnx.TensorProto | None:
    """Return the content of a small constant for the inference function; None for any other value."""
    weight = known.weight
    if weight is None or not weight.is_small or not isinstance(weight.spec, TensorSpec):
        return None
    if weight.spec.size > MAX_CONSTANT_ELEMENTS:
        return None
    tensor: onnx.TensorProto = require("onnx.numpy_helper", extra="onnx").from_array(weight.array())
    return tensor


def _first_line_of(error: Exception) -> str:
    """Return the first line of the error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _negative_extent_message(types: Sequence[Type]) -> str:
    """Return the message for an output with a negative extent; "" without one."""
    negative = (
        t for t in types if isinstance(t, TensorType) and t.dims and any(d is not None and d < 0 for d in t.dims)
    )
    return next((f"would return {type}: the input is too small for the window or slice" for type in negative), "")

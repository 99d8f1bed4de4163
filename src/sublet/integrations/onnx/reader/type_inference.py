"""Output types of a node, by the ONNX schema's inference function.

The inference function receives one node, the input types, and the contents of small constant inputs. Nodes are visited
in topological order and constants are folded on the way, so inference needs no fixpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.extents import Extent, Undecided
from sublet.base.optional_imports import require
from sublet.base.tensor import DEPENDS_ON_DATA, SHAPE_CONFLICT, TensorSpec
from sublet.integrations.onnx.reader.contrib import ALLOWED_BEFORE_OPSET, contrib_types
from sublet.integrations.onnx.reader.conversion_state import ImportState, KnownValue
from sublet.integrations.onnx.reader.model_file import (
    all_nodes,
    domain_of,
    node_title,
    open_session,
    session_options,
)
from sublet.integrations.onnx.reader.ranged_shapes import complete_shapes, content_of, depend_on_ranges
from sublet.integrations.onnx.reader.rules.images import CLASSICAL, corrected_shapes, is_corrected
from sublet.integrations.onnx.reader.rules.shape_rule import NodeShapes
from sublet.integrations.onnx.reader.rules.table import has_disputed_shape
from sublet.integrations.onnx.reader.shape_conflicts import (
    MAX_CONSTANT_ELEMENTS,
    differing_extents_of,
    node_shapes_of,
    report_shape_conflict,
    shape_conflict_of,
    warn_of_refused_points,
)
from sublet.integrations.onnx.reader.types import Dims, TensorType, Type, read_type, spec_of, write_type

# Types inferred by ONNX Runtime, including operators unknown to the onnx package.
#
# ONNX Runtime's interface returns `[]` both for a scalar and for a value of unknown rank. The inferred shape of an
# appended Shape node distinguishes the two: one extent equal to the rank, or an open extent.

if TYPE_CHECKING:
    import onnx

ELEMENT_BY_TYPE_NAME = {
    f"tensor({text})": number
    for text, number in {
        **{"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9},
        **{"float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16},
    }.items()
}
"""ONNX Runtime's name of a tensor type -> ONNX's element type number."""


def inferred_types(model: onnx.ModelProto, folder: Path) -> list[onnx.ValueInfoProto]:
    """Return the fully known types of the node outputs of the model; external weights lie in `folder`."""
    make = require("onnx.helper", extra="onnx").make_tensor_value_info
    produced = list(dict.fromkeys(name for node in model.graph.node for name in node.output if name))
    inferred = _inferred_by_runtime(model, folder, produced)
    known = {
        name: TensorType(ELEMENT_BY_TYPE_NAME[text], dims)
        for name, (text, dims) in inferred.items()
        if text in ELEMENT_BY_TYPE_NAME
    }
    scalars = _known_scalars(model, folder, [name for name in produced if name in known and not known[name].dims])
    types = []
    for name, type_ in ((name, known[name]) for name in produced if name in known):
        if (type_.dims or name in scalars) and isinstance(spec_of(type_, ""), TensorSpec):
            info = make(name, type_.elem, None)
            info.type.CopyFrom(write_type(type_))
            types.append(info)
    return types


def _known_scalars(model: onnx.ModelProto, folder: Path, names: list[str]) -> set[str]:
    """Return the elements of `names` known to be scalars."""
    make = require("onnx.helper", extra="onnx").make_node
    taken = {name for node in all_nodes(iter(model.graph.node)) for name in (*node.input, *node.output)}
    ranks: dict[str, str] = {}
    for name in names:
        rank = f"{name}.rank"
        while rank in taken:
            rank += "_"
        ranks[rank] = name
    probe = type(model)()
    probe.CopyFrom(model)
    probe.graph.node.extend(make("Shape", [name], [rank]) for rank, name in ranks.items())
    inferred = _inferred_by_runtime(probe, folder, list(ranks)) if ranks else {}
    return {ranks[rank] for rank, (_, dims) in inferred.items() if rank in ranks and dims == (0,)}


def _inferred_by_runtime(model: onnx.ModelProto, folder: Path, names: list[str]) -> dict[str, tuple[str, Dims]]:
    """Return the types inferred by ONNX Runtime for `names` and the outputs: the text, and the known dimensions."""
    make = require("onnx.helper", extra="onnx").make_empty_tensor_value_info
    exposed = type(model)()
    exposed.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    exposed.graph.output.extend(make(name) for name in names if name not in outputs)
    options = session_options()
    ort = require("onnxruntime", extra="onnxruntime")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    session = open_session(exposed.SerializeToString(), options)
    return {output.name: (output.type, tuple(map(_extent_or_none, output.shape))) for output in session.get_outputs()}


def _extent_or_none(dim: Any) -> int | None:
    """Return the extent; None for an open extent, represented by a name or None."""
    return dim if isinstance(dim, int) and dim >= 0 else None


if TYPE_CHECKING:
    import onnx

SHAPE_DISPUTED = "ONNX and ONNX Runtime disagree about the shape"
TOO_STRICTLY_INFERRED = frozenset({"Range"})
"""Operators with a too strict rule in the onnx package: implementations accept one-element vectors as scalars."""

ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")

RULE_SINCE = {"GreaterOrEqual": 16, "LessOrEqual": 16}
"""The first version with a rule in the onnx package, for operators with the same shapes in earlier versions."""

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
        warn_of_refused_points(program, node, node_shapes)
        types = contrib_types(node, inputs, node_shapes, partial(_infer_standard, program, newest))
        types, reason = _assume_declared(program, node, types, declared, names)
        return types, next((known.unplannable_reason for known in inputs if known and known.unplannable_reason), reason)
    if node.op_type in SAME_AS_FIRST_INPUT and inputs and inputs[0] is not None:
        types, error = [inputs[0].type] * len(node.output), ""
    else:
        types, error = _infer_by_schema(program, node, inputs, max(version, RULE_SINCE.get(node.op_type, 0)))
    if not error:
        types = _completed_over_ranges(node, inputs, types, version)
    if not error and is_corrected(node.op_type, domain):
        types = _with_kernel_shapes(node, node_shapes_of(node, inputs, types, version), types)
    node_shapes = node_shapes_of(node, inputs, types, version)
    tensors = all(known is None or isinstance(known.type, TensorType) for known in inputs)
    if error and (node.op_type in TOO_STRICTLY_INFERRED or not tensors):
        return types, error
    if error := shape_conflict_of(node, node_shapes) or error or _negative_extent_message(types):
        unknown_types: list[Type] = [None] * len(node.output)
        return unknown_types, f"{SHAPE_CONFLICT} at {report_shape_conflict(program, node, inputs, node_shapes, error)}"
    warn_of_refused_points(program, node, node_shapes)
    if has_disputed_shape(node.op_type, node_shapes):
        return [_with_open_extents(type) for type in types], f"{SHAPE_DISPUTED} (node {node_title(node)})"
    if domain == CLASSICAL and not any(known.unplannable_reason for known in inputs if known is not None):
        return _assume_declared(program, node, types, declared, names)
    return types, unknown.unplannable_reason if unknown is not None else _open_shape_reason(node, inputs, node_shapes)


def _infer_standard(
    program: ImportState, version: int, node: onnx.NodeProto, inputs: Sequence[KnownValue | None]
) -> list[Type]:
    """Return the output types of a standard operator like a contributed one."""
    return _completed_over_ranges(node, inputs, _infer_by_schema(program, node, inputs, version)[0], version)


def _assume_declared(
    program: ImportState,
    node: onnx.NodeProto,
    types: Sequence[Type],
    declared: Mapping[str, Type],
    names: Mapping[str, str],
) -> tuple[list[Type], str]:
    """Return the types, each type of unknown shape replaced by the declared type, and the reason for open types."""
    filled = list(types)
    for i, name in enumerate(node.output):
        claim = declared.get(name)
        if claim is not None and (types[i] is None or types[i] == TensorType(getattr(claim, "elem", 0))):
            filled[i] = claim
            program.assumed.record_declared(names[name], claim)
    operator = f"{domain_of(node.domain) or 'ai.onnx'}.{node.op_type}"
    return filled, f"no shape rule for the operator {operator} (node {node_title(node)})"


def _with_kernel_shapes(node: onnx.NodeProto, node_shapes: NodeShapes, types: Sequence[Type]) -> list[Type]:
    """Return the types with the shapes computed by ONNX Runtime's kernel."""
    try:
        shapes = corrected_shapes(node.op_type, node_shapes, node_shapes.outputs)
    except Undecided:  # over ranges, the extents have no single expression
        return list(types)
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


def _open_shape_reason(node: onnx.NodeProto, inputs: Sequence[KnownValue | None], node_shapes: NodeShapes) -> str:
    """Return the reason for an open output: that of the first open input, extents that may differ, else data."""
    reasons = [known.unplannable_reason for known in inputs if known is not None]
    content = content_of(inputs[1]) if len(inputs) > 1 else None
    if differing := differing_extents_of(node, node_shapes, None if content is None else content.tolist()):
        reasons.append(f"node {node_title(node)}: {differing}")
    return next(filter(None, reasons), f"{DEPENDS_ON_DATA} (node {node_title(node)})")


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
    dims: list[Any] = [e for k in present.values() if isinstance(k.type, TensorType) for e in k.type.dims or ()]
    ranged = dict.fromkeys(extent for extent in dims if isinstance(extent, Extent))
    names = {extent: f"extent {i}" for i, extent in enumerate(ranged)}
    try:
        inferred = inference.infer_node_outputs(
            schema,
            node,
            {name: write_type(known.type, names) for name, known in present.items()},
            input_data={
                name: content for name, known in present.items() if (content := _small_content(known)) is not None
            },
            opset_imports=[onnx.helper.make_opsetid(domain, number) for domain, number in program.opsets.items()],
        )
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{program.where}: node {node_title(node)}: {_first_line_of(error)}") from None
    except Exception as error:  # the binding passes on every C++ exception
        return unknown_types, _first_line_of(error)
    extents: dict[str, Any] = {name: extent for extent, name in names.items()}
    types = [read_type(inferred[name], extents or None) if name in inferred else None for name in node.output]
    return types, ""


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
        t for t in types if isinstance(t, TensorType) and t.dims and any(isinstance(d, int) and d < 0 for d in t.dims)
    )
    return next((f"would return {type}: the input is too small for the window or slice" for type in negative), "")


def _completed_over_ranges(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type], version: int
) -> list[Type]:
    """Return the types with extents over ranges completed by Sublet's rules, if an input depends on a range."""
    if not depend_on_ranges(inputs):
        return list(types)
    return complete_shapes(node, inputs, types, node_shapes_of(node, inputs, types, version))

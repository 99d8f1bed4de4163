"""Types of a node's outputs, by ONNX's own rule for its operator.

The rule sees one node, the types of its inputs and the content of those that are small constants.
Walking a sorted graph node by node, and folding constants on the way, leaves nothing to iterate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.extras import require
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.contradictions import DATA_ELEMENTS, contradiction, seen, tell
from sublet.frontends.onnx.contrib import BEFORE_THEIR_OPSET, contrib_types
from sublet.frontends.onnx.file import domain_of
from sublet.frontends.onnx.order import title
from sublet.frontends.onnx.program import Known, Program
from sublet.frontends.onnx.rules.disputed import disputed
from sublet.frontends.onnx.rules.rule import Seen
from sublet.frontends.onnx.rules.windows import corrected, is_corrected
from sublet.frontends.onnx.types import TensorType, Type, read_type, write_type

if TYPE_CHECKING:
    import onnx

CONTRADICTION = "shape inference failed"
"""How the reason starts when shapes contradict each other: no run with these dimensions gets there."""

DISPUTED = "ONNX and ONNX Runtime disagree about its shape"
TOO_STRICT = frozenset({"Range"})
"""Operators whose rule in the onnx package refuses what implementations take: vectors of one element for scalars."""

ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")

SAME_AS_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators whose rule is left out of the onnx package: the output is like the first input."""


@lru_cache(maxsize=4096)
def schema_of(op_type: str, domain: str, version: int) -> Any | None:
    """The operator's schema in this version of its operator set; None when ONNX has none."""
    defs = require("onnx.defs", extra="onnx")
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def infer(
    program: Program,
    node: onnx.NodeProto,
    inputs: Sequence[Known | None],
    declared: Mapping[str, Type],
    names: Mapping[str, str],
) -> tuple[list[Type], str]:
    """The types of the node's outputs, and why they are open in case they are.

    `declared` are the types the file claims; they are believed only where ONNX has no such operator, and then noted
    under the `names` of the values.
    Raises ModelError when the node does not follow its operator's schema.
    """
    unknown = next((known for known in inputs if known is not None and known.type is None), None)
    domain = domain_of(node.domain)
    if domain not in program.opsets and not node.domain.startswith("com.microsoft"):
        raise ModelError(f"{program.where}: node {title(node)}: the model imports no operator set {domain!r}")
    version = program.opsets.get(domain, 1)
    schema = schema_of(node.op_type, domain, version)
    if schema is None:
        _refuse_unknown(program, node, domain, version)
        newest = int(require("onnx.defs", extra="onnx").onnx_opset_version())
        sight = seen(node, inputs, [None] * len(node.output), version)
        if error := contradiction(node, sight):
            return [None] * len(node.output), f"{CONTRADICTION} at {tell(program, node, inputs, sight, error)}"
        types = contrib_types(node, inputs, sight, lambda like, given: _by_schema(program, like, given, newest)[0])
        for i, name in enumerate(node.output):
            if types[i] is None and (claim := declared.get(name)) is not None:
                types[i] = claim
                program.assumed.believe(names[name], claim)
        return types, f"no shape rule for the operator {domain or 'ai.onnx'}.{node.op_type} (node {title(node)})"
    if node.op_type in SAME_AS_FIRST_INPUT and inputs and inputs[0] is not None:
        types, error = [inputs[0].type] * len(node.output), ""
    else:
        types, error = _by_schema(program, node, inputs, version)
    if not error and is_corrected(node.op_type, domain):
        types = _as_kernels_make_them(node, seen(node, inputs, types, version), types)
    sight = seen(node, inputs, types, version)
    tensors = all(known is None or isinstance(known.type, TensorType) for known in inputs)
    if error and (node.op_type in TOO_STRICT or not tensors):
        return types, error
    if error := contradiction(node, sight) or error or _too_small(types):
        nothing: list[Type] = [None] * len(node.output)
        return nothing, f"{CONTRADICTION} at {tell(program, node, inputs, sight, error)}"
    if disputed(node.op_type, sight):
        return [_of_unknown_extents(type) for type in types], f"{DISPUTED} (node {title(node)})"
    return types, unknown.reason if unknown is not None else _cause(node, inputs)


def _as_kernels_make_them(node: onnx.NodeProto, sight: Seen, types: Sequence[Type]) -> list[Type]:
    """Return the types with the shapes that ONNX Runtime's kernel makes."""
    shapes = corrected(node.op_type, sight, sight.outputs)
    pairs = zip(types, shapes, strict=True)
    return [TensorType(type.elem, shape) if isinstance(type, TensorType) else type for type, shape in pairs]


def _refuse_unknown(program: Program, node: onnx.NodeProto, domain: str, version: int) -> None:
    """Raise ModelError for an operator that ONNX's own domain does not have."""
    if domain not in ONNX_DOMAINS or node.op_type in BEFORE_THEIR_OPSET:
        return
    newest = schema_of(node.op_type, domain, 1 << 20)
    since = f"; it came with version {_first_version(node.op_type, domain)}" if newest else ""
    raise ModelError(
        f"{program.where}: node {title(node)}: version {version} of the operator set {domain or 'ai.onnx'!s} has no "
        f"operator {node.op_type}{since} (an operator of your own needs a domain of its own)"
    )


def _first_version(op_type: str, domain: str) -> int:
    return next(version for version in range(1, 1 << 10) if schema_of(op_type, domain, version))


def _of_unknown_extents(type: Type) -> Type:
    return TensorType(type.elem, type.dims and (None,) * len(type.dims)) if isinstance(type, TensorType) else None


def _cause(node: onnx.NodeProto, inputs: Sequence[Known | None]) -> str:
    """Why an output is open: because an input is, or because the operator's shape depends on data."""
    reasons = (known.reason for known in inputs if known is not None)
    return next(filter(None, reasons), f"its shape depends on data (node {title(node)})")


def _by_schema(
    program: Program, node: onnx.NodeProto, inputs: Sequence[Known | None], version: int
) -> tuple[list[Type], str]:
    onnx = require("onnx", extra="onnx")
    inference = require("onnx.shape_inference", extra="onnx")
    schema = schema_of(node.op_type, domain_of(node.domain), version)
    nothing: list[Type] = [None] * len(node.output)
    present = {name: known for name, known in zip(node.input, inputs, strict=False) if known is not None}
    try:
        found = inference.infer_node_outputs(
            schema,
            node,
            {name: write_type(known.type) for name, known in present.items()},
            input_data={name: content for name, known in present.items() if (content := _content(known)) is not None},
            opset_imports=[onnx.helper.make_opsetid(domain, number) for domain, number in program.opsets.items()],
        )
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{program.where}: node {title(node)}: {_first_line(error)}") from None
    except Exception as error:  # the binding raises whatever its C++ side throws
        return nothing, _first_line(error)
    return [read_type(found[name]) if name in found else None for name in node.output], ""


def _content(known: Known) -> onnx.TensorProto | None:
    """The content of a small constant as the rule wants it; None for anything else."""
    weight = known.weight
    if weight is None or not weight.small or not isinstance(weight.spec, TensorSpec):
        return None
    if weight.spec.size > DATA_ELEMENTS:
        return None
    tensor: onnx.TensorProto = require("onnx.numpy_helper", extra="onnx").from_array(weight.array())
    return tensor


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _too_small(types: Sequence[Type]) -> str:
    """What to say of an output with a negative extent; "" when there is none."""
    negative = (
        t for t in types if isinstance(t, TensorType) and t.dims and any(d is not None and d < 0 for d in t.dims)
    )
    return next((f"would give {type}: its input is too small for its window or slice" for type in negative), "")

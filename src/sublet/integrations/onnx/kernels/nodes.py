"""Conversion of a node of the `onnx` dialect to ONNX: a NodeProto with canonical operand names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sublet.base.optional_imports import require
from sublet.integrations.onnx.dialect import PREFIX
from sublet.ir.graph import Attr, Node

if TYPE_CHECKING:
    import onnx

CAPTURES = ".captures"


def domain_and_type(op: str) -> tuple[str, str]:
    """Return ("com.microsoft", "Gelu") for "onnx.com.microsoft.Gelu"; the default domain is ""."""
    domain, _, op_type = op.removeprefix(PREFIX).rpartition(".")
    return domain, op_type


def captured_names(node: Node) -> tuple[str, ...]:
    """Return the outer names read by the serialised graphs of the node: the names of its last inputs."""
    names: list[str] = []
    for key, attr in node.attrs.items():
        if key.endswith(CAPTURES) and isinstance(attr, tuple):
            names += [str(name) for name in attr]
    return tuple(names)


def single_node(node: Node, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """Return the node with operands named i0, i1, ... and o0, o1, ...; names captured by its graphs are kept.

    Raises ValueError when an attribute does not match the declaration of its operator.
    """
    helper = require("onnx.helper", extra="onnx")
    domain, op_type = domain_and_type(node.op)
    given = len(node.inputs) - len(captured_names(node))
    inputs = ["" if value is None else f"i{i}" for i, value in enumerate(node.inputs[:given])]
    outputs = ["" if value is None else f"o{i}" for i, value in enumerate(node.outputs)]
    proto: onnx.NodeProto = helper.make_node(op_type, inputs, outputs, domain=domain)
    declared = _declared_attributes(domain, op_type, opsets.get(domain, 1))
    for name, attr in node.attrs.items():
        if not name.endswith(CAPTURES):
            proto.attribute.append(_attribute(name, attr, declared.get(name)))
    return proto


def node_input_names(node: Node) -> tuple[str, ...]:
    """Return the name of each input in `single_node`, "" for an omitted input."""
    captured = captured_names(node)
    given = len(node.inputs) - len(captured)
    return (*("" if value is None else f"i{i}" for i, value in enumerate(node.inputs[:given])), *captured)


def _declared_attributes(domain: str, op_type: str, version: int) -> dict[str, Any]:
    """Return the attribute types declared by the schema of an operator; {} without a schema."""
    defs = require("onnx.defs", extra="onnx")
    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return {}
    return {name: attribute.type for name, attribute in schema.attributes.items()}


def _attribute(name: str, attr: Attr, declared: Any) -> onnx.AttributeProto:
    """Return the attribute; bytes become what the schema declares: tensor, graph, type, a list of these, or string."""
    package = require("onnx", extra="onnx")
    kinds, proto_type = package.defs.OpSchema.AttrType, package.AttributeProto
    content: Any = attr
    if isinstance(attr, bytes):
        message = {
            kinds.TENSOR: package.TensorProto,
            kinds.SPARSE_TENSOR: package.SparseTensorProto,
            kinds.TYPE_PROTO: package.TypeProto,
            kinds.GRAPH: package.GraphProto,
        }.get(declared)
        if message is not None:
            content = message.FromString(attr)
        elif declared not in (None, kinds.STRING):
            return _as_attribute_proto(proto_type.FromString(attr))
    kind = None
    if isinstance(attr, tuple) and not attr:
        kind = proto_type.INTS if declared is None else declared.value
    return _as_attribute_proto(package.helper.make_attribute(name, content, attr_type=kind))


def _as_attribute_proto(attribute: Any) -> onnx.AttributeProto:
    proto: onnx.AttributeProto = attribute
    return proto

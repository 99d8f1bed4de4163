"""A node of the `onnx` dialect as ONNX has it: a NodeProto, or a model of that one node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sublet.base.extras import require
from sublet.ir.graph import Attr, Node
from sublet.ops.onnx import PREFIX

if TYPE_CHECKING:
    import onnx

CAPTURES = ".captures"


def domain_and_type(op: str) -> tuple[str, str]:
    """("com.microsoft", "Gelu") of "onnx.com.microsoft.Gelu"; the default domain is ""."""
    domain, _, op_type = op.removeprefix(PREFIX).rpartition(".")
    return domain, op_type


def captured_names(node: Node) -> tuple[str, ...]:
    """The outer names that the serialised graphs of the node read: they name its last inputs."""
    names: list[str] = []
    for key, attr in node.attrs.items():
        if key.endswith(CAPTURES) and isinstance(attr, tuple):
            names += [str(name) for name in attr]
    return tuple(names)


def single_node(node: Node, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """The node, its operands called i0, i1, ... and o0, o1, ...; what its graphs capture keeps its name.

    Raises ValueError when an attribute cannot be what its operator declares.
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


def input_names(node: Node) -> tuple[str, ...]:
    """What `single_node` calls each input, "" for an omitted one."""
    captured = captured_names(node)
    given = len(node.inputs) - len(captured)
    return (*("" if value is None else f"i{i}" for i, value in enumerate(node.inputs[:given])), *captured)


def _declared_attributes(domain: str, op_type: str, version: int) -> dict[str, Any]:
    defs = require("onnx.defs", extra="onnx")
    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return {}
    return {name: attribute.type for name, attribute in schema.attributes.items()}


def _attribute(name: str, attr: Attr, declared: Any) -> onnx.AttributeProto:
    """The attribute; bytes are what the schema says: a tensor, a graph, a type, a list of these, or a string."""
    package = require("onnx", extra="onnx")
    kinds, made = package.defs.OpSchema.AttrType, package.AttributeProto
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
            return _typed(made.FromString(attr))
    kind = None
    if isinstance(attr, tuple) and not attr:
        kind = made.INTS if declared is None else declared.value
    return _typed(package.helper.make_attribute(name, content, attr_type=kind))


def _typed(attribute: Any) -> onnx.AttributeProto:
    proto: onnx.AttributeProto = attribute
    return proto

"""Conversion of ONNX attributes to attributes of graph nodes.

float, int, string            float, int, str; a string that is not UTF-8 stays bytes
list of float, int, string    a tuple; a list containing a string that is not UTF-8 is stored as below
tensor, type, graph           the serialised TensorProto, TypeProto, GraphProto
list of tensor, type, graph   the serialised AttributeProto
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sublet.ir.graph import Attr

if TYPE_CHECKING:
    import onnx


def attributes_of(node: onnx.NodeProto) -> Mapping[str, Attr]:
    """Return the attributes of a node by name."""
    return {attribute.name: _convert_attribute(attribute) for attribute in node.attribute}


def _convert_attribute(attribute: onnx.AttributeProto) -> Attr:
    kind = attribute.type
    if kind == attribute.FLOAT:
        return float(attribute.f)
    if kind == attribute.INT:
        return int(attribute.i)
    if kind == attribute.STRING:
        return _decode_string(attribute.s)
    if kind == attribute.FLOATS:
        return tuple(float(number) for number in attribute.floats)
    if kind == attribute.INTS:
        return tuple(int(number) for number in attribute.ints)
    if kind == attribute.STRINGS:
        strings = tuple(_decode_string(text) for text in attribute.strings)
        if all(isinstance(text, str) for text in strings):
            return tuple(str(text) for text in strings)
    return _serialize_attribute(attribute)


def _decode_string(content: bytes) -> str | bytes:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content


def _serialize_attribute(attribute: onnx.AttributeProto) -> bytes:
    message: Any = {
        attribute.TENSOR: attribute.t,
        attribute.SPARSE_TENSOR: attribute.sparse_tensor,
        attribute.TYPE_PROTO: attribute.tp,
        attribute.GRAPH: attribute.g,
    }.get(attribute.type, attribute)
    return bytes(message.SerializeToString(deterministic=True))

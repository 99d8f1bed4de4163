"""ONNX types with partial shape information, from which fully known tensor specs are made.

`DTYPES` maps ONNX's element type numbers to data types. A tensor type may leave dimensions or the rank open; a spec
exists only for a fully known type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError, SubletError
from sublet.base.extents import Extent, is_at_least_zero
from sublet.base.optional_imports import require
from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable, format_dims
from sublet.ir.graph import Attr

if TYPE_CHECKING:
    import onnx

DTYPES: dict[int, DType] = {
    1: DType.F32,
    2: DType.U8,
    3: DType.I8,
    4: DType.U16,
    5: DType.I16,
    6: DType.I32,
    7: DType.I64,
    9: DType.BOOL,
    10: DType.F16,
    11: DType.F64,
    12: DType.U32,
    13: DType.U64,
    14: DType.C64,
    15: DType.C128,
    16: DType.BF16,
    17: DType.F8E4M3FN,
    18: DType.F8E4M3FNUZ,
    19: DType.F8E5M2,
    20: DType.F8E5M2FNUZ,
    21: DType.U4,
    22: DType.I4,
    23: DType.F4E2M1,
    24: DType.F8E8M0FNU,
    25: DType.U2,
    26: DType.I2,
}
ELEMENT_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
STRING = 8
NON_TENSOR_KINDS = {"seq": "a sequence", "optional": "an optional", "map": "a map", "sparse": "a sparse tensor"}
"""The prefix of a non-tensor type text -> the kind of type, for messages."""

Dims = tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type: ONNX's element type number, and the known part of the shape.

    An open dimension is None; `dims` is None for an open rank.
    """

    elem: int
    dims: Dims = None

    def __str__(self) -> str:
        return f"{_element_text(self.elem)}{format_dims(self.dims)}"


@dataclass(frozen=True, slots=True)
class OtherType:
    """A sequence, optional, map or sparse tensor type: a text form and the serialised TypeProto."""

    text: str
    serialized: bytes

    def __str__(self) -> str:
        return self.text


Type = TensorType | OtherType | None
"""The known part of a value's type; None for an unknown type."""


def _element_text(elem: int) -> str:
    if elem == STRING:
        return "str"
    dtype = DTYPES.get(elem)
    return str(dtype) if dtype else f"onnx{elem}"


def type_of(spec: TensorSpec) -> TensorType:
    """Return the fully known type of a spec."""
    return TensorType(ELEMENT_NUMBERS[spec.dtype], spec.shape)


def spec_of(type: Type, reason: str) -> Spec:
    """Return the spec of a value; Unplannable with `reason` for a type with an open part.

    Raises ModelError for an impossible shape.
    """
    if isinstance(type, OtherType):
        return Unplannable(
            f"{NON_TENSOR_KINDS.get(type.text.partition('(')[0], 'the value')} has no fixed size", other=type.text
        )
    if type is None:
        return Unplannable(reason, other="?")
    element = _element_text(type.elem)
    if type.elem == STRING:
        return Unplannable("strings have no fixed size", element, type.dims)
    dtype = DTYPES.get(type.elem)
    if dtype is None:
        return Unplannable(f"ONNX's element type {type.elem} is not supported", element, type.dims)
    if type.dims is None or None in type.dims:
        return Unplannable(reason, element, type.dims)
    negative = next((d for d in type.dims if isinstance(d, Extent) and not is_at_least_zero(d)), None)
    if negative is not None:
        raise ModelError(
            f"the extent {negative} is not proven to be at least 0 at every point: begin the ranges higher, "
            "or pass narrower ranges"
        )
    try:
        return TensorSpec(dtype, tuple(d for d in type.dims if d is not None))
    except SubletError as error:
        raise ModelError(str(error)) from None


def read_type(proto: onnx.TypeProto, bindings: Mapping[str, int] | None = None) -> Type:
    """Return the type of a TypeProto.

    `bindings` is for declared types of a file: named dimensions are replaced by the bound extents, and negative
    dimensions, written by some exporters, are open. Without `bindings`, a negative dimension is kept, to be reported as
    an error.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return OtherType(_type_text(proto), proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type)
    return TensorType(tensor.elem_type, tuple(_extent_of(dim, bindings) for dim in tensor.shape.dim))


def _extent_of(dim: Any, bindings: Mapping[str, int] | None) -> int | None:
    """Return the extent of a dimension, None if open."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 or bindings is None else None
    return bindings.get(dim.dim_param) if bindings else None


def _type_text(proto: onnx.TypeProto) -> str:
    """Return the text form of a TypeProto that is no tensor type."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_type_text(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_type_text(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element_text(proto.map_type.key_type)},{_type_text(proto.map_type.value_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse({_element_text(proto.sparse_tensor_type.elem_type)})"
    return str(read_type(proto) or "?") if kind == "tensor_type" else kind or "?"


def write_type(type: Type, names: Mapping[Extent, str] = MappingProxyType({})) -> onnx.TypeProto:
    """Return the TypeProto of a type, for ONNX's shape inference; `names` are the `dim_param`s of Extents."""
    proto: onnx.TypeProto = require("onnx", extra="onnx").TypeProto()
    if isinstance(type, OtherType):
        proto.ParseFromString(type.serialized)
    elif isinstance(type, TensorType):
        tensor = proto.tensor_type
        tensor.elem_type = type.elem
        if type.dims is not None:
            tensor.shape.SetInParent()
            for extent in type.dims:
                dim = tensor.shape.dim.add()
                if isinstance(extent, Extent):
                    dim.dim_param = names[extent]
                elif extent is not None:
                    dim.dim_value = extent
    return proto


def merge_types(types: Sequence[Type]) -> Type:
    """Return the most specific type covering all of `types`: differing dimensions are open."""
    first, *others = types
    for other in others:
        first = _merge_two(first, other)
    return first


def _merge_two(a: Type, b: Type) -> Type:
    """Return the most specific type covering both types, None for different kinds or element types."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.elem != b.elem:
        return None
    if a.dims is None or b.dims is None or len(a.dims) != len(b.dims):
        return TensorType(a.elem)
    return TensorType(a.elem, tuple(x if x == y else None for x, y in zip(a.dims, b.dims, strict=True)))


# Conversion of ONNX attributes to attributes of graph nodes.
#
# float, int, string            float, int, str; a string that is not UTF-8 stays bytes list of float, int, string    a
# tuple; a list containing a string that is not UTF-8 is stored as below tensor, type, graph           the serialised
# TensorProto, TypeProto, GraphProto list of tensor, type, graph   the serialised AttributeProto

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

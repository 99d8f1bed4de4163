"""Output types of operators written by ONNX Runtime's optimiser and quantizer and missing from the onnx package.

Many operators are a standard operator with a fused successor, and use the type rule of the standard operator. The rest
have a rule here, derived from ONNX Runtime's kernel. Without a rule, a type declared by the file or inferred by ONNX
Runtime is an assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.optional_imports import require
from sublet.integrations.onnx.reader.contrib_attention import (
    ATTENTION_TYPES,
    Elements,
    OutputTypes,
    sum_of_extents,
    tensor_type_of,
)
from sublet.integrations.onnx.reader.conversion_state import KnownValue
from sublet.integrations.onnx.reader.model_file import open_session, session_options
from sublet.integrations.onnx.reader.rules.images import pool_extents
from sublet.integrations.onnx.reader.rules.shape_rule import Extents, NodeShapes, broadcast_shape
from sublet.integrations.onnx.reader.types import TensorType, Type

if TYPE_CHECKING:
    import onnx

FUSED_FROM: dict[str, tuple[str, int]] = {
    "FusedConv": ("Conv", 3),
    "FusedGemm": ("Gemm", 3),
    "Conv": ("Conv", 3),
    "GlobalMaxPool": ("GlobalMaxPool", 1),
    "GlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearConv": ("QLinearConv", 9),
}
"""Contributed operator -> the standard operator with the same output shape, and the number of inputs to pass."""

STANDARD_ATTRIBUTES = frozenset(
    {
        *("alpha", "auto_pad", "beta", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape"),
        *("pads", "storage_order", "strides", "transA", "transB"),
    }
)

SAME_TYPE_AS_FIRST_INPUT = frozenset(
    {
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasDropout", "BiasSoftmax", "SimplifiedLayerNormalization"),
        *("LayerNormalization", "RotaryEmbedding", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Inverse"),
        *("GroupNorm", "SkipGroupNorm", "BiasAdd"),
    }
)
"""Operators whose first output has the type of the first input."""

EXPERIMENTAL = frozenset(
    ("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
) | {"ThresholdedRelu"}
"""Operators of the first operator sets, removed from ONNX but still implemented by ONNX Runtime."""

ALLOWED_BEFORE_OPSET = EXPERIMENTAL | {"LayerNormalization", "SimplifiedLayerNormalization"}
"""Operators accepted in models whose version of the default operator set lacks the operator: experimental operators,
and operators written by ONNX Runtime's optimiser."""

NCHWC_BLOCK = 16
"""The blocked layout rounds channels up to 8 or 16, depending on the processor; a multiple of 16 fits both."""

CONTRIB = "com.microsoft"
CHANNELS_LAST = frozenset({"NhwcMaxPool"})
"""Operators on [n, ..., channels] without an attribute for the layout."""

POOLS = frozenset({"MaxPool", "AveragePool", "QLinearAveragePool", "NhwcMaxPool"})
"""Operators with the windows of a pool, in any layout."""

StandardTypeRule = Callable[["onnx.NodeProto", "Sequence[KnownValue | None]"], list[Type]]


def contrib_types(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None], shapes: NodeShapes, rule: StandardTypeRule
) -> list[Type]:
    """Return the types of the outputs, None for an unknown type; `rule` infers types of standard operators."""
    unknown: list[Type] = [None] * len(node.output)
    if not node.domain.startswith(CONTRIB) and node.op_type not in ALLOWED_BEFORE_OPSET:
        return unknown
    if not inputs or inputs[0] is None or not isinstance(inputs[0].type, TensorType):
        return unknown
    first = inputs[0].type
    if node.op_type in SAME_TYPE_AS_FIRST_INPUT:
        return [first, *unknown[1:]]
    if node.domain == CONTRIB and node.op_type in CONTRIB_TYPES:
        elems = [known.type.elem if known and isinstance(known.type, TensorType) else 0 for known in inputs]
        contents = {
            i: tuple(known.content.flat) for i, known in enumerate(inputs) if known and known.content is not None
        }
        followed = replace(shapes, constant_inputs={**shapes.constant_inputs, **contents})
        inferred = CONTRIB_TYPES[node.op_type](followed, elems)
        return [*inferred, *unknown][: len(unknown)]
    if node.op_type == "ReorderOutput":
        return [_reorder_output_type(node, first)]
    if node.op_type == "ReorderInput":
        return [_reorder_input_type(node, first)]
    if node.op_type == "Upsample":
        return [_upsample_type(node, first)]
    if node.domain.endswith(".nhwc") or node.op_type not in FUSED_FROM.keys() | POOLS:
        return unknown
    last = node.op_type in CHANNELS_LAST or bool(_int_attribute(node, "channels_last"))
    channels_second = _as_channels_second(first) if last else first
    if node.op_type in POOLS:
        dims = pool_extents(replace(shapes, inputs=[channels_second.dims]))
        small = dims is not None and any(extent is not None and extent < 0 for extent in dims)
        result: Type = TensorType(first.elem, None if small else dims)
    else:
        result = rule(_standard_operator(node), [replace(inputs[0], type=channels_second), *inputs[1:]])[0]
    return [_as_channels_last(result) if last else result, *unknown[1:]]


def _as_channels_second(type: TensorType) -> TensorType:
    """Return the type [n, ..., channels] as [n, channels, ...]."""
    if type.dims is None or len(type.dims) < 3:
        return TensorType(type.elem)
    batch, *spatial, channels = type.dims
    return TensorType(type.elem, (batch, channels, *spatial))


def _as_channels_last(type: Type) -> Type:
    """Return the type [n, channels, ...] as [n, ..., channels]."""
    if not isinstance(type, TensorType) or type.dims is None or len(type.dims) < 3:
        return None
    batch, channels, *spatial = type.dims
    return TensorType(type.elem, (batch, *spatial, channels))


def _standard_operator(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the standard operator with the output shape of a fused operator, without the fused operands."""
    make_node = require("onnx.helper", extra="onnx").make_node
    op_type, inputs = FUSED_FROM[node.op_type]
    plain: onnx.NodeProto = make_node(op_type, list(node.input)[:inputs], list(node.output)[:1])
    plain.attribute.extend(attribute for attribute in node.attribute if attribute.name in STANDARD_ATTRIBUTES)
    return plain


def _upsample_type(node: onnx.NodeProto, first: TensorType) -> Type:
    """Return the output type of Upsample in the blocked layout: every extent times a whole scale."""
    scales = next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "scales"), ())
    if first.dims is None or len(scales) != len(first.dims):
        return None
    return TensorType(first.elem, tuple(d and d * scale for d, scale in zip(first.dims, scales, strict=True)))


def _reorder_input_type(node: onnx.NodeProto, first: TensorType) -> Type:
    """Return the output type of ReorderInput: the channels second, rounded up to whole blocks of this processor."""
    if first.dims is None or len(first.dims) < 3:
        return None
    last = _int_attribute(node, "channels_last")
    batch, *others = first.dims
    channels, spatial = (others[-1], others[:-1]) if last else (others[0], others[1:])
    block = 1 if channels is None or channels % NCHWC_BLOCK == 0 else channel_block()
    return TensorType(first.elem, (batch, channels and -(-channels // block) * block, *spatial)) if block else None


@lru_cache(maxsize=1)
def channel_block() -> int:
    """Return the number of channels per block of the blocked layout on this processor; 0 without a blocked layout."""
    helper = require("onnx.helper", extra="onnx")
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    source = helper.make_tensor_value_info("x", 1, (1, 4, 1, 1))
    graph = helper.make_graph([node], "block", [source], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        session = open_session(model.SerializeToString(), session_options())
        return int(session.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})[0].shape[1])
    except Exception:  # any error means that ONNX Runtime lacks the operator, or is not installed
        return 0


def _reorder_output_type(node: onnx.NodeProto, first: TensorType) -> Type:
    """Return the output type of ReorderOutput: the channels without padding, second or last.

    [n, padded channels, ...] becomes [n, channels, ...], or [n, ..., channels] with `channels_last`.
    """
    channels = _int_attribute(node, "channels")
    if first.dims is None or len(first.dims) < 2 or channels < 1:
        return None
    batch, _, *spatial = first.dims
    dims = (batch, *spatial, channels) if _int_attribute(node, "channels_last") else (batch, channels, *spatial)
    return TensorType(first.elem, dims)


def _int_attribute(node: onnx.NodeProto, name: str) -> int:
    """Return an integer attribute, 0 if absent."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)


# Output types of ONNX Runtime's products and quantized operators (domain com.microsoft), derived from the kernels.

U8, F32 = 2, 1


def matrix_product_shape(a: Extents | None, b: Extents | None) -> Extents | None:
    """Return the shape of NumPy's `matmul`, None for a scalar operand or an operand of unknown rank."""
    if not a or not b:
        return None
    batch = broadcast_shape([a[:-2], b[:-2]])
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return None if batch is None else (*batch, *rows, *columns)


def _transposed_shape(node: NodeShapes, position: int, letter: str) -> Extents | None:
    """Return the shape of a FusedMatMul operand after transposition, None if the rank is unknown.

    `transBatch` moves the first axis behind the batch axes; `trans` then swaps the last two axes.
    """
    shape = node.shape(position)
    if shape is None or len(shape) < 2:
        return shape
    if node.integer_attribute(f"transBatch{letter}") and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if node.integer_attribute(f"trans{letter}") else shape


def fused_matmul_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of FusedMatMul: the product of the operands after transposition."""
    return [
        tensor_type_of(elems[0], matrix_product_shape(_transposed_shape(node, 0, "A"), _transposed_shape(node, 1, "B")))
    ]


def dynamic_quantize_matmul_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of DynamicQuantizeMatMul: the product, with the element type of the first operand."""
    return [tensor_type_of(elems[0], matrix_product_shape(node.shape(0), node.shape(1)))]


def matmul_integer_to_float_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of MatMulIntegerToFloat: the product, with the element type of the scales."""
    return [tensor_type_of(elems[2] if len(elems) > 2 else 0, matrix_product_shape(node.shape(0), node.shape(1)))]


def matmul_nbits_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of MatMulNBits: [..., K] becomes [..., N]."""
    data, columns = node.shape(0), node.integer_attribute("N")
    return [tensor_type_of(elems[0], (*data[:-1], columns) if data and columns else None)]


def quantized_gemm_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QGemm: quantized like the first operand if the output has a scale, else floating point."""
    a, b = node.shape(0), node.shape(3)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return []
    rows, columns = a[1 if node.integer_attribute("transA") else 0], b[0 if node.integer_attribute("transB") else 1]
    return [tensor_type_of(elems[0] if node.is_present(7) else elems[1], (rows, columns))]


def quantized_elementwise_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearAdd and QLinearMul: both operands, broadcast."""
    return [tensor_type_of(elems[0], broadcast_shape([node.shape(0), node.shape(3)]))]


def quantized_where_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearWhere: the condition and both operands, broadcast."""
    shapes = [node.shape(0), node.shape(1), node.shape(4)]
    return [tensor_type_of(elems[1] if len(elems) > 1 else 0, broadcast_shape(shapes))]


def quantized_concat_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearConcat: a scale and a zero point, then three inputs for each operand."""
    shapes = [node.shape(position) for position in range(2, len(node.inputs), 3)]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return []
    axis = node.integer_attribute("axis") % max(len(known[0]), 1)
    along: int | None = 0
    for shape in known:
        along = sum_of_extents(along, shape[axis])
    dims = tuple(along if i == axis else extent for i, extent in enumerate(known[0]))
    return [tensor_type_of(elems[1], dims)]


def quantize_linear_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QuantizeLinear, with the element type of the zero point; u8 without a zero point."""
    return [tensor_type_of(elems[2] if len(elems) > 2 and elems[2] else 0 if node.is_present(2) else U8, node.shape(0))]


def dequantize_linear_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of DequantizeLinear, with the element type of the scale."""
    return [tensor_type_of(elems[1] if len(elems) > 1 else 0, node.shape(0))]


def global_average_pool_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearGlobalAveragePool: every spatial extent is 1."""
    data = node.shape(0)
    if data is None or len(data) < 3:
        return []
    ones = (1,) * (len(data) - 2)
    dims = (data[0], *ones, data[-1]) if node.integer_attribute("channels_last") else (data[0], data[1], *ones)
    return [tensor_type_of(elems[0], dims)]


QUANTIZED_TYPES: Mapping[str, OutputTypes] = {
    "FusedMatMul": fused_matmul_type,
    "FusedMatMulActivation": fused_matmul_type,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul_type,
    "MatMulIntegerToFloat": matmul_integer_to_float_type,
    "MatMulNBits": matmul_nbits_type,
    "QGemm": quantized_gemm_type,
    "QLinearAdd": quantized_elementwise_type,
    "QLinearMul": quantized_elementwise_type,
    "QLinearWhere": quantized_where_type,
    "QLinearConcat": quantized_concat_type,
    "QLinearGlobalAveragePool": global_average_pool_type,
    "QuantizeLinear": quantize_linear_type,
    "DequantizeLinear": dequantize_linear_type,
}

CONTRIB_TYPES: Mapping[str, OutputTypes] = {**ATTENTION_TYPES, **QUANTIZED_TYPES}
"""Operator of the domain com.microsoft -> the function returning the types of the outputs."""

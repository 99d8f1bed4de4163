"""Output types of operators written by ONNX Runtime's optimiser and quantizer and missing from the onnx package.

Many operators are a standard operator with a fused successor, and use the type rule of the standard operator. The rest
have a rule here, derived from ONNX Runtime's kernel. Without a rule, a type declared by the file or inferred by ONNX
Runtime is an assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.base.optional_imports import require
from sublet.frontends.onnx.contrib_attention import ATTENTION_TYPES, OutputTypes
from sublet.frontends.onnx.contrib_quantized import QUANTIZED_TYPES
from sublet.frontends.onnx.import_state import KnownValue
from sublet.frontends.onnx.rules.shape_rule import NodeShapes
from sublet.frontends.onnx.rules.windows import pool_extents
from sublet.frontends.onnx.types import TensorType, Type

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

CONTRIB_TYPES: Mapping[str, OutputTypes] = {**ATTENTION_TYPES, **QUANTIZED_TYPES}
"""Operator of the domain com.microsoft -> the function returning the types of the outputs."""

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
        inferred = CONTRIB_TYPES[node.op_type](shapes, elems)
        return [*inferred, *unknown][: len(unknown)]
    if node.op_type == "ReorderOutput":
        return [_reorder_output_type(node, first)]
    if node.op_type == "ReorderInput":
        exact = first.dims is not None and len(first.dims) > 1 and (first.dims[1] or 1) % NCHWC_BLOCK == 0
        return [first if exact and not _int_attribute(node, "channels_last") else None]
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

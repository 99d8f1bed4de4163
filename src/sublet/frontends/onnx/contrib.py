"""Types of operators that ONNX Runtime's optimiser and quantizer write and the onnx package has no schema for.

Many are a standard operator with something fused behind it: the standard rule is asked. Others have a rule here,
which follows ONNX Runtime's kernel. Of an operator without a rule nothing is known; what a file or ONNX Runtime's own
inference tells of its types is an assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.base.extras import require
from sublet.frontends.onnx.contrib_attention import ATTENTION_TYPES, OutputTypes
from sublet.frontends.onnx.contrib_quantized import QUANTIZED_TYPES
from sublet.frontends.onnx.program import Known
from sublet.frontends.onnx.rules.rule import Seen
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
"""Contributed operator -> the standard operator of the same shape, and how many inputs that takes."""

STANDARD_ATTRIBUTES = frozenset(
    {
        *("alpha", "auto_pad", "beta", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape"),
        *("pads", "storage_order", "strides", "transA", "transB"),
    }
)

LIKE_FIRST_INPUT = frozenset(
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
"""Operators of the first operator sets, no longer ONNX's there, that ONNX Runtime has kept kernels for."""

BEFORE_THEIR_OPSET = EXPERIMENTAL | {"LayerNormalization", "SimplifiedLayerNormalization"}
"""Operators of models whose version of the default operator set has none of that name: those above, and what ONNX
Runtime's optimiser writes."""

NCHWC_BLOCK = 16
"""The blocked layout rounds channels up to 8 or 16, whichever the processor has; a multiple of 16 is exact."""

TYPES: Mapping[str, OutputTypes] = {**ATTENTION_TYPES, **QUANTIZED_TYPES}
"""Operator of the domain com.microsoft -> the function that returns the types of its outputs."""

CONTRIB = "com.microsoft"
CHANNELS_LAST = frozenset({"NhwcMaxPool"})
"""Operators that take [n, ..., channels] without being told by an attribute."""

POOLS = frozenset({"MaxPool", "AveragePool", "QLinearAveragePool", "NhwcMaxPool"})
"""Operators with the windows of a pool, in whatever layout."""

Rule = Callable[["onnx.NodeProto", "Sequence[Known | None]"], list[Type]]


def contrib_types(node: onnx.NodeProto, inputs: Sequence[Known | None], sight: Seen, rule: Rule) -> list[Type]:
    """Return the types of the outputs, None where nothing is known; `rule` asks the standard operators."""
    unknown: list[Type] = [None] * len(node.output)
    if not node.domain.startswith(CONTRIB) and node.op_type not in BEFORE_THEIR_OPSET:
        return unknown
    if not inputs or inputs[0] is None or not isinstance(inputs[0].type, TensorType):
        return unknown
    first = inputs[0].type
    if node.op_type in LIKE_FIRST_INPUT:
        return [first, *unknown[1:]]
    if node.domain == CONTRIB and node.op_type in TYPES:
        elems = [known.type.elem if known and isinstance(known.type, TensorType) else 0 for known in inputs]
        found = TYPES[node.op_type](sight, elems)
        return [*found, *unknown][: len(unknown)]
    if node.op_type == "ReorderOutput":
        return [_reorder_output(node, first)]
    if node.op_type == "ReorderInput":
        exact = first.dims is not None and len(first.dims) > 1 and (first.dims[1] or 1) % NCHWC_BLOCK == 0
        return [first if exact and not _int(node, "channels_last") else None]
    if node.op_type == "Upsample":
        return [_upsampled(node, first)]
    if node.domain.endswith(".nhwc") or node.op_type not in FUSED_FROM.keys() | POOLS:
        return unknown
    last = node.op_type in CHANNELS_LAST or bool(_int(node, "channels_last"))
    turned = _channels_second(first) if last else first
    if node.op_type in POOLS:
        dims = pool_extents(replace(sight, inputs=[turned.dims]))
        small = dims is not None and any(extent is not None and extent < 0 for extent in dims)
        result: Type = TensorType(first.elem, None if small else dims)
    else:
        result = rule(_standard(node), [replace(inputs[0], type=turned), *inputs[1:]])[0]
    return [_channels_last(result) if last else result, *unknown[1:]]


def _channels_second(type: TensorType) -> TensorType:
    """Return [n, ..., channels] as [n, channels, ...]."""
    if type.dims is None or len(type.dims) < 3:
        return TensorType(type.elem)
    batch, *spatial, channels = type.dims
    return TensorType(type.elem, (batch, channels, *spatial))


def _channels_last(type: Type) -> Type:
    """Return [n, channels, ...] as [n, ..., channels]."""
    if not isinstance(type, TensorType) or type.dims is None or len(type.dims) < 3:
        return None
    batch, channels, *spatial = type.dims
    return TensorType(type.elem, (batch, *spatial, channels))


def _standard(node: onnx.NodeProto) -> onnx.NodeProto:
    make_node = require("onnx.helper", extra="onnx").make_node
    op_type, inputs = FUSED_FROM[node.op_type]
    plain: onnx.NodeProto = make_node(op_type, list(node.input)[:inputs], list(node.output)[:1])
    plain.attribute.extend(attribute for attribute in node.attribute if attribute.name in STANDARD_ATTRIBUTES)
    return plain


def _upsampled(node: onnx.NodeProto, first: TensorType) -> Type:
    """The blocked layout's nearest or linear Upsample, by whole factors."""
    scales = next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "scales"), ())
    if first.dims is None or len(scales) != len(first.dims):
        return None
    return TensorType(first.elem, tuple(d and d * scale for d, scale in zip(first.dims, scales, strict=True)))


def _reorder_output(node: onnx.NodeProto, first: TensorType) -> Type:
    """[n, padded channels, ...] -> [n, channels, ...], or with the channels last."""
    channels = _int(node, "channels")
    if first.dims is None or len(first.dims) < 2 or channels < 1:
        return None
    batch, _, *spatial = first.dims
    dims = (batch, *spatial, channels) if _int(node, "channels_last") else (batch, channels, *spatial)
    return TensorType(first.elem, dims)


def _int(node: onnx.NodeProto, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)

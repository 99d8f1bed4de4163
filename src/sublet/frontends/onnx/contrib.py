"""Shapes of operators that ONNX Runtime's optimiser writes and the onnx package has no schema for.

Most are a standard operator with something fused behind it: the standard rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sublet.base.extras import require
from sublet.frontends.onnx.program import Known
from sublet.frontends.onnx.types import TensorType, Type

if TYPE_CHECKING:
    import onnx

FUSED_FROM: dict[str, tuple[str, int]] = {
    "FusedConv": ("Conv", 3),
    "FusedGemm": ("Gemm", 3),
    "Conv": ("Conv", 3),
    "MaxPool": ("MaxPool", 1),
    "AveragePool": ("AveragePool", 1),
    "GlobalMaxPool": ("GlobalMaxPool", 1),
    "GlobalAveragePool": ("GlobalAveragePool", 1),
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
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "LayerNormalization", "RotaryEmbedding"),
        *("GroupNorm", "SkipGroupNorm", "BiasAdd", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Inverse"),
    }
)
SUM_OUTPUT = {"SkipLayerNormalization": 3, "SkipSimplifiedLayerNormalization": 3, "SkipGroupNorm": 1}
"""Operators with an optional output of the shape of the first input, and its position."""

EXPERIMENTAL = frozenset(
    ("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
) | {"ThresholdedRelu"}
"""Operators of the first operator sets, no longer ONNX's there, that ONNX Runtime has kept kernels for."""

BEFORE_THEIR_OPSET = EXPERIMENTAL | {"LayerNormalization", "SimplifiedLayerNormalization"}
"""Operators of models whose version of the default operator set has none of that name: those above, and what ONNX
Runtime's optimiser writes."""

NCHWC_BLOCK = 16
"""The blocked layout rounds channels up to 8 or 16, whichever the processor has; a multiple of 16 is exact."""

Rule = Callable[["onnx.NodeProto"], list[Type]]


def contrib_types(node: onnx.NodeProto, inputs: Sequence[Known | None], rule: Rule) -> list[Type]:
    """The types of the outputs, None where nothing is known; `rule` asks the standard operators."""
    unknown: list[Type] = [None] * len(node.output)
    if not node.domain.startswith("com.microsoft") and node.op_type not in BEFORE_THEIR_OPSET:
        return unknown
    if not inputs or inputs[0] is None or not isinstance(inputs[0].type, TensorType):
        return unknown
    first = inputs[0].type
    if node.op_type in LIKE_FIRST_INPUT:
        alike = (0, SUM_OUTPUT.get(node.op_type))
        return [first if i in alike else None for i in range(len(unknown))]
    if node.op_type in ("FusedMatMul", "FusedMatMulActivation"):
        return [_product(node, [known.type if known else None for known in inputs])]
    if node.op_type in ("Attention", "MultiHeadAttention") and node.domain == "com.microsoft":
        return [_attended(node, [known.type if known else None for known in inputs]), *unknown[1:]]
    if node.op_type == "ReorderOutput":
        return [_reorder_output(node, first)]
    if node.op_type == "ReorderInput":
        exact = first.dims is not None and len(first.dims) > 1 and (first.dims[1] or 1) % NCHWC_BLOCK == 0
        return [first if exact and not _int(node, "channels_last") else None]
    if node.op_type == "Upsample":
        return [_upsampled(node, first)]
    if node.op_type in FUSED_FROM:
        return rule(_standard(node))
    return unknown


def _standard(node: onnx.NodeProto) -> onnx.NodeProto:
    make_node = require("onnx.helper", extra="onnx").make_node
    op_type, inputs = FUSED_FROM[node.op_type]
    plain: onnx.NodeProto = make_node(op_type, list(node.input)[:inputs], list(node.output)[:1])
    plain.attribute.extend(attribute for attribute in node.attribute if attribute.name in STANDARD_ATTRIBUTES)
    return plain


def _product(node: onnx.NodeProto, types: Sequence[Type]) -> Type:
    """MatMul whose operands may be transposed in their last two dimensions; the batch dimensions broadcast."""
    a, b = types[:2]
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dims is None or b.dims is None:
        return None
    if min(len(a.dims), len(b.dims)) < 2 or _int(node, "transBatchA") or _int(node, "transBatchB"):
        return None
    rows = a.dims[-1] if _int(node, "transA") else a.dims[-2]
    columns = b.dims[-2] if _int(node, "transB") else b.dims[-1]
    longer, shorter = sorted((a.dims[:-2], b.dims[:-2]), key=len, reverse=True)
    padded = (*(1,) * (len(longer) - len(shorter)), *shorter)
    batch = tuple(y if x == 1 else x for x, y in zip(longer, padded, strict=True))
    return TensorType(a.elem, (*batch, rows, columns))


def _attended(node: onnx.NodeProto, types: Sequence[Type]) -> Type:
    """[batch, length, size of all values]; None for another layout of the operands than the plain one."""
    plain = [type.dims if isinstance(type, TensorType) else None for type in types]
    first, values = plain[0], plain[2] if len(plain) > 2 else None
    if not isinstance(types[0], TensorType) or first is None or len(first) != 3:
        return None
    if node.op_type == "MultiHeadAttention":
        return TensorType(types[0].elem, (*first[:2], values[2])) if values is not None and len(values) == 3 else None
    sizes = next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "qkv_hidden_sizes"), ())
    weights = plain[1]
    if weights is None or len(weights) != 2 or (not sizes and weights[1] is None):
        return None
    return TensorType(types[0].elem, (*first[:2], sizes[2] if len(sizes) == 3 else (weights[1] or 0) // 3))


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

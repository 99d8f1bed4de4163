"""Shapes of operators that ONNX Runtime's optimiser writes and the onnx package has no schema for.

Most are a standard operator with something fused behind it: the standard rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sublet.extras import require
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
        *("GroupNorm", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Inverse"),
    }
)
NCHWC_BLOCK = 16
"""The blocked layout rounds channels up to 8 or 16, whichever the processor has; a multiple of 16 is exact."""

Rule = Callable[["onnx.NodeProto"], list[Type]]


def contrib_types(node: onnx.NodeProto, inputs: Sequence[Known | None], rule: Rule) -> list[Type]:
    """The types of the outputs, None where nothing is known; `rule` asks the standard operators."""
    unknown: list[Type] = [None] * len(node.output)
    if not node.domain.startswith("com.microsoft") and node.op_type != "SimplifiedLayerNormalization":
        return unknown
    if not inputs or inputs[0] is None or not isinstance(inputs[0].type, TensorType):
        return unknown
    first = inputs[0].type
    if node.op_type in LIKE_FIRST_INPUT:
        return [first, *unknown[1:]]
    if node.op_type == "ReorderOutput":
        return [_reorder_output(node, first)]
    if node.op_type == "ReorderInput":
        exact = first.dims is not None and len(first.dims) > 1 and (first.dims[1] or 1) % NCHWC_BLOCK == 0
        return [first if exact and not _int(node, "channels_last") else None]
    if node.op_type in FUSED_FROM:
        return rule(_standard(node))
    return unknown


def _standard(node: onnx.NodeProto) -> onnx.NodeProto:
    make_node = require("onnx.helper", extra="onnx").make_node
    op_type, inputs = FUSED_FROM[node.op_type]
    plain: onnx.NodeProto = make_node(op_type, list(node.input)[:inputs], list(node.output)[:1])
    plain.attribute.extend(attribute for attribute in node.attribute if attribute.name in STANDARD_ATTRIBUTES)
    return plain


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

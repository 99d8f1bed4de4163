"""Tables of shape rules by operator, for ONNX's default domain and for com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.integrations.onnx.reader.rules import attention, data_movement, images, layers
from sublet.integrations.onnx.reader.rules.shape_rule import NodeShapes, ShapeRule

# Nodes with different output shapes in ONNX's shape inference and in ONNX Runtime; Sublet leaves the shape open.

LARGEST_I32 = (1 << 31) - 1


def has_disputed_shape(op_type: str, node: NodeShapes) -> bool:
    """True if ONNX's inference and ONNX Runtime give different shapes to the node's output."""
    return op_type == "Slice" and _slices_back_to_largest(node)


def _slices_back_to_largest(node: NodeShapes) -> bool:
    """True if a Slice with a negative step ends at the largest integer.

    In ONNX the end lies after the last element, and the slice is empty; ONNX Runtime reads the end as the beginning.
    """
    steps, ends = node.constant_inputs.get(4, ()), node.constant_inputs.get(2, ())
    return any(step < 0 and end >= LARGEST_I32 for step, end in zip(steps, ends, strict=False))


RULES: Mapping[str, ShapeRule] = {
    "MatMul": layers.require_matmul,
    "MatMulInteger": layers.require_integer_matmul,
    "QLinearMatMul": layers.require_quantized_matmul,
    "Gemm": layers.require_gemm,
    "Conv": layers.require_conv,
    "QLinearConv": layers.require_quantized_conv,
    "ConvInteger": layers.require_integer_conv,
    "ConvTranspose": layers.require_transposed_conv,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), layers.require_pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), images.require_spatial_axes),
    "DeformConv": images.require_deformed_conv,
    "MaxUnpool": images.require_unpool,
    "AffineGrid": images.require_affine_grid,
    "Col2Im": images.require_columns_to_image,
    "Resize": images.require_resize,
    "Upsample": images.require_upsample,
    "DFT": images.require_fourier,
    "SoftmaxCrossEntropyLoss": images.require_class_loss,
    "NegativeLogLikelihoodLoss": images.require_class_loss,
    "Attention": attention.require_attention,
    "RotaryEmbedding": attention.require_rotary_embedding,
    "Reshape": data_movement.require_reshape,
    "Squeeze": data_movement.require_squeeze,
    "Unsqueeze": data_movement.require_unsqueeze,
    "Flatten": data_movement.require_flatten,
    "Transpose": data_movement.require_transpose,
    "Expand": data_movement.require_expand,
    "Tile": data_movement.require_tile,
    "Concat": data_movement.require_concat,
    "Split": data_movement.require_split,
    "Pad": data_movement.require_pad,
    "Slice": data_movement.require_slice,
    "DepthToSpace": data_movement.require_depth_to_space,
    "SpaceToDepth": data_movement.require_space_to_depth,
    "Gather": data_movement.require_gather,
    "GatherElements": data_movement.require_gather_elements,
    "GatherND": data_movement.require_gather_nd,
    "Scatter": data_movement.require_scatter_elements,
    "ScatterElements": data_movement.require_scatter_elements,
    "ScatterND": data_movement.require_scatter_nd,
    "TopK": data_movement.require_top_k,
    "CumSum": data_movement.require_cumulative,
    "LpNormalization": data_movement.axis_rule(scalars=False),
    "CumProd": data_movement.require_cumulative,
    "Compress": data_movement.require_compress,
    **dict.fromkeys(("ArgMax", "ArgMin"), data_movement.axis_rule(0, scalars=False)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), data_movement.axis_rule()),
    **dict.fromkeys(
        (f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")),
        data_movement.require_reduction,
    ),
    "ReduceSumSquare": data_movement.require_reduction,
    "MeanVarianceNormalization": layers.require_mean_variance_normalization,
    **dict.fromkeys(
        ("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div"), layers.require_elementwise
    ),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"), layers.require_elementwise
    ),
    **dict.fromkeys(("Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"), layers.require_elementwise),
    "BatchNormalization": layers.require_batch_normalization,
    "InstanceNormalization": layers.require_instance_normalization,
    "GroupNormalization": layers.require_group_normalization,
    "LayerNormalization": layers.require_layer_normalization,
    "RMSNormalization": layers.require_layer_normalization,
    "PRelu": layers.require_prelu,
    "LSTM": layers.recurrent_rule(4, 2),
    "GRU": layers.recurrent_rule(3, 1),
    "RNN": layers.recurrent_rule(1, 1),
    "QuantizeLinear": layers.require_quantization,
    "DequantizeLinear": layers.require_quantization,
}
"""Operator of ONNX's default domain -> shape rule, for versions of the operator set from 7 on."""

CONTRIB_RULES: Mapping[str, ShapeRule] = {
    "Inverse": attention.require_square,
    "FusedMatMul": attention.require_fused_matmul,
    "FusedGemm": layers.require_gemm,
    "FusedConv": layers.require_conv,
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), attention.require_skip_normalization
    ),
    "BiasGelu": attention.require_last_axis_bias,
    "FastGelu": attention.require_last_axis_bias,
    "MultiHeadAttention": attention.require_multi_head_attention,
    "Attention": attention.require_packed_attention,
}
"""Operator of ONNX Runtime's domain, com.microsoft -> shape rule."""

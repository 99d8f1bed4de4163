"""Tables of shape rules by operator, for ONNX's default domain and for com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.frontends.onnx.rules import attention, contrib, data_movement, images, indexing, layers, linear
from sublet.frontends.onnx.rules.shape_rule import ShapeRule

RULES: Mapping[str, ShapeRule] = {
    "MatMul": linear.require_matmul,
    "MatMulInteger": linear.require_integer_matmul,
    "QLinearMatMul": linear.require_quantized_matmul,
    "Gemm": linear.require_gemm,
    "Conv": linear.require_conv,
    "QLinearConv": linear.require_quantized_conv,
    "ConvInteger": linear.require_integer_conv,
    "ConvTranspose": linear.require_transposed_conv,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), linear.require_pool),
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
    "Gather": indexing.require_gather,
    "GatherElements": indexing.require_gather_elements,
    "GatherND": indexing.require_gather_nd,
    "Scatter": indexing.require_scatter_elements,
    "ScatterElements": indexing.require_scatter_elements,
    "ScatterND": indexing.require_scatter_nd,
    "TopK": indexing.require_top_k,
    "CumSum": indexing.require_cumulative,
    "LpNormalization": indexing.axis_rule(scalars=False),
    "CumProd": indexing.require_cumulative,
    "Compress": indexing.require_compress,
    **dict.fromkeys(("ArgMax", "ArgMin"), indexing.axis_rule(0, scalars=False)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), indexing.axis_rule()),
    **dict.fromkeys(
        (f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")),
        indexing.require_reduction,
    ),
    "ReduceSumSquare": indexing.require_reduction,
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
    "Inverse": contrib.require_square,
    "FusedMatMul": contrib.require_fused_matmul,
    "FusedGemm": linear.require_gemm,
    "FusedConv": linear.require_conv,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), contrib.require_skip_normalization),
    "BiasGelu": contrib.require_last_axis_bias,
    "FastGelu": contrib.require_last_axis_bias,
    "MultiHeadAttention": contrib.require_multi_head_attention,
    "Attention": contrib.require_packed_attention,
}
"""Operator of ONNX Runtime's domain, com.microsoft -> shape rule."""

"""Shape rules of ONNX Runtime's contributed operators (domain com.microsoft)."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.frontends.onnx.rules.linear import require_product
from sublet.frontends.onnx.rules.shape_rule import (
    Extents,
    NodeShapes,
    may_be_equal,
    require_equal,
    require_that,
    require_vector,
)


def require_square(node: NodeShapes) -> None:
    """Require square matrices."""
    data = node.shape(0)
    if data is not None:
        require_that(len(data) > 1, f"{format_dims(data)} is not a matrix")
        require_equal(data[-1], data[-2], f"{format_dims(data)} is not square")


def require_fused_matmul(node: NodeShapes) -> None:
    """Require compatible operands of a product, after the optional transposition of the last two dimensions."""
    if node.integer_attribute("transBatchA") or node.integer_attribute("transBatchB"):
        return
    require_product(_transposed_shape(node, 0, "transA"), _transposed_shape(node, 1, "transB"))


def _transposed_shape(node: NodeShapes, position: int, name: str) -> Extents | None:
    """Return the shape of an operand after the optional transposition."""
    shape = node.shape(position)
    turns = shape is not None and len(shape) > 1 and node.integer_attribute(name)
    return (*shape[:-2], shape[-1], shape[-2]) if shape is not None and turns else shape


def require_skip_normalization(node: NodeShapes) -> None:
    """Require operands equal up to a broadcast batch, and scales and biases as long as the last axis."""
    data, skipped = node.shape(0), node.shape(1)
    if data is None:
        return
    require_that(len(data) in (2, 3), f"{format_dims(data)} has neither two nor three dimensions")
    if skipped is not None:
        require_that(
            len(skipped) in (2, 3), f"the skip input {format_dims(skipped)} has neither two nor three dimensions"
        )
        require_that(
            may_be_equal(data[-2:], skipped[-2:]),
            f"{format_dims(data)} and the skip input {format_dims(skipped)} differ",
        )
    for position in range(2, len(node.inputs)):
        require_vector(node.shape(position), data[-1], "a scale or bias")


def require_last_axis_bias(node: NodeShapes) -> None:
    """Require a bias as long as the last axis."""
    data = node.shape(0)
    if data is not None:
        require_that(bool(data), "a scalar has no bias")
        require_vector(node.shape(1), data[-1], "the bias")


def require_multi_head_attention(node: NodeShapes) -> None:
    """Require queries, keys and values of [batch, length, heads * size], for MultiHeadAttention."""
    queries, keys, values = node.shape(0), node.shape(1), node.shape(2)
    count = node.integer_attribute("num_heads")
    require_that(count > 0, "num_heads is missing")
    if queries is None:
        return
    require_that(len(queries) in (3, 5), f"the queries are {format_dims(queries)}")
    whole = len(queries) == 5 or queries[2] is None or queries[2] % count == 0
    require_that(whole, f"the queries {format_dims(queries)} cannot be split into {count} heads")
    if keys is not None and len(keys) == len(queries) == 3:
        require_equal(
            queries[0], keys[0], f"queries {format_dims(queries)} and keys {format_dims(keys)} differ in batch"
        )
        require_equal(
            queries[2], keys[2], f"queries {format_dims(queries)} and keys {format_dims(keys)} differ in size"
        )
        if values is not None and len(values) == 3:
            require_equal(
                keys[0], values[0], f"keys {format_dims(keys)} and values {format_dims(values)} differ in batch"
            )
            require_equal(
                keys[1], values[1], f"keys {format_dims(keys)} and values {format_dims(values)} differ in length"
            )
            fits = values[2] is None or values[2] % count == 0
            require_that(fits, f"the values {format_dims(values)} cannot be split into {count} heads")


def require_packed_attention(node: NodeShapes) -> None:
    """Require an operand of [batch, length, size] and weights of [size, queries + keys + values], for Attention."""
    data, weights = node.shape(0), node.shape(1)
    require_that(data is None or len(data) == 3, f"the operand is {format_dims(data)}, not of three dimensions")
    require_that(weights is None or len(weights) == 2, f"the weights are {format_dims(weights)}, not a matrix")
    if data is not None and weights is not None:
        require_equal(
            data[2], weights[0], f"{format_dims(data)} times {format_dims(weights)} sums over different extents"
        )
        require_vector(node.shape(2), weights[1], "the bias")
        sizes = node.integers_attribute("qkv_hidden_sizes")
        parts = weights[1] is None or (sum(sizes) == weights[1] if sizes else weights[1] % 3 == 0)
        require_that(parts, f"the weights {format_dims(weights)} cannot be split into queries, keys and values")

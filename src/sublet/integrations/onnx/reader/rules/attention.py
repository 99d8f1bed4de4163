"""Shape rules of attention and rotary embedding: heads, lengths, masks, and cosine and sine caches."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.integrations.onnx.reader.rules.layers import require_product
from sublet.integrations.onnx.reader.rules.shape_rule import (
    Extents,
    NodeShapes,
    are_known_different,
    may_be_equal,
    require_broadcastable_to,
    require_equal,
    require_that,
    require_vector,
)


def require_attention(node: NodeShapes) -> None:
    """Require queries, keys and values of [batch, heads, length, size] or [batch, length, heads * size]."""
    queries = _heads_shape(node, 0, "q_num_heads", "the queries")
    keys, values = (
        _heads_shape(node, 1, "kv_num_heads", "the keys"),
        _heads_shape(node, 2, "kv_num_heads", "the values"),
    )
    past_keys, past_values = node.shape(4), node.shape(5)
    if queries is None or keys is None or values is None:
        return
    for axis, what in ((0, "batch"), (1, "number of heads"), (2, "length")):
        require_equal(
            keys[axis], values[axis], f"keys {format_dims(keys)} and values {format_dims(values)} differ in {what}"
        )
    require_equal(queries[0], keys[0], f"queries {format_dims(queries)} and keys {format_dims(keys)} differ in batch")
    require_equal(queries[3], keys[3], f"queries {format_dims(queries)} and keys {format_dims(keys)} differ in size")
    query_heads, key_heads = queries[1], keys[1]
    shared = query_heads is None or key_heads is None or (key_heads > 0 and query_heads % key_heads == 0)
    require_that(shared, f"{query_heads} heads of queries cannot share {key_heads} heads of keys")
    for past, now, what in ((past_keys, keys, "the past keys"), (past_values, values, "the past values")):
        if past is not None:
            require_that(len(past) == 4, f"{what} {format_dims(past)} do not have four dimensions")
            for axis in (0, 1, 3):
                require_equal(
                    past[axis],
                    now[axis],
                    f"{what} {format_dims(past)} and {format_dims(now)} differ in more than the length",
                )
    if past_keys is not None and past_values is not None:
        what = f"the past keys {format_dims(past_keys)} and the past values {format_dims(past_values)} differ in length"
        require_equal(past_keys[2], past_values[2], what)
    before = past_keys[2] if past_keys is not None else (None if node.is_present(4) else 0)
    _require_mask(node, queries, None if before is None or keys[2] is None else before + keys[2])


def _require_mask(node: NodeShapes, queries: Extents, total: int | None) -> None:
    """Require a mask broadcasting to [..., length, total].

    From version 24 of the operator set on, a mask may have fewer than `total` columns.
    """
    mask = node.shape(3)
    if mask is None:
        return
    require_that(1 <= len(mask) <= 4, f"the mask {format_dims(mask)} does not have one to four dimensions")
    require_broadcastable_to(mask[:-1], queries[:-1], "the mask without its last dimension,")
    last = mask[-1]
    shorter = node.version >= 24 and last is not None and total is not None and last <= total
    require_that(
        shorter or last == 1 or not are_known_different(last, total),
        f"the mask {format_dims(mask)} does not fit {total} keys",
    )


def _heads_shape(node: NodeShapes, position: int, heads: str, what: str) -> Extents | None:
    """Return the shape of an operand as [batch, heads, length, size]. Raises ShapeConflict for an indivisible size."""
    shape = node.shape(position)
    if shape is None or len(shape) == 4:
        return shape
    require_that(len(shape) == 3, f"{what} {format_dims(shape)} have neither three nor four dimensions")
    count = node.integer_attribute(heads)
    require_that(count > 0, f"{what} {format_dims(shape)} have three dimensions, and {heads} is missing")
    require_that(
        shape[2] is None or shape[2] % count == 0, f"{what} {format_dims(shape)} cannot be split into {count} heads"
    )
    return shape[0], count, shape[1], None if shape[2] is None else shape[2] // count


def require_rotary_embedding(node: NodeShapes) -> None:
    """Require cosines and sines of [positions, size / 2], or of [batch, length, size / 2] without position indices."""
    data, cosines, sines = node.shape(0), node.shape(1), node.shape(2)
    if data is None or cosines is None or sines is None:
        return
    require_that(len(data) in (3, 4), f"{format_dims(data)} has neither three nor four dimensions")
    require_that(
        may_be_equal(cosines, sines), f"the cosines {format_dims(cosines)} and the sines {format_dims(sines)} differ"
    )
    indexed = node.is_present(3)
    require_that(len(cosines) == (2 if indexed else 3), f"the cosines are {format_dims(cosines)}")
    batch, length = data[0], data[2] if len(data) == 4 else data[1]
    heads = node.integer_attribute("num_heads")
    require_that(len(data) == 4 or heads > 0, f"{format_dims(data)} has three dimensions, and num_heads is missing")
    if len(data) == 3:
        require_that(data[2] is None or data[2] % heads == 0, f"{format_dims(data)} cannot be split into {heads} heads")
    if not indexed:
        require_equal(batch, cosines[0], f"{format_dims(data)} and the cosines {format_dims(cosines)} differ in batch")
        require_equal(
            length, cosines[1], f"{format_dims(data)} and the cosines {format_dims(cosines)} differ in length"
        )
    elif (places := node.shape(3)) is not None:
        require_that(len(places) == 2, f"the positions are {format_dims(places)}, not a matrix")
        require_equal(batch, places[0], f"{format_dims(data)} and the positions {format_dims(places)} differ in batch")
        require_equal(
            length, places[1], f"{format_dims(data)} and the positions {format_dims(places)} differ in length"
        )
    size = data[3] if len(data) == 4 else (None if data[2] is None else data[2] // heads)
    rotated = node.integer_attribute("rotary_embedding_dim") or size
    half = None if rotated is None else rotated // 2
    require_equal(
        half, cosines[-1], f"{format_dims(data)} and the cosines {format_dims(cosines)} differ in half the size"
    )


# Shape rules of ONNX Runtime's contributed operators (domain com.microsoft).


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

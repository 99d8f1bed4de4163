"""Shape rules of ONNX Runtime's contributed operators (domain com.microsoft)."""

from __future__ import annotations

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.linear import product
from sublet.frontends.onnx.rules.rule import Extents, Seen, alike, demand, of_length, same


def inverse(seen: Seen) -> None:
    """Require square matrices."""
    data = seen.shape(0)
    if data is not None:
        demand(len(data) > 1, f"{shown(data)} is no matrix")
        same(data[-1], data[-2], f"{shown(data)} is not square")


def fused_matmul(seen: Seen) -> None:
    """Require compatible operands of a product, after the optional transposition of the last two dimensions."""
    if seen.whole("transBatchA") or seen.whole("transBatchB"):
        return
    product(_turned(seen, 0, "transA"), _turned(seen, 1, "transB"))


def _turned(seen: Seen, position: int, name: str) -> Extents | None:
    """Return the shape of an operand after the optional transposition."""
    shape = seen.shape(position)
    turns = shape is not None and len(shape) > 1 and seen.whole(name)
    return (*shape[:-2], shape[-1], shape[-2]) if shape is not None and turns else shape


def skip_normalization(seen: Seen) -> None:
    """Require operands equal up to a broadcast batch, and scales and biases as long as the last axis."""
    data, skipped = seen.shape(0), seen.shape(1)
    if data is None:
        return
    demand(len(data) in (2, 3), f"{shown(data)} has neither two nor three dimensions")
    if skipped is not None:
        demand(len(skipped) in (2, 3), f"what is added, {shown(skipped)}, has neither two nor three dimensions")
        demand(alike(data[-2:], skipped[-2:]), f"{shown(data)} and what is added, {shown(skipped)}, differ")
    for position in range(2, len(seen.inputs)):
        of_length(seen.shape(position), data[-1], "a scale or bias")


def biased(seen: Seen) -> None:
    """Require a bias as long as the last axis."""
    data = seen.shape(0)
    if data is not None:
        demand(bool(data), "a scalar has no bias")
        of_length(seen.shape(1), data[-1], "the bias")


def heads(seen: Seen) -> None:
    """Require queries, keys and values of [batch, length, heads * size], for MultiHeadAttention."""
    queries, keys, values = seen.shape(0), seen.shape(1), seen.shape(2)
    count = seen.whole("num_heads")
    demand(count > 0, "num_heads is not told")
    if queries is None:
        return
    demand(len(queries) in (3, 5), f"the queries are {shown(queries)}")
    whole = len(queries) == 5 or queries[2] is None or queries[2] % count == 0
    demand(whole, f"the queries {shown(queries)} do not make {count} heads")
    if keys is not None and len(keys) == len(queries) == 3:
        same(queries[0], keys[0], f"queries {shown(queries)} and keys {shown(keys)} differ in batch")
        same(queries[2], keys[2], f"queries {shown(queries)} and keys {shown(keys)} differ in size")
        if values is not None and len(values) == 3:
            same(keys[0], values[0], f"keys {shown(keys)} and values {shown(values)} differ in batch")
            same(keys[1], values[1], f"keys {shown(keys)} and values {shown(values)} differ in length")
            fits = values[2] is None or values[2] % count == 0
            demand(fits, f"the values {shown(values)} do not make {count} heads")


def joined_attention(seen: Seen) -> None:
    """Require an operand of [batch, length, size] and weights of [size, queries + keys + values], for Attention."""
    data, weights = seen.shape(0), seen.shape(1)
    demand(data is None or len(data) == 3, f"the operand is {shown(data)}, not of three dimensions")
    demand(weights is None or len(weights) == 2, f"the weights are {shown(weights)}, not a matrix")
    if data is not None and weights is not None:
        same(data[2], weights[0], f"{shown(data)} times {shown(weights)} sums over different extents")
        of_length(seen.shape(2), weights[1], "the bias")
        sizes = seen.wholes("qkv_hidden_sizes")
        parts = weights[1] is None or (sum(sizes) == weights[1] if sizes else weights[1] % 3 == 0)
        demand(parts, f"the weights {shown(weights)} are not those of queries, keys and values")

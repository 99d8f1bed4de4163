"""Shape rules of attention and rotary embedding: heads, lengths, masks, and cosine and sine caches."""

from __future__ import annotations

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import Extents, Seen, alike, broadcast_to, demand, differ, same


def attention(seen: Seen) -> None:
    """Require queries, keys and values of [batch, heads, length, size] or [batch, length, heads * size]."""
    queries = _heads(seen, 0, "q_num_heads", "the queries")
    keys, values = _heads(seen, 1, "kv_num_heads", "the keys"), _heads(seen, 2, "kv_num_heads", "the values")
    past_keys, past_values = seen.shape(4), seen.shape(5)
    if queries is None or keys is None or values is None:
        return
    for axis, what in ((0, "batch"), (1, "number of heads"), (2, "length")):
        same(keys[axis], values[axis], f"keys {shown(keys)} and values {shown(values)} differ in {what}")
    same(queries[0], keys[0], f"queries {shown(queries)} and keys {shown(keys)} differ in batch")
    same(queries[3], keys[3], f"queries {shown(queries)} and keys {shown(keys)} differ in size")
    many, few = queries[1], keys[1]
    shared = many is None or few is None or (few > 0 and many % few == 0)
    demand(shared, f"{many} heads of queries cannot share {few} heads of keys")
    for past, now, what in ((past_keys, keys, "the past keys"), (past_values, values, "the past values")):
        if past is not None:
            demand(len(past) == 4, f"{what} {shown(past)} do not have four dimensions")
            for axis in (0, 1, 3):
                same(past[axis], now[axis], f"{what} {shown(past)} do not go on as {shown(now)}")
    if past_keys is not None and past_values is not None:
        what = f"the past keys {shown(past_keys)} and the past values {shown(past_values)} differ in length"
        same(past_keys[2], past_values[2], what)
    before = past_keys[2] if past_keys is not None else (None if seen.present(4) else 0)
    _mask(seen, queries, None if before is None or keys[2] is None else before + keys[2])


def _mask(seen: Seen, queries: Extents, total: int | None) -> None:
    """Require a mask broadcasting to [..., length, total].

    From version 24 of the operator set on, a mask may have fewer than `total` columns.
    """
    mask = seen.shape(3)
    if mask is None:
        return
    demand(1 <= len(mask) <= 4, f"the mask {shown(mask)} does not have one to four dimensions")
    broadcast_to(mask[:-1], queries[:-1], "the mask without its last dimension,")
    last = mask[-1]
    shorter = seen.version >= 24 and last is not None and total is not None and last <= total
    demand(shorter or last == 1 or not differ(last, total), f"the mask {shown(mask)} does not fit {total} keys")


def _heads(seen: Seen, position: int, heads: str, what: str) -> Extents | None:
    """Return the shape of an operand as [batch, heads, length, size]. Raises ShapeConflict for an indivisible size."""
    shape = seen.shape(position)
    if shape is None or len(shape) == 4:
        return shape
    demand(len(shape) == 3, f"{what} {shown(shape)} have neither three nor four dimensions")
    count = seen.whole(heads)
    demand(count > 0, f"{what} {shown(shape)} have three dimensions, and {heads} is not told")
    demand(shape[2] is None or shape[2] % count == 0, f"{what} {shown(shape)} do not make {count} heads")
    return shape[0], count, shape[1], None if shape[2] is None else shape[2] // count


def rotary(seen: Seen) -> None:
    """Require cosines and sines of [positions, size / 2], or of [batch, length, size / 2] without position indices."""
    data, cosines, sines = seen.shape(0), seen.shape(1), seen.shape(2)
    if data is None or cosines is None or sines is None:
        return
    demand(len(data) in (3, 4), f"{shown(data)} has neither three nor four dimensions")
    demand(alike(cosines, sines), f"the cosines {shown(cosines)} and the sines {shown(sines)} differ")
    indexed = seen.present(3)
    demand(len(cosines) == (2 if indexed else 3), f"the cosines are {shown(cosines)}")
    batch, length = data[0], data[2] if len(data) == 4 else data[1]
    heads = seen.whole("num_heads")
    demand(len(data) == 4 or heads > 0, f"{shown(data)} has three dimensions, and num_heads is not told")
    if len(data) == 3:
        demand(data[2] is None or data[2] % heads == 0, f"{shown(data)} does not make {heads} heads")
    if not indexed:
        same(batch, cosines[0], f"{shown(data)} and the cosines {shown(cosines)} differ in batch")
        same(length, cosines[1], f"{shown(data)} and the cosines {shown(cosines)} differ in length")
    elif (places := seen.shape(3)) is not None:
        demand(len(places) == 2, f"the positions are {shown(places)}, not a matrix")
        same(batch, places[0], f"{shown(data)} and the positions {shown(places)} differ in batch")
        same(length, places[1], f"{shown(data)} and the positions {shown(places)} differ in length")
    size = data[3] if len(data) == 4 else (None if data[2] is None else data[2] // heads)
    rotated = seen.whole("rotary_embedding_dim") or size
    half = None if rotated is None else rotated // 2
    same(half, cosines[-1], f"{shown(data)} and the cosines {shown(cosines)} differ in half the size")

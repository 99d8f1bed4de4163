"""Scaled dot-product attention, computed in tiles of the score matrix.

ATen's attention kernels allocate results, and using ATen would save at most a copy of a result. Tiles are as small as
ATen's and lie in scratch memory. For short sequences a tile has several heads. For long sequences a tile has some
queries of one head, and causal tiles skip the keys after the last query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Operands,
    Tensor,
    TorchKernel,
    computed_in_f32,
    has_f32_or_f64,
    scratch_tensor,
    torch,
)
from sublet.ir.graph import Node
from sublet.ops.nn.attention import HEADS_FIRST, heads_first_shape, is_positions_first, score_scale
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call

TILE_QUERIES = 128
"""Queries in a tile of a long sequence."""
LONG_SEQUENCE = 256
"""Minimum number of queries of a long sequence, cut into several tiles."""
TILE_SCORES = 1 << 18
"""Scores in a tile with several heads."""
TILE_RESULTS = 1 << 17
"""Elements of a result of a tile with several heads, if positions come first. ATen writes a batch of products with
strides by a call a head, which takes longer than a batch into scratch memory and a copy."""


@dataclass(frozen=True)
class ScoreTile:
    """A tile of the scores: some heads of a sample, some queries, and the first keys."""

    sample: int
    heads: slice
    queries: slice
    keys: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the scores: (heads, queries, keys)."""
        return self.heads.stop - self.heads.start, self.queries.stop - self.queries.start, self.keys

    def queries_of(self, x: Tensor) -> Tensor:
        """Return the queries of the tile in `x` [batch, heads, queries, width]."""
        return x[self.sample, self.heads, self.queries]

    def keys_of(self, x: Tensor) -> Tensor:
        """Return the keys of the tile in `x` [batch, heads, keys, width]."""
        return x[self.sample, self.heads, : self.keys]


def _max_tile_sizes(node: Node, first: int) -> tuple[int, int, int]:
    """Return the maximum numbers of heads, queries and keys in a tile; q is input `first`, k the following input."""
    _, heads, queries, _ = heads_first_shape(operand(node, first), node.attrs)
    keys = heads_first_shape(operand(node, first + 1), node.attrs)[2]
    if queries >= LONG_SEQUENCE:
        return 1, TILE_QUERIES, min(keys, queries) if pick(node.attrs, "causal") else keys
    size = queries * keys
    if is_positions_first(node.attrs):
        size = max(size, TILE_SCORES // TILE_RESULTS * max(_result_sizes(node, first)))
    return min(heads, max(1, TILE_SCORES // size)), queries, keys


def score_tiles(node: Node, first: int) -> Iterator[ScoreTile]:
    """Yield the tiles of a node. No tile crosses samples: operands and mask of a tile are then views, in any layout."""
    batch, heads, queries, _ = heads_first_shape(operand(node, first), node.attrs)
    together, rows, keys = _max_tile_sizes(node, first)
    for sample in range(batch):
        for head in range(0, heads, together):
            span = slice(head, min(heads, head + together))
            for row in range(0, queries, rows):
                last = min(queries, row + rows)
                yield ScoreTile(sample, span, slice(row, last), min(keys, last) if pick(node.attrs, "causal") else keys)


def _result_sizes(node: Node, first: int) -> tuple[int, int, int]:
    """Return the elements of a head of the gradients of q, k and v; y has at most as many as the largest."""
    q, k, v = (heads_first_shape(operand(node, first + i), node.attrs) for i in range(3))
    return q[2] * max(q[3], v[3]), k[2] * k[3], v[2] * v[3]


def _buffer_sizes(node: Node, first: int) -> tuple[int, int]:
    """Return the elements of both buffers of a tile: scores; and results of `nn.attention`, or gradients of scores.

    The buffers of a gradient also hold the results before the copies, see `_is_buffered`.
    """
    heads, queries, keys = _max_tile_sizes(node, first)
    scores, buffered = heads * queries * keys, _is_buffered(node, first)
    if first == 0:
        return scores, heads * queries * heads_first_shape(operand(node, 2), node.attrs)[3] if buffered else 0
    size = max(scores, *(heads * size for size in _result_sizes(node, first))) if buffered else scores
    return size, size


def _is_buffered(node: Node, first: int) -> bool:
    """True if the results of a tile are computed in scratch memory and copied: several heads with positions first."""
    return is_positions_first(node.attrs) and _max_tile_sizes(node, first)[0] > 1


def _max_queries(node: Node, first: int) -> int:
    """Return the maximum number of queries in a tile, over all heads."""
    heads, queries, _ = _max_tile_sizes(node, first)
    return heads * queries


def _triangle_rows(node: Node, first: int) -> int:
    """Return the rows of the square mask forbidding keys after a query; 0 without causal masking."""
    queries = heads_first_shape(operand(node, first), node.attrs)[2]
    return (TILE_QUERIES if queries >= LONG_SEQUENCE else queries) if pick(node.attrs, "causal") else 0


def _heads_first(node: Node, tensors: Operands) -> list[Tensor]:
    """Return views of tensors as [batch, heads, positions, width]."""
    return [x.permute(HEADS_FIRST) if is_positions_first(node.attrs) else x for x in tensors]


class TileScratch:
    """Scratch memory for the scores of a tile: scores, a triangle of -inf, and two numbers for each query."""

    def __init__(self, node: Node, first: int, inputs: Operands, scratch: Tensor) -> None:
        t = torch()
        q, k = self.q, self.k = _heads_first(node, inputs[first : first + 2])
        self.scale = score_scale(node.attrs, q.shape[-1])
        mask = inputs[first + 3] if len(inputs) > first + 3 else None
        self.mask = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
        sizes, rows, side = _buffer_sizes(node, first), _max_queries(node, first), _triangle_rows(node, first)
        numbers = scratch_tensor(scratch, q.dtype, (sum(sizes) + 2 * rows + side * side,))
        *self.buffers, row_numbers, triangle = numbers.split((*sizes, 2 * rows, side * side))
        self.row_buffers = row_numbers.split(rows)
        self.triangle = triangle.view(side, side)
        self.mask_bytes = scratch[numbers.nbytes :]
        self.setup: list[Call] = []
        if side:
            self.setup = [partial(self.triangle.fill_, -inf), partial(t.triu, self.triangle, 1, out=self.triangle)]

    def scores_of(self, piece: ScoreTile, which: int = 0) -> Tensor:
        """Return the scratch tensor for the scores of a tile; `which` is the number of the buffer."""
        a, b, c = piece.shape
        return self.buffers[which][: a * b * c].view(a, b, c)

    def result_for(self, place: Tensor, which: int) -> Tensor:
        """Return a scratch tensor with the shape of `place`, in buffer number `which`."""
        return self.buffers[which][: place.numel()].view(place.shape)

    def row_numbers(self, piece: ScoreTile, which: int) -> Tensor:
        """Return a scratch tensor with a number for each query of a tile; `which` is 0 or 1."""
        a, b, _ = piece.shape
        return self.row_buffers[which][: a * b].view(a, b, 1)

    def compute_scores(self, piece: ScoreTile) -> list[Call]:
        """Return calls computing the scores of a tile, with -inf at positions forbidden by the mask or by causality."""
        t, scores = torch(), self.scores_of(piece)
        q, k = piece.queries_of(self.q), piece.keys_of(self.k)
        calls: list[Call] = [partial(t.baddbmm, scores, q, k.transpose(1, 2), beta=0, alpha=self.scale, out=scores)]
        if self.mask is not None:
            mask = self.mask[piece.sample, piece.heads, piece.queries, : piece.keys]
            if mask.dtype == t.bool:
                floor = scores.new_full((), -inf)
                calls.append(partial(t.where, mask, scores, floor, out=scores))
            else:
                calls.append(partial(scores.add_, mask))
        start = piece.queries.start
        if self.setup and start < piece.keys:
            diagonal = scores[:, :, start:]
            calls.append(partial(diagonal.add_, self.triangle[: piece.shape[1], : piece.keys - start]))
        return calls

    def fully_masked_rows(self, piece: ScoreTile) -> Tensor:
        """Return a scratch tensor of bools: True for a query without any allowed key."""
        a, b, _ = piece.shape
        return self.mask_bytes[: a * b].view(torch().bool).view(a, b, 1)


def _scratch(first: int) -> Callable[[Node], int]:
    def scratch(node: Node) -> int:
        rows, side = _max_queries(node, first), _triangle_rows(node, first)
        bits = spec_of(operand(node, first)).dtype.bits
        return (sum(_buffer_sizes(node, first)) + 2 * rows + side * side) * bits // 8 + rows

    return scratch


def _copies_between(result: Tensor, place: Tensor) -> list[Call]:
    """Return the call copying a result to the place; none if computed in place."""
    return [] if result is place else [partial(place.copy_, result)]


def _attention(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute a softmax per row, and log(sum of exponentials) = highest score - log(highest probability)."""
    t = torch()
    scores, lse, buffered = TileScratch(node, 0, inputs, scratch), outputs[1].unsqueeze(-1), _is_buffered(node, 0)
    v, y = _heads_first(node, (inputs[2], outputs[0]))
    calls = list(scores.setup)
    for piece in score_tiles(node, 0):
        p, top, best = scores.scores_of(piece), scores.row_numbers(piece, 0), scores.row_numbers(piece, 1)
        out, logs = piece.queries_of(y), piece.queries_of(lse)
        product = scores.result_for(out, 1) if buffered else out
        calls += scores.compute_scores(piece)
        calls += [
            partial(t.amax, p, -1, True, out=top),
            partial(t.softmax, p, -1, out=p),
            partial(t.amax, p, -1, True, out=best),
            partial(t.bmm, p, piece.keys_of(v), out=product),
            *_copies_between(product, out),
            partial(best.log_),
            partial(t.sub, top, best, out=logs),
        ]
        if scores.mask is not None:
            nowhere = scores.fully_masked_rows(piece)
            calls += [
                partial(t.eq, top, -inf, out=nowhere),
                partial(out.masked_fill_, nowhere, 0),
                partial(logs.masked_fill_, nowhere, -inf),
            ]
    return calls


def _gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Recompute the probabilities, then four products. dk and dv accumulate over the tiles of a head."""
    t = torch()
    scores, buffered = TileScratch(node, 1, inputs, scratch), _is_buffered(node, 1)
    dy, v, dq, dk, dv = _heads_first(node, (inputs[0], inputs[3], *outputs))
    is_written = buffered and all(piece.keys == dk.shape[2] for piece in score_tiles(node, 1))
    calls: list[Call] = [*scores.setup, *([] if is_written else [partial(dk.zero_), partial(dv.zero_)])]
    for piece in score_tiles(node, 1):
        p, ds, grad = scores.scores_of(piece), scores.scores_of(piece, 1), piece.queries_of(dy)
        places = piece.queries_of(dq), piece.keys_of(dk), piece.keys_of(dv)
        calls += scores.compute_scores(piece)
        if scores.mask is not None:
            nowhere, top = scores.fully_masked_rows(piece), scores.row_numbers(piece, 0)
            calls += [partial(t.amax, p, -1, True, out=top), partial(t.eq, top, -inf, out=nowhere)]
        calls.append(partial(t.softmax, p, -1, out=p))
        if scores.mask is not None:
            calls.append(partial(p.masked_fill_, nowhere, 0))
        # A buffer without scores holds a result. One tile then has all queries, and nothing is added.
        results = [scores.result_for(x, i) if buffered else x for x, i in zip(places, (0, 0, 1), strict=True)]
        to_q, to_k, to_v = results
        copy_q, copy_k, copy_v = map(_copies_between, results, places)
        beta = 0 if buffered else 1
        calls += [
            partial(t.baddbmm, to_v, p.transpose(1, 2), grad, beta=beta, out=to_v),
            *copy_v,
            partial(t.bmm, grad, piece.keys_of(v).transpose(1, 2), out=ds),
            partial(t._softmax_backward_data, ds, p, -1, p.dtype, grad_input=ds),
            partial(
                t.baddbmm, to_k, ds.transpose(1, 2), piece.queries_of(scores.q), beta=beta, alpha=scores.scale, out=to_k
            ),
            *copy_k,
            partial(t.baddbmm, to_q, ds, piece.keys_of(scores.k), beta=0, alpha=scores.scale, out=to_q),
            *copy_q,
        ]
    return calls


KERNELS: Mapping[str, TorchKernel] = {
    "attention": computed_in_f32(TorchKernel(_attention, _scratch(0), has_f32_or_f64)),
    "attention_gradient": computed_in_f32(TorchKernel(_gradient, _scratch(1), has_f32_or_f64)),
}

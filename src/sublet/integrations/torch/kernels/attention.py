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
from sublet.ops.nn.attention import score_scale
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call

TILE_QUERIES = 128
"""Queries in a tile of a long sequence."""
LONG_SEQUENCE = 256
"""Minimum number of queries of a long sequence, cut into several tiles."""
TILE_SCORES = 1 << 18
"""Scores in a tile with several heads."""


@dataclass(frozen=True)
class ScoreTile:
    """A tile of the scores: some heads, counted over the whole batch, some queries, and the first keys."""

    heads: slice
    queries: slice
    keys: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the scores: (heads, queries, keys)."""
        return self.heads.stop - self.heads.start, self.queries.stop - self.queries.start, self.keys


def _max_tile_sizes(node: Node, first: int) -> tuple[int, int, int]:
    """Return the maximum numbers of heads, queries and keys in a tile; q is input `first`, k the following input."""
    _, heads, queries, _ = spec_of(operand(node, first)).shape
    keys = spec_of(operand(node, first + 1)).shape[2]
    if queries >= LONG_SEQUENCE:
        return 1, TILE_QUERIES, min(keys, queries) if pick(node.attrs, "causal") else keys
    return min(heads, max(1, TILE_SCORES // (queries * keys))), queries, keys


def score_tiles(node: Node, first: int) -> Iterator[ScoreTile]:
    """Yield the tiles of a node. No tile crosses samples: the mask of a tile is then a view of the mask."""
    batch, heads, queries, _ = spec_of(operand(node, first)).shape
    together, rows, keys = _max_tile_sizes(node, first)
    for sample in range(batch):
        for head in range(0, heads, together):
            span = slice(sample * heads + head, sample * heads + min(heads, head + together))
            for row in range(0, queries, rows):
                last = min(queries, row + rows)
                yield ScoreTile(span, slice(row, last), min(keys, last) if pick(node.attrs, "causal") else keys)


def _max_scores_and_queries(node: Node, first: int) -> tuple[int, int]:
    """Return the maximum number of scores and of queries in a tile."""
    heads, queries, keys = _max_tile_sizes(node, first)
    return heads * queries * keys, heads * queries


def _triangle_rows(node: Node, first: int) -> int:
    """Return the rows of the square mask forbidding keys after a query; 0 without causal masking."""
    queries = spec_of(operand(node, first)).shape[2]
    return (TILE_QUERIES if queries >= LONG_SEQUENCE else queries) if pick(node.attrs, "causal") else 0


class TileScratch:
    """Scratch memory for the scores of a tile: scores, a triangle of -inf, and two numbers for each query."""

    def __init__(self, node: Node, first: int, inputs: Operands, scratch: Tensor, copies: int) -> None:
        t = torch()
        q, k = inputs[first], inputs[first + 1]
        self.q, self.k = q.flatten(0, 1), k.flatten(0, 1)
        self.scale = score_scale(node.attrs, q.shape[-1])
        self.heads = q.shape[1]
        mask = inputs[first + 3] if len(inputs) > first + 3 else None
        self.mask = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
        scores, rows = _max_scores_and_queries(node, first)
        side = _triangle_rows(node, first)
        numbers = scratch_tensor(scratch, q.dtype, (copies * scores + 2 * rows + side * side,))
        self.score_buffers = [numbers[i * scores : (i + 1) * scores] for i in range(copies)]
        self.row_buffers = [numbers[copies * scores + i * rows :][:rows] for i in range(2)]
        self.triangle = numbers[copies * scores + 2 * rows :].view(side, side)
        self.mask_bytes = scratch[numbers.nbytes :]
        self.setup: list[Call] = []
        if side:
            self.setup = [partial(self.triangle.fill_, -inf), partial(t.triu, self.triangle, 1, out=self.triangle)]

    def scores_of(self, piece: ScoreTile, copy: int = 0) -> Tensor:
        """Return the scratch tensor for the scores of a tile, in copy number `copy`."""
        a, b, c = piece.shape
        return self.score_buffers[copy][: a * b * c].view(a, b, c)

    def row_numbers(self, piece: ScoreTile, which: int) -> Tensor:
        """Return a scratch tensor with a number for each query of a tile; `which` is 0 or 1."""
        a, b, _ = piece.shape
        return self.row_buffers[which][: a * b].view(a, b, 1)

    def compute_scores(self, piece: ScoreTile) -> list[Call]:
        """Return calls computing the scores of a tile, with -inf at positions forbidden by the mask or by causality."""
        t, scores = torch(), self.scores_of(piece)
        q, k = self.q[piece.heads, piece.queries], self.k[piece.heads, : piece.keys]
        calls: list[Call] = [partial(t.baddbmm, scores, q, k.transpose(1, 2), beta=0, alpha=self.scale, out=scores)]
        if self.mask is not None:
            sample, head = divmod(piece.heads.start, self.heads)
            heads = slice(head, head + piece.shape[0])
            mask = self.mask[sample, heads, piece.queries, : piece.keys]
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


def _scratch(first: int, copies: int) -> Callable[[Node], int]:
    def scratch(node: Node) -> int:
        scores, rows = _max_scores_and_queries(node, first)
        side = _triangle_rows(node, first)
        bits = spec_of(operand(node, first)).dtype.bits
        return (copies * scores + 2 * rows + side * side) * bits // 8 + rows

    return scratch


def _attention(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute a softmax per row, and log(sum of exponentials) = highest score - log(highest probability)."""
    t = torch()
    scores, v = TileScratch(node, 0, inputs, scratch, 1), inputs[2].flatten(0, 1)
    y, lse = outputs[0].flatten(0, 1), outputs[1].flatten(0, 1).unsqueeze(-1)
    calls = list(scores.setup)
    for piece in score_tiles(node, 0):
        p, top, best = scores.scores_of(piece), scores.row_numbers(piece, 0), scores.row_numbers(piece, 1)
        out, logs = y[piece.heads, piece.queries], lse[piece.heads, piece.queries]
        calls += scores.compute_scores(piece)
        calls += [
            partial(t.amax, p, -1, True, out=top),
            partial(t.softmax, p, -1, out=p),
            partial(t.amax, p, -1, True, out=best),
            partial(t.bmm, p, v[piece.heads, : piece.keys], out=out),
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
    scores = TileScratch(node, 1, inputs, scratch, 2)
    dy, v = inputs[0].flatten(0, 1), inputs[3].flatten(0, 1)
    dq, dk, dv = (out.flatten(0, 1) for out in outputs)
    calls: list[Call] = [*scores.setup, partial(dk.zero_), partial(dv.zero_)]
    for piece in score_tiles(node, 1):
        p, ds, grad = scores.scores_of(piece), scores.scores_of(piece, 1), dy[piece.heads, piece.queries]
        keys = (piece.heads, slice(0, piece.keys))
        q, rows = scores.q[piece.heads, piece.queries], dq[piece.heads, piece.queries]
        calls += scores.compute_scores(piece)
        if scores.mask is not None:
            nowhere, top = scores.fully_masked_rows(piece), scores.row_numbers(piece, 0)
            calls += [partial(t.amax, p, -1, True, out=top), partial(t.eq, top, -inf, out=nowhere)]
        calls.append(partial(t.softmax, p, -1, out=p))
        if scores.mask is not None:
            calls.append(partial(p.masked_fill_, nowhere, 0))
        calls += [
            partial(t.baddbmm, dv[keys], p.transpose(1, 2), grad, out=dv[keys]),
            partial(t.bmm, grad, v[keys].transpose(1, 2), out=ds),
            partial(t._softmax_backward_data, ds, p, -1, p.dtype, grad_input=ds),
            partial(t.baddbmm, dk[keys], ds.transpose(1, 2), q, alpha=scores.scale, out=dk[keys]),
            partial(t.baddbmm, rows, ds, scores.k[keys], beta=0, alpha=scores.scale, out=rows),
        ]
    return calls


KERNELS: Mapping[str, TorchKernel] = {
    "attention": computed_in_f32(TorchKernel(_attention, _scratch(0, 1), has_f32_or_f64)),
    "attention_gradient": computed_in_f32(TorchKernel(_gradient, _scratch(1, 2), has_f32_or_f64)),
}

"""Accumulation of gradients, over a whole value or over boxes of a value read as slices.

Each contribution covers a box of the value. Where boxes tile the value, a concatenation joins the gradients, and the
planner can compute the operands in place, at no cost. Zeros fill only the positions covered by no box, and additions
are emitted only where boxes overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import command
from sublet.ops.nn.command import PREFIX, spec_of

Box = tuple[tuple[int, int], ...]
"""For each axis the first index and the index after the last."""

Piece = tuple[Box, Value]
"""A box, and the gradient of the part in the box."""


def full_box_of(spec: TensorSpec) -> Box:
    """Return the box covering a whole tensor."""
    return tuple((0, extent) for extent in spec.shape)


class Contributions:
    """The gradients accumulated so far, by value and box, during the backward walk.

    A second contribution to the same box is added immediately, to keep few gradients alive.
    """

    def __init__(self) -> None:
        self._pieces: dict[Value, dict[Box, Value]] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._pieces

    def add(self, emit: Emitter, value: Value, grad: Value, box: Box | None = None) -> None:
        """Add `grad` to the gradient of `value`, or to the gradient of the part of `value` in `box`."""
        whole = full_box_of(value.spec) if isinstance(value.spec, TensorSpec) else ()
        pieces = self._pieces.setdefault(value, {})
        box = whole if box is None else box
        pieces[box] = _emit_sum(emit, pieces[box], grad) if box in pieces else grad

    def set_total(self, value: Value, grad: Value) -> None:
        """Replace all contributions to `value` by `grad`, a gradient already containing the earlier contributions."""
        self._pieces[value] = {full_box_of(value.spec) if isinstance(value.spec, TensorSpec) else (): grad}

    def total(self, emit: Emitter, value: Value | None) -> Value | None:
        """Return the gradient of a value, or None for zero. Afterwards the contributions of the value are one piece."""
        if value is None or value not in self._pieces:
            return None
        if isinstance(value.spec, TensorSpec):
            whole = full_box_of(value.spec)
            self._pieces[value] = {whole: _sum_over_box(emit, list(self._pieces[value].items()), whole)}
        (grad,) = self._pieces[value].values()
        return grad


def _emit_sum(emit: Emitter, a: Value, b: Value) -> Value:
    if isinstance(a.spec, TensorSpec) and isinstance(b.spec, TensorSpec):
        return emit("nn.add", a, b)
    name = emit.names.fresh(f"{emit.scope}add")  # rows outside the plan: both have the same run-time number of rows
    result = Value(name, a.spec)
    emit.nodes.append(
        Node(name, f"{PREFIX}add", (a, b), (result,), command("nn.add").complete_attributes({}), emit.source)
    )
    return result


def _sum_over_box(emit: Emitter, pieces: Sequence[Piece], region: Box) -> Value:
    """Return the sum of `pieces` over `region`: at least one piece, all inside the region."""
    axis = next((i for i in range(len(region)) if any(box[i] != region[i] for box, _ in pieces)), None)
    if axis is None:
        total = pieces[0][1]
        for _, grad in pieces[1:]:
            total = emit("nn.add", total, grad)
        return total
    edges = {region[axis][0], region[axis][1]} | {edge for box, _ in pieces for edge in box[axis]}
    cuts = sorted(edges)
    lanes = []
    for begin, end in pairwise(cuts):
        lane = (*region[:axis], (begin, end), *region[axis + 1 :])
        inside = [
            _restrict_piece(emit, piece, axis, begin, end) for piece in pieces if _covers_span(piece, axis, begin, end)
        ]
        lanes.append(_sum_over_box(emit, inside, lane) if inside else _emit_zeros(emit, pieces[0][1], lane))
    return lanes[0] if len(lanes) == 1 else emit("nn.concat", *lanes, axis=axis)


def _covers_span(piece: Piece, axis: int, begin: int, end: int) -> bool:
    """True if the piece covers the indices from `begin` to `end` of the axis."""
    low, high = piece[0][axis]
    return low <= begin and end <= high and low < high


def _restrict_piece(emit: Emitter, piece: Piece, axis: int, begin: int, end: int) -> Piece:
    """Return the part of a piece with the indices from `begin` to `end` of the axis."""
    box, grad = piece
    inner = (*box[:axis], (begin, end), *box[axis + 1 :])
    relative = tuple((b - low, e - low) for (b, e), (low, _) in zip(inner, box, strict=True))
    return inner, slice_box(emit, grad, relative)


def _emit_zeros(emit: Emitter, like: Value, box: Box) -> Value:
    return emit.full(0, TensorSpec(spec_of(like).dtype, tuple(end - begin for begin, end in box)))


def slice_box(emit: Emitter, value: Value, box: Box) -> Value:
    """Return the part of a value in a box: a slice, or the value if the box covers the whole value."""
    if box == full_box_of(spec_of(value)):
        return value
    starts, ends = tuple(begin for begin, _ in box), tuple(end for _, end in box)
    return emit("nn.slice", value, starts=starts, ends=ends, steps=(1,) * len(box))

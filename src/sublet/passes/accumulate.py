"""Gradients add up: whole ones, and those of parts of a value that were read as slices.

A contribution is to a box of the value. Where boxes tile the value their gradients are joined by a concatenation,
which costs nothing when the planner writes them in place; only what no box covers is filled with zeros, and only
where boxes overlap is something added.
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
"""Along each axis the first index and the one after the last."""

Piece = tuple[Box, Value]


def box_of(spec: TensorSpec) -> Box:
    """All of a tensor."""
    return tuple((0, extent) for extent in spec.shape)


class Contributions:
    """Gradients by the value they are of, as the walk back finds them.

    A contribution to the same box as an earlier one is added at once, so that few are alive.
    """

    def __init__(self) -> None:
        self._pieces: dict[Value, dict[Box, Value]] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._pieces

    def add(self, emit: Emitter, value: Value, grad: Value, box: Box | None = None) -> None:
        """`grad` is one more part of the gradient of `value`, or of the part of it that `box` says."""
        whole = box_of(value.spec) if isinstance(value.spec, TensorSpec) else ()
        pieces = self._pieces.setdefault(value, {})
        box = whole if box is None else box
        pieces[box] = _sum(emit, pieces[box], grad) if box in pieces else grad

    def put(self, value: Value, grad: Value) -> None:
        """Let `grad` be all that has been found of a value: what was there is in it."""
        self._pieces[value] = {box_of(value.spec) if isinstance(value.spec, TensorSpec) else (): grad}

    def total(self, emit: Emitter, value: Value | None) -> Value | None:
        """The gradient of a value, None for zero; from then on it is one piece."""
        if value is None or value not in self._pieces:
            return None
        if isinstance(value.spec, TensorSpec):
            whole = box_of(value.spec)
            self._pieces[value] = {whole: _joined(emit, list(self._pieces[value].items()), whole)}
        (grad,) = self._pieces[value].values()
        return grad


def _sum(emit: Emitter, a: Value, b: Value) -> Value:
    if isinstance(a.spec, TensorSpec) and isinstance(b.spec, TensorSpec):
        return emit("nn.add", a, b)
    name = emit.names.fresh(f"{emit.scope}add")  # rows outside the plan, as many in one as in the other
    result = Value(name, a.spec)
    emit.nodes.append(Node(name, f"{PREFIX}add", (a, b), (result,), command("nn.add").completed({}), emit.source))
    return result


def _joined(emit: Emitter, pieces: Sequence[Piece], region: Box) -> Value:
    """The sum of pieces, all inside `region` and at least one, over the region."""
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
        inside = [_cut(emit, piece, axis, begin, end) for piece in pieces if _covers(piece, axis, begin, end)]
        lanes.append(_joined(emit, inside, lane) if inside else _zeros(emit, pieces[0][1], lane))
    return lanes[0] if len(lanes) == 1 else emit("nn.concat", *lanes, axis=axis)


def _covers(piece: Piece, axis: int, begin: int, end: int) -> bool:
    low, high = piece[0][axis]
    return low <= begin and end <= high and low < high


def _cut(emit: Emitter, piece: Piece, axis: int, begin: int, end: int) -> Piece:
    box, grad = piece
    inner = (*box[:axis], (begin, end), *box[axis + 1 :])
    relative = tuple((b - low, e - low) for (b, e), (low, _) in zip(inner, box, strict=True))
    return inner, part_of(emit, grad, relative)


def _zeros(emit: Emitter, like: Value, box: Box) -> Value:
    return emit.filled(0, TensorSpec(spec_of(like).dtype, tuple(end - begin for begin, end in box)))


def part_of(emit: Emitter, value: Value, box: Box) -> Value:
    """The part of a value in a box; the value itself when the box is all of it."""
    if box == box_of(spec_of(value)):
        return value
    starts, ends = tuple(begin for begin, _ in box), tuple(end for _, end in box)
    return emit("nn.slice", value, starts=starts, ends=ends, steps=(1,) * len(box))

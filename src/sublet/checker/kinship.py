"""Why placements are the same bytes on purpose, as the facts of ops and control flow show it.

A tie says that a placement lies where an op or a move allows it to lie in the bytes of another: a view in its base,
a part in its concatenation, an output over an input, both ends of a move in one place, a slice or row in its whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.base.tensor import TensorSpec
from sublet.checker.contents import facts
from sublet.checker.walk import Visit, Walk
from sublet.ir.graph import Node, Value, While
from sublet.ops.op import Share
from sublet.plan import Placement, Region, Stride

Ties = dict[tuple[str, int, int], set[str]]
"""(how, placement, other): the names under which the other is known where it is tied."""


def ties(walk: Walk) -> Ties:
    """All ties of a plan."""
    found: Ties = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    heads: dict[tuple[str, object, str], set[int]] = {}
    for visit in walk.visits:
        moment = walk.moment(visit)
        if moment.kind in ("enter", "next"):
            _note_heads(walk, visit, heads)
        if (key := (visit.point, visit.reads, visit.writes)) in seen:
            continue
        seen.add(key)
        for how, one, other, names in _ties_of(walk, visit):
            found.setdefault((how, one, other), set()).update(names)
    for several in heads.values():
        for one in several:
            for other in several - {one}:
                if lies_at(walk.place(one), walk.place(other), 0):
                    found.setdefault(("carry", one, other), set()).add(walk.place(other).value)
    return found


def lies_at(place: Placement, base: Placement, distance: int) -> bool:
    """Whether a placement begins so many bytes after another, in every round."""
    one, other = place.region, base.region
    return (one.storage, place.strides) == (other.storage, base.strides) and one.offset == other.offset + distance


def is_step(part: Placement, whole: Placement, value: Value, loop: str, axis: int, backwards: bool) -> bool:
    """Whether a placement is the step of a round in the placement of a whole."""
    if not isinstance(value.spec, TensorSpec):
        return False
    extent = value.spec.shape[axis]
    if any(other != 1 for other in value.spec.shape[:axis]) or not extent or value.nbytes % extent:
        return False
    step = value.nbytes // extent
    start = whole.region.offset + (value.nbytes - step if backwards else 0)
    strides = (*whole.strides, Stride(loop, step, backwards))
    return part.strides == strides and part.region == Region(whole.region.storage, start, step)


Found = Iterator[tuple[str, int, int, set[str]]]


def _ties_of(walk: Walk, visit: Visit) -> Found:
    moment = walk.moment(visit)
    if moment.kind == "run" and moment.node is not None:
        yield from _of_op(walk, visit, moment.node)
    for source, to in moment.moves:
        one, other = walk.placement(source, visit), walk.placement(to, visit)
        if one is not None and other is not None and lies_at(walk.place(one), walk.place(other), 0):
            yield "carry", other, one, {source.name, walk.place(one).value}
            yield "carry", one, other, {to.name}
    for how, part, whole, axis, backwards in steps(moment.kind, moment.node):
        one, other = walk.placement(part, visit), walk.placement(whole, visit)
        if one is None or other is None or not isinstance(moment.node, While):
            continue
        if is_step(walk.place(one), walk.place(other), whole, moment.node.name, axis, backwards):
            yield how, one, other, {whole.name, walk.place(other).value}


def steps(kind: str, node: Node | None) -> Iterator[tuple[str, Value, Value, int, bool]]:
    """The slices fetched, or rows stored, at a point: (how, part, whole, axis, whether from the far end)."""
    if isinstance(node, While) and kind == "fetch":
        for details in zip(node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True):
            yield "slice", *details
    if isinstance(node, While) and kind == "next":
        for part, whole, axis, backwards in zip(node.rows, node.stacked, node.row_axes, node.row_reversed, strict=True):
            if whole is not None:
                yield "row", part, whole, axis, backwards


def _of_op(walk: Walk, visit: Visit, node: Node) -> Found:
    op = facts(node)

    def pairs(shares: tuple[Share, ...]) -> Iterator[tuple[Share, int, int]]:
        for share in shares:
            output, source = node.outputs[share.output], node.inputs[share.input]
            if output is not None and source is not None:
                one, other = walk.placement(output, visit), walk.placement(source, visit)
                if one is not None and other is not None:
                    yield share, one, other

    for how, shares in (("view", op.views(node)), ("inplace", op.inplace(node))):
        for share, output, source in pairs(shares):
            if lies_at(walk.place(output), walk.place(source), share.offset):
                name = node.inputs[share.input]
                yield how, output, source, {walk.place(source).value, name.name if name else ""}
    for share, output, source in pairs(op.parts(node)):
        if lies_at(walk.place(source), walk.place(output), share.offset):
            yield "part", source, output, {walk.place(output).value}


def _note_heads(walk: Walk, visit: Visit, heads: dict[tuple[str, object, str], set[int]]) -> None:
    """What pointer parameters will stand for when a round begins: in another copy they may stand for something else."""
    moment = walk.moment(visit)
    around = moment.context if moment.kind == "enter" else moment.context[:-1]
    for source, pointer in moment.pointed:
        if moment.node is not None and (number := walk.placement(source, visit)) is not None:
            heads.setdefault((moment.node.name, around, pointer.name), set()).add(number)


class Kin:
    """Which things are one: joined in pairs."""

    def __init__(self) -> None:
        self._leader: dict[int, int] = {}

    def of(self, one: int) -> int:
        """The one that stands for all of its group."""
        while (above := self._leader.get(one, one)) != one:
            self._leader[one] = self._leader.get(above, above)
            one = above
        return one

    def join(self, one: int, other: int) -> None:
        """Let two groups be one."""
        self._leader[self.of(one)] = self.of(other)

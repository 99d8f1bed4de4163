"""Reasons for placements to share bytes, derived from the facts of ops and from control flow.

A reason relates two placements where an op or a move allows sharing, and the regions match: a view in its base, a part
in its concatenation, an output over an input, both ends of a move at one place, a slice or row in its sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from sublet.base.tensor import TensorSpec
from sublet.checker.contents import op_facts
from sublet.checker.state_space import PointState, StateSpace
from sublet.ir.graph import Node, Value, While
from sublet.ops.op import Share, row_form
from sublet.plan import Placement, Region, Stride

SharingReasons = dict[tuple[str, int, int], set[str]]
"""(how, placement, other): the possible names of `other` in `Placement.shares`."""


def sharing_reasons(walk: StateSpace) -> SharingReasons:
    """Return all sharing reasons of a plan."""
    reasons: SharingReasons = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    heads: dict[tuple[str, object, str], set[int]] = {}
    for visit in walk.visits:
        moment = walk.moment_of(visit)
        if moment.kind in ("enter", "next"):
            _record_entry_placements(walk, visit, heads)
        if (key := (visit.point, visit.reads, visit.writes)) in seen:
            continue
        seen.add(key)
        for how, one, other, names in _reasons_at(walk, visit):
            reasons.setdefault((how, one, other), set()).update(names)
    for numbers in heads.values():
        by_address: dict[object, list[int]] = {}
        for number in numbers:
            place = walk.placement_by_number(number)
            by_address.setdefault((place.region, place.strides), []).append(number)
        for one, other in (pair for alike in by_address.values() for pair in permutations(alike, 2)):
            reasons.setdefault(("carry", one, other), set()).add(walk.placement_by_number(other).value)
    return reasons


def is_at_distance(place: Placement, base: Placement, distance: int) -> bool:
    """True if a placement begins `distance` bytes after `base`, in every iteration."""
    one, other = place.region, base.region
    if (one.rows, one.pitch) != (other.rows, other.pitch):
        return False
    return (one.storage, place.strides) == (other.storage, base.strides) and one.offset == other.offset + distance


def are_rows_at_distance(place: Placement, base: Placement, rows: int, distance: int) -> bool:
    """True if each of `rows` rows of a placement begins `distance` bytes after the same row of `base`."""
    if place.strides or base.strides:
        return False
    pairs = [(place.region.row(i, rows), base.region.row(i, rows)) for i in (0, 1)]
    return all(one.storage == other.storage and one.offset == other.offset + distance for one, other in pairs)


def is_slice_of(part: Placement, whole: Placement, value: Value, loop: str, axis: int, backwards: bool) -> bool:
    """True if a placement is the current slice of the placement of a sequence."""
    if not isinstance(value.spec, TensorSpec):
        return False
    extent = value.spec.shape[axis]
    if any(other != 1 for other in value.spec.shape[:axis]) or not extent or value.nbytes % extent:
        return False
    step = value.nbytes // extent
    start = whole.region.offset + (value.nbytes - step if backwards else 0)
    strides = (*whole.strides, Stride(loop, step, backwards))
    return part.strides == strides and part.region == Region(whole.region.storage, start, step)


ReasonEntries = Iterator[tuple[str, int, int, set[str]]]


def _reasons_at(walk: StateSpace, visit: PointState) -> ReasonEntries:
    """Yield the sharing reasons at one point state."""
    moment = walk.moment_of(visit)
    if moment.kind == "run" and moment.node is not None:
        yield from _reasons_of_op(walk, visit, moment.node)
    for source, to in moment.moves:
        one, other = walk.placement_of(source, visit), walk.placement_of(to, visit)
        if (
            one is not None
            and other is not None
            and is_at_distance(walk.placement_by_number(one), walk.placement_by_number(other), 0)
        ):
            yield "carry", other, one, {source.name, walk.placement_by_number(one).value}
            yield "carry", one, other, {to.name}
    for how, part, whole, axis, backwards in slices_and_rows_at(moment.kind, moment.node):
        one, other = walk.placement_of(part, visit), walk.placement_of(whole, visit)
        if one is None or other is None or not isinstance(moment.node, While):
            continue
        if is_slice_of(
            walk.placement_by_number(one), walk.placement_by_number(other), whole, moment.node.name, axis, backwards
        ):
            yield how, one, other, {whole.name, walk.placement_by_number(other).value}


def slices_and_rows_at(kind: str, node: Node | None) -> Iterator[tuple[str, Value, Value, int, bool]]:
    """Yield the slices fetched or rows stored at a point, as (how, part, whole, axis, reversed)."""
    if isinstance(node, While) and kind == "fetch":
        for details in zip(node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True):
            yield "slice", *details
    if isinstance(node, While) and kind == "next":
        for part, whole, axis, backwards in zip(
            node.rows, node.stacked_outputs, node.row_axes, node.row_reversed, strict=True
        ):
            if whole is not None:
                yield "row", part, whole, axis, backwards


def _reasons_of_op(walk: StateSpace, visit: PointState, node: Node) -> ReasonEntries:
    """Yield the sharing reasons of an op: views, in-place outputs, and parts of concatenations."""
    op = op_facts(node)

    def pairs(shares: tuple[Share, ...]) -> Iterator[tuple[Share, int, int]]:
        for share in shares:
            output, source = node.outputs[share.output], node.inputs[share.input]
            if output is not None and source is not None:
                one, other = walk.placement_of(output, visit), walk.placement_of(source, visit)
                if one is not None and other is not None:
                    yield share, one, other

    for how, shares in (("view", op.views(node)), ("inplace", op.inplace(node))):
        for share, output, source in pairs(shares):
            if is_at_distance(walk.placement_by_number(output), walk.placement_by_number(source), share.offset):
                name = node.inputs[share.input]
                yield how, output, source, {walk.placement_by_number(source).value, name.name if name else ""}
    for share, output, source in pairs(op.parts(node)):
        if is_at_distance(walk.placement_by_number(source), walk.placement_by_number(output), share.offset):
            yield "part", source, output, {walk.placement_by_number(output).value}
    numbers = [walk.placement_of(value, visit) for value in (*node.uses, *node.defs)]
    if all(number is None or walk.placement_by_number(number).region.rows == 1 for number in numbers):
        return
    if (form := row_form(node)) is None:
        return
    for how, shares in (("view", op.views(form.node)), ("part", op.parts(form.node))):
        for share, output, source in pairs(tuple(share for share in shares if share.input in form.inputs)):
            one, other = (output, source) if how == "view" else (source, output)
            part, whole = walk.placement_by_number(one), walk.placement_by_number(other)
            if are_rows_at_distance(part, whole, form.count, share.offset):
                value = node.inputs[share.input] if how == "view" else None
                yield how, one, other, {whole.value, value.name if value else whole.value}


def _record_entry_placements(
    walk: StateSpace, visit: PointState, heads: dict[tuple[str, object, str], set[int]]
) -> None:
    """Record the placements bound to each pointer parameter at the starts of iterations.

    Two placements bound to one parameter at the same address share bytes as a coalesced carry.
    """
    moment = walk.moment_of(visit)
    around = moment.context if moment.kind == "enter" else moment.context[:-1]
    for source, pointer in moment.pointed:
        if moment.node is not None and (number := walk.placement_of(source, visit)) is not None:
            heads.setdefault((moment.node.name, around, pointer.name), set()).add(number)


class PlacementSets:
    """A union-find over placement numbers, with path splitting."""

    def __init__(self) -> None:
        self._leader: dict[int, int] = {}

    def find_set(self, one: int) -> int:
        """Return the representative of a set."""
        while (above := self._leader.get(one, one)) != one:
            self._leader[one] = self._leader.get(above, above)
            one = above
        return one

    def merge_sets(self, one: int, other: int) -> None:
        """Merge two sets."""
        self._leader[self.find_set(one)] = self.find_set(other)

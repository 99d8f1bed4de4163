"""Coalescing of arena variables: an output takes the place of an input, a copy takes the place of its source.

Coalesced variables form a class. A class is a single buffer, live at every point where any of its variables is live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from sublet.analysis.liveness import LiveRanges
from sublet.base.ranges import Ranges, merge, overlap
from sublet.frontends.paddle.arena.placeable import facts_at
from sublet.frontends.paddle.format.program import PaddleOp, PaddleProgram
from sublet.frontends.paddle.lives.control_flow import PaddleFlow
from sublet.frontends.paddle.lives.scopes import ScopedVariable
from sublet.frontends.paddle.operators.shapes import VariableSizes

Pair = tuple[ScopedVariable, ScopedVariable]


class CoalescingClasses:
    """Classes of coalesced variables, joined pair by pair.

    At a point, a variable may be defined where another variable has its last use only if the operator is in-place for
    the pair. `allowed` has the in-place pairs of each point. The operator facts hold for a single pair at a time, so
    each point uses at most one pair.
    """

    def __init__(
        self,
        lives: LiveRanges[ScopedVariable],
        sizes: Mapping[ScopedVariable, int],
        allowed: Mapping[int, tuple[Pair, ...]],
    ) -> None:
        self.sizes = sizes
        self.allowed = allowed
        self.used_pairs: dict[int, Pair] = {}
        self.own_ranges: dict[ScopedVariable, Ranges] = {place: lives.slot_ranges.get(place, ()) for place in sizes}
        self.class_ranges = dict(self.own_ranges)
        self.members: dict[ScopedVariable, list[ScopedVariable]] = {place: [place] for place in sizes}
        self.class_of: dict[ScopedVariable, ScopedVariable] = {place: place for place in sizes}

    def are_coalesced(self, one: ScopedVariable, other: ScopedVariable) -> bool:
        """Return True if both variables are in the same class."""
        return one in self.class_of and other in self.class_of and self.class_of[one] == self.class_of[other]

    def join(self, one: ScopedVariable, other: ScopedVariable) -> None:
        """Join the classes of two variables, if legal.

        The join is illegal if the sizes differ, if the live ranges overlap, or if a last use of a variable meets a
        definition of another at a point without the matching in-place pair.
        """
        first, second = self.class_of[one], self.class_of[other]
        if first == second or self.sizes[one] != self.sizes[other]:
            return
        if overlap(self.class_ranges[first], self.class_ranges[second]):
            return
        met = [*self._pairs_in_contact(first, second), *self._pairs_in_contact(second, first)]
        if all(pair in self.allowed.get(at, ()) and self.used_pairs.get(at, pair) == pair for at, pair in met):
            self.used_pairs.update(met)
            self._unite(first, second)

    def join_copy(self, source: ScopedVariable, copy: ScopedVariable) -> None:
        """Join a copy with the source even if both are live, if legal.

        The join is illegal if the sizes differ, if the source is written during the copy's live range, or if the live
        ranges of any two further members overlap.
        """
        first, second = self.class_of[source], self.class_of[copy]
        if first == second or self.sizes[source] != self.sizes[copy]:
            return
        if any(
            begin % 2 and overlap(((begin, begin + 1),), self.own_ranges[copy]) for begin, _ in self.own_ranges[source]
        ):
            return
        for one, other in product(self.members[first], self.members[second]):
            if (one, other) != (source, copy) and overlap(
                _widen_to_points(self.own_ranges[one]), _widen_to_points(self.own_ranges[other])
            ):
                return
        self._unite(first, second)

    def _pairs_in_contact(self, ending: ScopedVariable, beginning: ScopedVariable) -> Iterator[tuple[int, Pair]]:
        """Yield each point with a last use in class `ending` and a definition in class `beginning`, and both."""
        begins: dict[int, list[ScopedVariable]] = {}
        for member in self.members[beginning]:
            for begin, _ in self.own_ranges[member]:
                begins.setdefault(begin, []).append(member)
        for member in self.members[ending]:
            for _, end in self.own_ranges[member]:
                for other in begins.get(end, ()) if end % 2 else ():
                    yield end // 2, (member, other)

    def _unite(self, first: ScopedVariable, second: ScopedVariable) -> None:
        """Merge two classes into the larger class."""
        if len(self.members[first]) < len(self.members[second]):
            first, second = second, first
        for member in self.members[second]:
            self.class_of[member] = first
        self.members[first] += self.members.pop(second)
        self.class_ranges[first] = merge((*self.class_ranges[first], *self.class_ranges.pop(second)))


def _widen_to_points(halves: Ranges) -> Ranges:
    """Return ranges of read and write slots, widened to whole points."""
    return merge((begin // 2 * 2, (end + 1) // 2 * 2) for begin, end in halves)


def coalesce_variables(
    program: PaddleProgram,
    flow: PaddleFlow,
    lives: LiveRanges[ScopedVariable],
    sizes: VariableSizes,
    nbytes: Mapping[ScopedVariable, int],
) -> tuple[CoalescingClasses, dict[ScopedVariable, str]]:
    """Return the classes of the variables in `nbytes`, and the variables that must leave the arena, with reasons.

    A variable must leave if an operator compares only allocations: in an arena such an operator takes any place of its
    inputs for an in-place output.
    """
    points = {  # a block that is never run has no points
        flow.point_of_operator[block.index, index]: (block.index, op)
        for block in program.blocks
        for index, op in enumerate(block.ops)
        if (block.index, index) in flow.point_of_operator
    }
    allowed = {at: tuple(_inplace_pairs(flow, *where, sizes, nbytes)) for at, where in sorted(points.items())}
    classes = CoalescingClasses(lives, nbytes, allowed)
    for pairs in allowed.values():
        for one, other in pairs:
            classes.join(one, other)
    excluded: dict[ScopedVariable, str] = {}
    for at, (block, op) in sorted(points.items()):
        if facts_at(block, op, sizes).holder:
            for source, copy in _copy_pairs(flow, block, op, sizes, nbytes):
                classes.join_copy(source, copy)
            for place in _outputs_beside_inputs(flow, block, op, classes, allowed[at]):
                excluded[place] = f"{op.type} treats an output in the allocation of an input as a view of the input"
    return classes, excluded


def _inplace_pairs(
    flow: PaddleFlow, block: int, op: PaddleOp, sizes: VariableSizes, found: Mapping[ScopedVariable, int]
) -> Iterator[Pair]:
    """Yield the (input, output) pairs for which the operator is known to be in-place."""
    facts = facts_at(block, op, sizes)
    for source, target in sorted(facts.placed | facts.placed_first):
        names = op.inputs.get(source, ())
        for name in names if (source, target) in facts.placed else names[:1]:
            for out in op.outputs.get(target, ()):
                pair = flow.scopes.resolve(block, name), flow.scopes.resolve(block, out)
                if op.reads.count(name) == 1 and pair[0] != pair[1] and all(place in found for place in pair):
                    yield pair


def _copy_pairs(
    flow: PaddleFlow, block: int, op: PaddleOp, sizes: VariableSizes, found: Mapping[ScopedVariable, int]
) -> Iterator[Pair]:
    """Yield the in-place pairs with an output equal to the input."""
    equal = facts_at(block, op, sizes).equal
    return (
        pair
        for pair in _inplace_pairs(flow, block, op, sizes, found)
        if any(
            pair == (flow.scopes.resolve(block, name), flow.scopes.resolve(block, out))
            for source, target in equal
            for name in op.inputs.get(source, ())
            for out in op.outputs.get(target, ())
        )
    )


def _outputs_beside_inputs(
    flow: PaddleFlow, block: int, op: PaddleOp, classes: CoalescingClasses, allowed: tuple[Pair, ...]
) -> Iterator[ScopedVariable]:
    """Yield the outputs in the arena, beside an input in the arena, that are not coalesced with an allowed input."""
    beside = any(flow.scopes.resolve(block, name) in classes.class_of for name in op.reads)
    for name in op.writes:
        out = flow.scopes.resolve(block, name)
        on = any(other == out and classes.are_coalesced(one, out) for one, other in allowed)
        if beside and out in classes.class_of and not on:
            yield out

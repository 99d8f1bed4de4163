"""Coalescing of arena variables: an output takes the place of an input, a copy takes the place of its source.

Coalesced variables form a class. A class is a single buffer, live at every point where any of its variables is live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from sublet.analysis.liveness import LiveRanges
from sublet.base.ranges import Ranges, merge, overlap
from sublet.frontends.paddle.arena.placeable import facts_at
from sublet.frontends.paddle.format.program import Op, Program
from sublet.frontends.paddle.lives.flow import Flow
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.shapes import Sizes

Pair = tuple[Place, Place]


class Classes:
    """Classes of coalesced variables, joined pair by pair.

    At a point, a variable may be defined where another variable has its last use only if the operator is in-place for
    the pair. `allowed` has the in-place pairs of each point. The operator facts hold for a single pair at a time, so
    each point uses at most one pair.
    """

    def __init__(
        self, lives: LiveRanges[Place], sizes: Mapping[Place, int], allowed: Mapping[int, tuple[Pair, ...]]
    ) -> None:
        self.sizes = sizes
        self.allowed = allowed
        self.taken: dict[int, Pair] = {}
        self.own: dict[Place, Ranges] = {place: lives.halves.get(place, ()) for place in sizes}
        self.halves = dict(self.own)
        self.members: dict[Place, list[Place]] = {place: [place] for place in sizes}
        self.head: dict[Place, Place] = {place: place for place in sizes}

    def same(self, one: Place, other: Place) -> bool:
        """Return True if both variables are in the same class."""
        return one in self.head and other in self.head and self.head[one] == self.head[other]

    def join(self, one: Place, other: Place) -> None:
        """Join the classes of two variables, if legal.

        The join is illegal if the sizes differ, if the live ranges overlap, or if a last use of a variable meets a
        definition of another at a point without the matching in-place pair.
        """
        first, second = self.head[one], self.head[other]
        if first == second or self.sizes[one] != self.sizes[other]:
            return
        if overlap(self.halves[first], self.halves[second]):
            return
        met = [*self._met(first, second), *self._met(second, first)]
        if all(pair in self.allowed.get(at, ()) and self.taken.get(at, pair) == pair for at, pair in met):
            self.taken.update(met)
            self._unite(first, second)

    def join_copy(self, source: Place, copy: Place) -> None:
        """Join a copy with the source even if both are live, if legal.

        The join is illegal if the sizes differ, if the source is written during the copy's live range, or if the live
        ranges of any two further members overlap.
        """
        first, second = self.head[source], self.head[copy]
        if first == second or self.sizes[source] != self.sizes[copy]:
            return
        if any(begin % 2 and overlap(((begin, begin + 1),), self.own[copy]) for begin, _ in self.own[source]):
            return
        for one, other in product(self.members[first], self.members[second]):
            if (one, other) != (source, copy) and overlap(_whole(self.own[one]), _whole(self.own[other])):
                return
        self._unite(first, second)

    def _met(self, ending: Place, beginning: Place) -> Iterator[tuple[int, Pair]]:
        """Yield each point with a last use in class `ending` and a definition in class `beginning`, and both."""
        begins: dict[int, list[Place]] = {}
        for member in self.members[beginning]:
            for begin, _ in self.own[member]:
                begins.setdefault(begin, []).append(member)
        for member in self.members[ending]:
            for _, end in self.own[member]:
                for other in begins.get(end, ()) if end % 2 else ():
                    yield end // 2, (member, other)

    def _unite(self, first: Place, second: Place) -> None:
        """Merge two classes into the larger class."""
        if len(self.members[first]) < len(self.members[second]):
            first, second = second, first
        for member in self.members[second]:
            self.head[member] = first
        self.members[first] += self.members.pop(second)
        self.halves[first] = merge((*self.halves[first], *self.halves.pop(second)))


def _whole(halves: Ranges) -> Ranges:
    """Return ranges of read and write slots, widened to whole points."""
    return merge((begin // 2 * 2, (end + 1) // 2 * 2) for begin, end in halves)


def shared(
    program: Program, flow: Flow, lives: LiveRanges[Place], sizes: Sizes, found: Mapping[Place, int]
) -> tuple[Classes, dict[Place, str]]:
    """Return the classes of the variables in `found`, and the variables that must leave the arena, with reasons.

    A variable must leave if an operator compares only allocations: in an arena such an operator takes any place of its
    inputs for an in-place output.
    """
    points = {  # a block that is never run has no points
        flow.at[block.index, index]: (block.index, op)
        for block in program.blocks
        for index, op in enumerate(block.ops)
        if (block.index, index) in flow.at
    }
    allowed = {at: tuple(_pairs(flow, *where, sizes, found)) for at, where in sorted(points.items())}
    classes = Classes(lives, found, allowed)
    for pairs in allowed.values():
        for one, other in pairs:
            classes.join(one, other)
    left: dict[Place, str] = {}
    for at, (block, op) in sorted(points.items()):
        if facts_at(block, op, sizes).holder:
            for source, copy in _copies(flow, block, op, sizes, found):
                classes.join_copy(source, copy)
            for place in _misplaced(flow, block, op, classes, allowed[at]):
                left[place] = f"{op.type} takes any place in the arena of its inputs for theirs"
    return classes, left


def _pairs(flow: Flow, block: int, op: Op, sizes: Sizes, found: Mapping[Place, int]) -> Iterator[Pair]:
    """Yield the (input, output) pairs for which the operator is known to be in-place."""
    facts = facts_at(block, op, sizes)
    for source, target in sorted(facts.placed | facts.placed_first):
        names = op.inputs.get(source, ())
        for name in names if (source, target) in facts.placed else names[:1]:
            for out in op.outputs.get(target, ()):
                pair = flow.scopes.place(block, name), flow.scopes.place(block, out)
                if op.reads.count(name) == 1 and pair[0] != pair[1] and all(place in found for place in pair):
                    yield pair


def _copies(flow: Flow, block: int, op: Op, sizes: Sizes, found: Mapping[Place, int]) -> Iterator[Pair]:
    """Yield the in-place pairs with an output equal to the input."""
    equal = facts_at(block, op, sizes).equal
    return (
        pair
        for pair in _pairs(flow, block, op, sizes, found)
        if any(
            pair == (flow.scopes.place(block, name), flow.scopes.place(block, out))
            for source, target in equal
            for name in op.inputs.get(source, ())
            for out in op.outputs.get(target, ())
        )
    )


def _misplaced(flow: Flow, block: int, op: Op, classes: Classes, allowed: tuple[Pair, ...]) -> Iterator[Place]:
    """Yield the outputs in the arena, beside an input in the arena, that are not coalesced with an allowed input."""
    beside = any(flow.scopes.place(block, name) in classes.head for name in op.reads)
    for name in op.writes:
        out = flow.scopes.place(block, name)
        on = any(other == out and classes.same(one, out) for one, other in allowed)
        if beside and out in classes.head and not on:
            yield out

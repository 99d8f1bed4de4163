"""Control flow graph of a whole program: blocks in line, with loops and branches as edges between points.

    start     defines the content before the run: persistable variables and empty arrays
    op        an operator without a block
    enter     start of a loop: a `while` opens its step scopes; a `while_grad` fills gradients of its inputs with zeros
    head      top of each iteration: reads the condition or the next step scope; start of a conditional block
    begin     an iteration has its scope: a new scope with copies of changing inputs, or the kept scope in a gradient
    keep      end of a forward iteration: keeps the scope, with all variables read by the gradient block
    add       end of a backward iteration: adds the gradients of inputs to the outer gradients, or replaces them
    zeros     for a branch not taken: gradients of the branch's inputs
    end       uses persistable variables and the variables kept for the caller

A name may have several assignments. Each point uses and defines the variables resolved for its names (`scopes.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sublet.frontends.paddle.format.program import GRAD, Op, Program
from sublet.frontends.paddle.lives.scopes import Owner, Place, Scopes, linked
from sublet.frontends.paddle.operators.effects import effects, there


@dataclass(frozen=True, slots=True)
class Point:
    """A program point: all `uses` are read, then all `defs` are written.

    The point belongs to operator `op` of `block`; both are -1 for start and end. `shapes` are variables of which only
    the shape is read. The content of the variables in `kills` is undefined after the point.
    """

    kind: str
    block: int
    op: int
    uses: tuple[Place, ...]
    defs: tuple[Place, ...]
    shapes: tuple[Place, ...] = ()
    forgotten: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Flow:
    """The points of a program, and the successors of each point."""

    points: tuple[Point, ...]
    followers: tuple[tuple[int, ...], ...]
    scopes: Scopes

    @cached_property
    def at(self) -> dict[tuple[int, int], int]:
        """The point of each operator, by (block, index): the head of an operator with a block."""
        return {
            (point.block, point.op): index for index, point in enumerate(self.points) if point.kind in ("op", "head")
        }


def flow(program: Program, keep: Collection[Place] = (), *, by_shape: bool = True) -> Flow:
    """Return the control flow graph of a program; `keep` is live at the end.

    Without `by_shape`, a point does not use variables of which it reads only the shape: the bytes may be overwritten
    before.
    """
    return _Builder(program, by_shape).built(keep)


class _Builder:
    """Builder of the control flow graph."""

    def __init__(self, program: Program, by_shape: bool) -> None:
        self.program = program
        self.by_shape = by_shape
        self.scopes = Scopes(program)
        self.points: list[Point] = []
        self.followers: list[list[int]] = []
        self.open: list[int] = []  # predecessors of the next point
        self.read: dict[int, frozenset[Place]] = {}  # by block, reads of the block and its nested blocks

    def built(self, keep: Collection[Place]) -> Flow:
        """Build the graph, with `keep` live at the end."""
        lasting = [
            Place(block.index, var.name)
            for block in self.program.blocks
            for var in block.vars.values()
            if var.persistable
        ]
        self.emit("start", -1, -1, (), (*lasting, *self.arrays(0)))
        self.block(0)
        self.emit("end", -1, -1, (*lasting, *keep), ())
        return Flow(tuple(self.points), tuple(map(tuple, self.followers)), self.scopes)

    def emit(
        self, kind: str, block: int, op: int, uses: Iterable[Place], defs: Iterable[Place], shapes: Iterable[Place] = ()
    ) -> int:
        """Append a point after all open points, and make the new point the only open point. Return its index."""
        shaped = tuple(shapes)
        index = len(self.points)
        used = (*uses, *shaped) if self.by_shape else tuple(uses)
        self.points.append(Point(kind, block, op, tuple(dict.fromkeys(used)), tuple(dict.fromkeys(defs)), shaped))
        self.followers.append([])
        for before in self.open:
            self.followers[before].append(index)
        self.open = [index]
        return index

    def block(self, block: int) -> None:
        """Append the points of a block."""
        for index, op in enumerate(self.program.blocks[block].ops):
            inner = op.block()
            if inner is None:
                self.operator(block, index, op)
            else:
                lay_out = LAID_OUT.get(op.type, _Builder.unknown)
                lay_out(self, Owner(block, index, op), inner)

    def operator(self, block: int, index: int, op: Op) -> None:
        """Append the point of an operator without a block.

        A partial write also uses an array, and a variable with several writers: the rest of the content stays.
        """
        does = effects(op)
        adds = self.places(block, does.adds)
        before = [place for place in adds if self.scopes.is_array(place) or len(self.scopes.writers.get(place, ())) > 1]
        uses, shapes = self.places(block, does.reads), self.places(block, does.shapes)
        self.emit("op", block, index, (*uses, *before), (*self.places(block, does.writes), *adds), shapes)

    def while_(self, owner: Owner, inner: int) -> None:
        """Append a loop. A training loop has a scope for each iteration, an inference loop a single scope."""
        scopes, trained = self.slot(owner, owner.op.outputs, "StepScopes"), inner in self.scopes.gradients
        self.owned("enter", owner, (), scopes if trained else self.arrays(inner))
        head = self.owned("head", owner, self.slot(owner, owner.op.inputs, "Condition"), ())
        if trained:
            taken = sorted(self.scopes.snapshots.get(inner, ()))
            copies = tuple(Place(inner, name) for name in taken)
            self.owned("begin", owner, self.places(owner.block, taken), (*copies, *self.arrays(inner)))
        self.block(inner)
        if trained:
            self.owned("keep", owner, (*self.kept(inner), *scopes), scopes)
        self.back_to(head)

    def while_grad(self, owner: Owner, inner: int) -> None:
        """Append the gradient of a loop."""
        scopes = self.slot(owner, owner.op.inputs, "StepScopes")
        given = self.slot(owner, owner.op.inputs, f"Out{GRAD}")
        gradients = self.scopes.of_gradients(owner, inner, "X")
        added = [outer for outer, _ in gradients if outer not in given]
        empty = [place for place in given if self.begins_here(owner, place)]
        self.owned("enter", owner, scopes, (*added, *empty))
        head = self.owned("head", owner, scopes, ())
        self.owned(
            "begin",
            owner,
            (*scopes, *given),
            (*self.restored(inner), *self.places(inner, linked(owner.op)), *self.arrays(inner)),
        )
        self.block(inner)
        inner_ones = tuple(place for _, place in gradients)
        self.owned("add", owner, (*inner_ones, *added), tuple(outer for outer, _ in gradients))
        self.back_to(head)

    def conditional(self, owner: Owner, inner: int) -> None:
        """Append a conditional block."""
        scope = self.slot(owner, owner.op.outputs, "Scope")
        head = self.owned("head", owner, self.slot(owner, owner.op.inputs, "Cond"), scope)
        self.points[head] = replace(self.points[head], forgotten=self.only_written_in(owner, inner))
        self.owned("begin", owner, (), self.arrays(inner))
        self.block(inner)
        if inner in self.scopes.gradients:
            self.owned("keep", owner, (*self.kept(inner), *scope), scope)
        self.open.append(head)

    def conditional_grad(self, owner: Owner, inner: int) -> None:
        """Append the gradient of a conditional block."""
        scope = self.slot(owner, owner.op.inputs, "Scope")
        gradients = self.scopes.of_gradients(owner, inner, "Input")
        head = self.owned("head", owner, (*self.slot(owner, owner.op.inputs, "Cond"), *scope), ())
        self.owned("begin", owner, scope, (*self.restored(inner), *self.arrays(inner)))
        self.block(inner)
        outer = tuple(place for place, _ in gradients)
        taken = self.owned("add", owner, (place for _, place in gradients), outer)
        self.open = [head]
        self.owned("zeros", owner, (), outer)
        self.open.append(taken)

    def unknown(self, owner: Owner, inner: int) -> None:
        """Append an unknown operator with a block, as a loop: at any time the operator may use all of its names."""
        names = self.places(owner.block, (*owner.op.reads, *owner.op.writes))
        self.owned("enter", owner, (), self.arrays(inner))
        head = self.owned("head", owner, names, ())
        self.block(inner)
        self.back_to(head)

    def back_to(self, head: int) -> None:
        """Connect all open points to the head of the loop, and make the head the only open point."""
        for before in self.open:
            self.followers[before].append(head)
        self.open = [head]

    def owned(self, kind: str, owner: Owner, uses: Iterable[Place], defs: Iterable[Place]) -> int:
        """Append a point of an operator with a block."""
        return self.emit(kind, owner.block, owner.index, uses, defs)

    def places(self, block: int, names: Iterable[str]) -> tuple[Place, ...]:
        """Resolve names in a block; skip empty names."""
        return tuple(self.scopes.place(block, name) for name in names if there((name,)))

    def slot(self, owner: Owner, slots: Mapping[str, tuple[str, ...]], slot: str) -> tuple[Place, ...]:
        """Resolve the names in a slot of an operator with a block."""
        return self.places(owner.block, slots.get(slot, ()))

    def arrays(self, block: int) -> tuple[Place, ...]:
        """Return the tensor arrays of a block; a new scope begins with empty arrays."""
        variables = (Place(block, name) for name in self.program.blocks[block].vars)
        return tuple(place for place in variables if self.scopes.is_array(place))

    def begins_here(self, owner: Owner, place: Place) -> bool:
        """Return True if no operator before the loop writes the gradient, so that the loop begins with zeros."""
        if place.block != owner.block:
            return False
        writers = self.scopes.writers.get(place, ())
        steps = (index if block == owner.block else self.scopes.step(owner.block, block) for block, index in writers)
        return all(step >= owner.index for step in steps)

    def only_written_in(self, owner: Owner, inner: int) -> tuple[Place, ...]:
        """Return the outputs of a conditional block that are undefined after a skip of the block.

        Only a selection between arms reads such an output after a skip. The result is empty in the body of an inference
        loop: all iterations share a scope, so the content of an earlier iteration stays.
        """
        around = self.scopes.owners.get(owner.block)
        if around is not None and around.op.type == "while" and owner.block not in self.scopes.gradients:
            return ()  # all iterations share a scope
        blocks = set(self.scopes.inside(inner))
        return tuple(
            place
            for place in self.slot(owner, owner.op.outputs, "Out")
            if place.block == owner.block and all(block in blocks for block, _ in self.scopes.writers.get(place, ()))
        )

    def reads(self, block: int) -> frozenset[Place]:
        """Return all variables read by a block and its nested blocks."""
        if block not in self.read:
            variables: set[Place] = set()
            for op in self.program.blocks[block].ops:
                does, inner = effects(op), op.block()
                variables.update(self.places(block, (*does.reads, *does.shapes) if self.by_shape else does.reads))
                if inner is not None:
                    variables |= self.reads(inner)
            self.read[block] = frozenset(variables)
        return self.read[block]

    def kept(self, block: int) -> tuple[Place, ...]:
        """Return the variables of a block's scope that the gradient block reads."""
        return tuple(sorted(place for place in self.reads(self.scopes.gradients[block]) if place.block == block))

    def restored(self, block: int) -> tuple[Place, ...]:
        """Return the variables that a gradient block finds in the scope kept by the forward block."""
        forward = self.scopes.forward(block)
        return () if forward is None else self.kept(forward)


LAID_OUT = {
    "while": _Builder.while_,
    "while_grad": _Builder.while_grad,
    "conditional_block": _Builder.conditional,
    "conditional_block_grad": _Builder.conditional_grad,
}
"""The method that appends an operator with a block, by operator type."""

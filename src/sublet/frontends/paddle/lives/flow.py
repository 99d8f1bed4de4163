"""The control flow graph of a whole program: its blocks laid out in line, loops and branches as edges between points.

    start     defines what is there before: persistable variables and empty arrays
    op        an operator that runs no block
    enter     start of a loop: a `while` opens its step scopes; a `while_grad` fills gradients of its inputs with zeros
    head      top of every trip: reads the condition, or looks for another step scope; start of a conditional block
    begin     a trip has its scope: a fresh one with copies of inputs that change, or that of the same trip forward
    keep      end of a trip forward: its scope is kept, with all that the gradient block reads of it
    add       end of a trip backward: its gradients of inputs are added to those outside, or take their place
    zeros     of a branch not taken, the gradients of its inputs
    end       uses persistable variables and what is kept for whoever runs the program

Names may be assigned more than once; a point uses and defines the variables that they mean there (`scopes.py`).
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
    """One moment: all `uses` are read, then all `defs` are written.

    It belongs to operator `op` of `block`; both are -1 for start and end. `shapes` are places of which only the shape
    is read. What `forgotten` places held before has no meaning any more.
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
    """The points of a program, and those that may follow each."""

    points: tuple[Point, ...]
    followers: tuple[tuple[int, ...], ...]
    scopes: Scopes

    @cached_property
    def at(self) -> dict[tuple[int, int], int]:
        """By block and index, the point of an operator; of one that runs a block its head."""
        return {
            (point.block, point.op): index for index, point in enumerate(self.points) if point.kind in ("op", "head")
        }


def flow(program: Program, keep: Collection[Place] = (), *, by_shape: bool = True) -> Flow:
    """The flow of a program after which `keep` is still there.

    Without `by_shape` a point does not use what it reads only for its shape: such bytes may be others by then.
    """
    return _Builder(program, by_shape).built(keep)


class _Builder:
    def __init__(self, program: Program, by_shape: bool) -> None:
        self.program = program
        self.by_shape = by_shape
        self.scopes = Scopes(program)
        self.points: list[Point] = []
        self.followers: list[list[int]] = []
        self.open: list[int] = []  # points that the next one follows
        self.read: dict[int, frozenset[Place]] = {}  # by block, what it and all blocks run from it read

    def built(self, keep: Collection[Place]) -> Flow:
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
        """A point after all that are open, and itself open."""
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
        for index, op in enumerate(self.program.blocks[block].ops):
            inner = op.block()
            if inner is None:
                self.operator(block, index, op)
            else:
                lay_out = LAID_OUT.get(op.type, _Builder.unknown)
                lay_out(self, Owner(block, index, op), inner)

    def operator(self, block: int, index: int, op: Op) -> None:
        does = effects(op)
        adds = self.places(block, does.adds)
        before = [place for place in adds if self.scopes.is_array(place) or len(self.scopes.writers.get(place, ())) > 1]
        uses, shapes = self.places(block, does.reads), self.places(block, does.shapes)
        self.emit("op", block, index, (*uses, *before), (*self.places(block, does.writes), *adds), shapes)

    def while_(self, owner: Owner, inner: int) -> None:
        """Trips in a scope each, when they are done again backwards; else in one scope."""
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
        scope = self.slot(owner, owner.op.outputs, "Scope")
        head = self.owned("head", owner, self.slot(owner, owner.op.inputs, "Cond"), scope)
        self.points[head] = replace(self.points[head], forgotten=self.only_written_in(owner, inner))
        self.owned("begin", owner, (), self.arrays(inner))
        self.block(inner)
        if inner in self.scopes.gradients:
            self.owned("keep", owner, (*self.kept(inner), *scope), scope)
        self.open.append(head)

    def conditional_grad(self, owner: Owner, inner: int) -> None:
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
        """An operator that runs a block, nobody knows when or how often: it may use all that it names at any time."""
        names = self.places(owner.block, (*owner.op.reads, *owner.op.writes))
        self.owned("enter", owner, (), self.arrays(inner))
        head = self.owned("head", owner, names, ())
        self.block(inner)
        self.back_to(head)

    def back_to(self, head: int) -> None:
        """What is open goes to the head of the loop, which is what the next point follows."""
        for before in self.open:
            self.followers[before].append(head)
        self.open = [head]

    def owned(self, kind: str, owner: Owner, uses: Iterable[Place], defs: Iterable[Place]) -> int:
        return self.emit(kind, owner.block, owner.index, uses, defs)

    def places(self, block: int, names: Iterable[str]) -> tuple[Place, ...]:
        return tuple(self.scopes.place(block, name) for name in names if there((name,)))

    def slot(self, owner: Owner, slots: Mapping[str, tuple[str, ...]], slot: str) -> tuple[Place, ...]:
        return self.places(owner.block, slots.get(slot, ()))

    def arrays(self, block: int) -> tuple[Place, ...]:
        """The arrays of a block, which are empty when its scope is made."""
        found = (Place(block, name) for name in self.program.blocks[block].vars)
        return tuple(place for place in found if self.scopes.is_array(place))

    def begins_here(self, owner: Owner, place: Place) -> bool:
        """Whether nothing has written a gradient before, so that the loop takes zeros."""
        if place.block != owner.block:
            return False
        writers = self.scopes.writers.get(place, ())
        steps = (index if block == owner.block else self.scopes.step(owner.block, block) for block, index in writers)
        return all(step >= owner.index for step in steps)

    def only_written_in(self, owner: Owner, inner: int) -> tuple[Place, ...]:
        """What is nothing after a conditional block that was not run: nobody reads it there but to choose another."""
        around = self.scopes.owners.get(owner.block)
        if around is not None and around.op.type == "while" and owner.block not in self.scopes.gradients:
            return ()  # its trips share a scope
        blocks = set(self.scopes.inside(inner))
        return tuple(
            place
            for place in self.slot(owner, owner.op.outputs, "Out")
            if place.block == owner.block and all(block in blocks for block, _ in self.scopes.writers.get(place, ()))
        )

    def reads(self, block: int) -> frozenset[Place]:
        """What a block and all blocks run from it read."""
        if block not in self.read:
            found: set[Place] = set()
            for op in self.program.blocks[block].ops:
                does, inner = effects(op), op.block()
                found.update(self.places(block, (*does.reads, *does.shapes) if self.by_shape else does.reads))
                if inner is not None:
                    found |= self.reads(inner)
            self.read[block] = frozenset(found)
        return self.read[block]

    def kept(self, block: int) -> tuple[Place, ...]:
        """What the gradient of a block reads in the scopes of its trips."""
        return tuple(sorted(place for place in self.reads(self.scopes.gradients[block]) if place.block == block))

    def restored(self, block: int) -> tuple[Place, ...]:
        """What a gradient block finds in the scope of the trip that it does backwards."""
        forward = self.scopes.forward(block)
        return () if forward is None else self.kept(forward)


LAID_OUT = {
    "while": _Builder.while_,
    "while_grad": _Builder.while_grad,
    "conditional_block": _Builder.conditional,
    "conditional_block_grad": _Builder.conditional_grad,
}
"""How the operators that run blocks are laid out."""

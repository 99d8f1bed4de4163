"""Paddle's executor, as far as bytes go: what it allocates and frees when it runs a program in the order it is written.

Measured allocation by allocation with Paddle 3.0.0 (docs/paddle.md):

- An operator allocates what it writes, unless the name holds as many bytes already. After it, garbage collection
  frees what no later operator of its block mentions; a mention only for the shape (`shape_only`) does not count.
- A `while` that is trained opens a scope for each trip, copies inputs into it (`Scopes.copied`) and keeps it with
  every name that the gradient block mentions, even if only for its shape.
- A `while_grad` runs each trip in its scope, then deletes it. After its first trip it fills gradients of inputs with
  zeros, to which those of the trip are added. What comes in as the gradient of an output is shared, not copied.
- A conditional block keeps one scope in the same way; of one not taken, gradients of inputs are filled with zeros.

Kernels' scratch memory, feeds and persistable variables are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sublet.frontends.paddle.format.program import GRAD, Op
from sublet.frontends.paddle.lives.scopes import Owner, Place, Scopes
from sublet.frontends.paddle.operators.effects import effects, there
from sublet.frontends.paddle.peaks.walk import Asked, Scope, Walk


@dataclass(frozen=True)
class Executed:
    """What a run held: its peak, and at which (block, operator); by block, trips, and the bytes of a kept scope.

    `lagging` is the peak when nothing that dies in a block inside is freed before the block ends: Paddle frees on a
    thread of its own, which may come late. Measured peaks lie between the two.
    `with_scratch` is the peak when kernels hold what the question says is their scratch.
    """

    peak: int
    lagging: int
    with_scratch: int
    at: tuple[int, int]
    trips: Mapping[int, int]
    kept: Mapping[int, int]


def executed(asked: Asked, collection: Collection) -> Executed:
    """What Paddle holds when it runs a program once. Raises PlanError where nobody says how often a loop runs."""
    execution, late = _Execution(asked, collection), _Late(asked, collection)
    execution.run()
    if collection.collects:
        late.run()
    lagging, with_scratch = max(late.peak, execution.peak), max(execution.with_scratch, execution.peak)
    return Executed(execution.peak, lagging, with_scratch, execution.at, execution.trips, execution.kept)


@dataclass(frozen=True)
class Collection:
    """What is collected after which operator of each block, found once for a program."""

    scopes: Scopes
    keep: frozenset[Place]
    collects: bool = True

    @cached_property
    def after(self) -> dict[tuple[int, int], list[str]]:
        """By block and operator, the names of the block that are freed after it."""
        found: dict[tuple[int, int], list[str]] = {}
        for block in self.scopes.program.blocks if self.collects else ():
            for name, index in self._last(block.index).items():
                if name in block.vars and not self._stays(Place(block.index, name)):
                    found.setdefault((block.index, index), []).append(name)
        return found

    def _stays(self, place: Place) -> bool:
        lasts = self.scopes.program.blocks[place.block].vars[place.name].persistable
        return lasts or place in self.keep or place.name in self._skipped[place.block]

    def _last(self, block: int) -> dict[str, int]:
        """Of the names of a block the last operator that mentions each."""
        return {
            place.name: index
            for index, op in enumerate(self.scopes.program.blocks[block].ops)
            for place in self._mentions(block, op)
            if place.block == block
        }

    def _mentions(self, block: int, op: Op) -> set[Place]:
        """What an operator mentions, but for what it asks only the shape of, and what blocks that it runs mention."""
        does, inner = effects(op), op.block()
        found = {self.scopes.place(block, name) for name in (*does.reads, *does.writes, *does.adds)}
        if inner is not None:
            for each in self.scopes.program.blocks[inner].ops:
                found |= self._mentions(inner, each)
        return found

    @cached_property
    def _skipped(self) -> dict[int, frozenset[str]]:
        """By block, the names that are there until its scope is deleted."""
        found: dict[int, frozenset[str]] = {block.index: frozenset() for block in self.scopes.program.blocks}
        for forward, gradient in self.scopes.gradients.items():
            inside = [op for block in self.scopes.inside(gradient) for op in self.scopes.program.blocks[block].ops]
            found[forward] = frozenset(name for op in inside for name in (*op.reads, *op.writes))
            owner = self.scopes.owners.get(gradient)
            if owner is not None:
                inputs = (*owner.op.inputs.get("X", ()), *owner.op.inputs.get("Input", ()))
                found[gradient] = frozenset((*(f"{name}{GRAD}" for name in inputs), *owner.op.writes))
        return found


class _Execution(Walk[int]):
    """A walk in which a variable holds bytes."""

    def __init__(self, asked: Asked, collection: Collection) -> None:
        super().__init__(asked, collection.scopes)
        self.collected = collection.after
        self.others: set[Place] = set()  # what holds the bytes of another name
        self.total = self.peak = self.with_scratch = 0
        self.at = (0, 0)
        self.kept: dict[int, int] = {}

    def operator(self, block: int, index: int, op: Op) -> None:
        sizes = self.sizes
        for _, place in self.written(block, index, op):
            sources = [self.scopes.place(block, name) for name in there(op.inputs.get("X", ()))]
            if op.type == "write_to_array":
                self.hold(place, (self.held(place) or 0) + sum(map(sizes.declared, sources)))
            elif self.scopes.is_array(place):
                self.hold(place, sum(self.held(source) or sizes.declared(source) for source in sources))
            elif not self.persistable(place):
                self.hold(place, sizes.written(block, index, place))
        self.with_scratch = max(self.with_scratch, self.total + self.asked.scratch.get((block, index), 0))

    def after(self, block: int, index: int) -> None:
        for name in self.collected.get((block, index), ()):
            self.total -= self.now[block].held.pop(name, 0)

    def copied(self, outer: Place, inner: Place) -> None:
        self.hold(inner, self.held(outer) or self.sizes.declared(outer))

    def shared(self, outer: Place, inner: Place) -> None:
        self.others.add(inner)

    def zeros(self, place: Place) -> None:
        if not self.scopes.is_array(place):
            self.hold(place, self.sizes.declared(place))

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        self.zeros(outer)

    def deleted(self, scope: Scope[int]) -> None:
        self.total -= sum(scope.everything())

    def keep(self, owner: Owner, slot: str, scopes: list[Scope[int]]) -> None:
        super().keep(owner, slot, scopes)
        inner = owner.op.block()
        if scopes and inner is not None:
            self.kept[inner] = sum(scopes[-1].everything())

    def hold(self, place: Place, nbytes: int) -> None:
        """A variable holds at least so many bytes: others are allocated before its own are freed."""
        before = self.held(place) or 0
        if nbytes > before and place not in self.others and not self.persistable(place):
            self.total += nbytes
            if self.total > self.peak:
                self.peak, self.at = self.total, self.where
            self.total -= before
            self.now[place.block].held[place.name] = nbytes


class _Late(_Execution):
    """One in which what dies in a block inside is freed when the block ends."""

    def after(self, block: int, index: int) -> None:
        if block == 0:
            super().after(block, index)

    def block(self, block: int) -> None:
        super().block(block)
        if block:
            for index in range(len(self.program.blocks[block].ops)):
                super().after(block, index)

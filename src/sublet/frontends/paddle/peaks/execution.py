"""Memory model of Paddle's executor: allocations and frees of a run in program order.

Measured allocation by allocation with Paddle 3.0.0 (docs/paddle.md):

- An operator allocates its outputs, unless the name already holds as many bytes. After the operator, garbage collection
  frees each name without a later mention in the block; a mention only for the shape (`shape_only`) does not count.
- A training `while` opens a scope for each iteration, copies inputs into the scope (`PaddleScopes.copied_inputs`), and
  keeps the scope with every name mentioned by the gradient block, even if only for the shape.
- A `while_grad` runs each iteration in its kept scope, then deletes the scope. After the first iteration it fills
  gradients of inputs with zeros, and adds the gradients of each iteration. The gradient of an output is shared, not
  copied.
- A conditional block keeps a single scope in the same way; if not taken, gradients of inputs are filled with zeros.

Scratch memory of kernels, feeds and persistable variables are not counted.
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
    """Memory of a simulated run.

    peak          the most bytes
    lagging       the peak if content dying in an inner block is freed only at the end of the block: Paddle frees on a
                  separate thread, possibly late. Measured peaks lie between `peak` and `lagging`
    with_scratch  the peak with the scratch memory of kernels given in the request
    at            the (block, operator) of the peak
    trips         the iterations of each loop body
    kept          the bytes of a kept scope of each block
    """

    peak: int
    lagging: int
    with_scratch: int
    at: tuple[int, int]
    trips: Mapping[int, int]
    kept: Mapping[int, int]


def executed(asked: Asked, collection: Collection) -> Executed:
    """Simulate a run in Paddle and return its memory.

    Raises PlanError if the number of iterations of a loop is unknown.
    """
    execution, late = _Execution(asked, collection), _Late(asked, collection)
    execution.run()
    if collection.collects:
        late.run()
    lagging, with_scratch = max(late.peak, execution.peak), max(execution.with_scratch, execution.peak)
    return Executed(execution.peak, lagging, with_scratch, execution.at, execution.trips, execution.kept)


@dataclass(frozen=True)
class Collection:
    """Garbage collection of a program: the names freed after each operator; none if `collects` is False."""

    scopes: Scopes
    keep: frozenset[Place]
    collects: bool = True

    @cached_property
    def after(self) -> dict[tuple[int, int], list[str]]:
        """The names of the block freed after each (block, operator)."""
        freed: dict[tuple[int, int], list[str]] = {}
        for block in self.scopes.program.blocks if self.collects else ():
            for name, index in self._last(block.index).items():
                if name in block.vars and not self._stays(Place(block.index, name)):
                    freed.setdefault((block.index, index), []).append(name)
        return freed

    def _stays(self, place: Place) -> bool:
        """Return True if the garbage collector never frees the variable."""
        lasts = self.scopes.program.blocks[place.block].vars[place.name].persistable
        return lasts or place in self.keep or place.name in self._skipped[place.block]

    def _last(self, block: int) -> dict[str, int]:
        """Return the last operator that mentions each name of a block."""
        return {
            place.name: index
            for index, op in enumerate(self.scopes.program.blocks[block].ops)
            for place in self._mentions(block, op)
            if place.block == block
        }

    def _mentions(self, block: int, op: Op) -> set[Place]:
        """Return the variables mentioned by an operator or by its nested blocks, except mentions only for the shape."""
        does, inner = effects(op), op.block()
        variables = {self.scopes.place(block, name) for name in (*does.reads, *does.writes, *does.adds)}
        if inner is not None:
            for each in self.scopes.program.blocks[inner].ops:
                variables |= self._mentions(inner, each)
        return variables

    @cached_property
    def _skipped(self) -> dict[int, frozenset[str]]:
        """The names that stay until the deletion of the scope, by block."""
        names: dict[int, frozenset[str]] = {block.index: frozenset() for block in self.scopes.program.blocks}
        for forward, gradient in self.scopes.gradients.items():
            inside = [op for block in self.scopes.inside(gradient) for op in self.scopes.program.blocks[block].ops]
            names[forward] = frozenset(name for op in inside for name in (*op.reads, *op.writes))
            owner = self.scopes.owners.get(gradient)
            if owner is not None:
                inputs = (*owner.op.inputs.get("X", ()), *owner.op.inputs.get("Input", ()))
                names[gradient] = frozenset((*(f"{name}{GRAD}" for name in inputs), *owner.op.writes))
        return names


class _Execution(Walk[int]):
    """A walk with bytes as the content of variables: Paddle's executor with prompt frees."""

    def __init__(self, asked: Asked, collection: Collection) -> None:
        super().__init__(asked, collection.scopes)
        self.collected = collection.after
        self.others: set[Place] = set()  # variables that share the bytes of another name
        self.total = self.peak = self.with_scratch = 0
        self.at = (0, 0)
        self.kept: dict[int, int] = {}

    def operator(self, block: int, index: int, op: Op) -> None:
        """Allocate the outputs of an operator. A write to an array adds bytes; other array operators set the total."""
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
        """Free the names collected after the operator."""
        for name in self.collected.get((block, index), ()):
            self.total -= self.now[block].held.pop(name, 0)

    def copied(self, outer: Place, inner: Place) -> None:
        """Allocate the copy of an input."""
        self.hold(inner, self.held(outer) or self.sizes.declared(outer))

    def shared(self, outer: Place, inner: Place) -> None:
        """Note that the name holds only bytes of another name."""
        self.others.add(inner)

    def zeros(self, place: Place) -> None:
        """Allocate the zeros of a gradient, unless the gradient is an array."""
        if not self.scopes.is_array(place):
            self.hold(place, self.sizes.declared(place))

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        """Allocate the outer gradient."""
        self.zeros(outer)

    def deleted(self, scope: Scope[int]) -> None:
        """Free all content of a scope."""
        self.total -= sum(scope.everything())

    def keep(self, owner: Owner, slot: str, scopes: list[Scope[int]]) -> None:
        """Keep the scopes, and note the bytes of the last scope."""
        super().keep(owner, slot, scopes)
        inner = owner.op.block()
        if scopes and inner is not None:
            self.kept[inner] = sum(scopes[-1].everything())

    def hold(self, place: Place, nbytes: int) -> None:
        """Give a variable at least `nbytes` bytes. Paddle allocates the new bytes before the free of the old bytes."""
        before = self.held(place) or 0
        if nbytes > before and place not in self.others and not self.persistable(place):
            self.total += nbytes
            if self.total > self.peak:
                self.peak, self.at = self.total, self.where
            self.total -= before
            self.now[place.block].held[place.name] = nbytes


class _Late(_Execution):
    """A walk with late frees: content dying in an inner block is freed only at the end of the block."""

    def after(self, block: int, index: int) -> None:
        """Free names only in block 0."""
        if block == 0:
            super().after(block, index)

    def block(self, block: int) -> None:
        """Run a block, then free all collected names of the block."""
        super().block(block)
        if block:
            for index in range(len(self.program.blocks[block].ops)):
                super().after(block, index)

"""Where a name means what: the scopes in which Paddle runs the blocks of a program.

A `while` of a training program runs each trip in a scope of its own, which it keeps in its STEP_SCOPES; so does a
`conditional_block` in its Scope. The gradient block runs in these scopes again, latest trip first. So a name in a
gradient block is looked for in that block, in the block it is the gradient of, and then so in their parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sublet.frontends.paddle.format.program import ARRAY, GRAD, TENSOR, Op, Program
from sublet.frontends.paddle.operators.effects import there

FORWARD_OWNERS = ("while", "conditional_block")
"""They write nothing themselves: the operators of their blocks write to names outside."""

COPYING = 2_000_000
"""From this version on a `while` that is trained copies its inputs into the scope of each trip."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A variable: the block whose scope it lies in, and its name there."""

    block: int
    name: str

    def __str__(self) -> str:
        return f"{self.name}@block{self.block}" if self.block else self.name


@dataclass(frozen=True, slots=True)
class Owner:
    """The operator that runs a block: where it is."""

    block: int
    index: int
    op: Op


def linked(op: Op) -> tuple[str, ...]:
    """The names by which the block of a `while_grad` finds the gradients of the loop's results, zeros where nobody made
    them, in the order of `Out@GRAD`."""
    attr = op.attrs.get("original_output_grad")
    names = attr.value if attr is not None and isinstance(attr.value, tuple) else ()
    return tuple(name for name in names if isinstance(name, str))


@dataclass(frozen=True)
class Scopes:
    """The scopes of a program, found once."""

    program: Program

    @cached_property
    def owners(self) -> dict[int, Owner]:
        """By block, the operator that runs it."""
        return {
            inner: Owner(block.index, index, op)
            for block in self.program.blocks
            for index, op in enumerate(block.ops)
            if (inner := op.block()) is not None
        }

    @cached_property
    def gradients(self) -> dict[int, int]:
        """By block, the block that is its gradient."""
        return {block.forward: block.index for block in self.program.blocks if block.forward >= 0}

    def is_array(self, place: Place) -> bool:
        """Whether a variable is an array of tensors."""
        var = self.program.blocks[place.block].vars.get(place.name)
        return var is not None and var.kind == ARRAY

    def of_gradients(self, owner: Owner, inner: int, slot: str) -> tuple[tuple[Place, Place], ...]:
        """Of the inputs in a slot the gradients outside, and those inside, which are found by their names."""
        pairs = zip(owner.op.inputs.get(slot, ()), owner.op.outputs.get(f"{slot}{GRAD}", ()), strict=False)
        return tuple(
            (self.place(owner.block, outer), self.place(inner, f"{name}{GRAD}"))
            for name, outer in pairs
            if there((outer,))
        )

    def forward(self, block: int) -> int | None:
        """The block that this one is the gradient of."""
        forward = self.program.blocks[block].forward
        return forward if forward >= 0 else None

    def chain(self, block: int) -> Iterator[tuple[int, bool]]:
        """Where a name is looked for, nearest block first; and whether what it did is done again backwards."""
        while block >= 0:
            yield block, False
            forward = self.forward(block)
            if forward is not None:
                yield forward, True
            block = self.program.blocks[block].parent

    def inside(self, block: int) -> Iterator[int]:
        """A block and all that are run from it, in order."""
        yield block
        for op in self.program.blocks[block].ops:
            inner = op.block()
            if inner is not None:
                yield from self.inside(inner)

    @cached_property
    def copied(self) -> dict[int, frozenset[str]]:
        """By block of a `while` that is trained, the inputs that every trip's scope gets a copy of.

        Those are its dense tensors, but for parameters and for what some operator of the body both reads and writes.
        """
        return {
            block: self._copied(block, owner)
            for block, owner in self.owners.items()
            if owner.op.type == "while" and block in self.gradients and self.program.version >= COPYING
        }

    def _copied(self, block: int, owner: Owner) -> frozenset[str]:
        updated = {name for op in self.program.blocks[block].ops for name in set(op.reads) & set(op.writes)}
        found = set()
        for name in there(owner.op.inputs.get("X", ())):
            var = self.program.var(owner.block, name)
            if name not in updated and var is not None and var.kind == TENSOR and not var.parameter:
                found.add(name)
        return frozenset(found)

    def place(self, block: int, name: str) -> Place:
        """What a name in a block means: a variable; in a gradient block also what a loop took in that trip."""
        found = self._found.get((block, name))
        if found is None:
            found = self._found[block, name] = self._place(block, name, self.snapshots)
        return found

    @cached_property
    def _found(self) -> dict[tuple[int, str], Place]:
        """The places that were asked for."""
        return {}

    def _place(self, block: int, name: str, copies: Mapping[int, frozenset[str]]) -> Place:
        for nearest, again in self.chain(block):
            if name in self.program.blocks[nearest].vars or (again and name in copies.get(nearest, ())):
                return Place(nearest, name)
        return Place(0, name)

    @cached_property
    def snapshots(self) -> dict[int, frozenset[str]]:
        """Of the copied inputs those that may be another value later on, so that the copy is one to a reader, too."""
        writers = self._writers(self.copied)
        return {
            block: frozenset(name for name in names if self._changes(block, name, writers))
            for block, names in self.copied.items()
        }

    def _changes(self, block: int, name: str, writers: Mapping[Place, tuple[tuple[int, int], ...]]) -> bool:
        """Whether what a loop takes as `name` may be written after the loop has begun, or its copy backwards."""
        outer = self.place_outside(block, name)
        begin = self.step(outer.block, block)
        early = all(where == outer.block and index < begin for where, index in writers.get(outer, ()))
        return not early or Place(block, name) in writers

    def step(self, outer: int, block: int) -> int:
        """The index of the operator of `outer` within which a block is run; -1 if it is not run within it."""
        while block in self.owners:
            owner = self.owners[block]
            if owner.block == outer:
                return owner.index
            block = owner.block
        return -1

    def place_outside(self, block: int, name: str) -> Place:
        """What a name means where the operator stands that runs a block."""
        return self._place(self.owners[block].block, name, self.copied)

    @cached_property
    def writers(self) -> dict[Place, tuple[tuple[int, int], ...]]:
        """By variable, the operators that write it, in order: their blocks and indices."""
        return self._writers(self.snapshots)

    def _writers(self, copies: Mapping[int, frozenset[str]]) -> dict[Place, tuple[tuple[int, int], ...]]:
        found: dict[Place, list[tuple[int, int]]] = {}
        for block in self.program.blocks:
            for index, op in enumerate(block.ops):
                if op.type not in FORWARD_OWNERS:
                    for name in dict.fromkeys(there(op.writes)):
                        found.setdefault(self._place(block.index, name, copies), []).append((block.index, index))
        return {place: tuple(where) for place, where in found.items()}

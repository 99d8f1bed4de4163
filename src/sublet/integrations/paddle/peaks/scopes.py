"""Name resolution in the scopes of Paddle's executor.

A training `while` runs each iteration in a separate scope and keeps the scopes in its STEP_SCOPES variable. A
`conditional_block` does the same with its Scope variable. The gradient block runs in the kept scopes again, the last
iteration first. A name in a gradient block is therefore looked up in the gradient block, in its forward block, and then
likewise in their parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sublet.integrations.paddle.format.program import ARRAY, GRAD, TENSOR, PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import nonempty_names

FORWARD_OWNERS = ("while", "conditional_block")
"""Operators without writes of their own: the operators in their blocks write the outer names."""

COPIES_INPUTS_SINCE = 2_000_000
"""The first version of Paddle with copies of inputs in the scope of each iteration of a training `while`."""


@dataclass(frozen=True, slots=True, order=True)
class ScopedVariable:
    """A variable: the block of the scope, and the name in the scope."""

    block: int
    name: str

    def __str__(self) -> str:
        """Return "name@blockN", or the name alone for block 0."""
        return f"{self.name}@block{self.block}" if self.block else self.name


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """The operator running a block, with position."""

    block: int
    index: int
    op: PaddleOp


def linked_gradient_names(op: PaddleOp) -> tuple[str, ...]:
    """Return the names under which a `while_grad` block finds the gradients of the loop's results, in `Out@GRAD` order.

    Paddle fills a missing gradient with zeros.
    """
    attr = op.attrs.get("original_output_grad")
    names = attr.value if attr is not None and isinstance(attr.value, tuple) else ()
    return tuple(name for name in names if isinstance(name, str))


@dataclass(frozen=True)
class PaddleScopes:
    """Name resolution and writers of a program; every fact is computed once."""

    program: PaddleProgram

    @cached_property
    def owners(self) -> dict[int, BlockOwner]:
        """The operator running each block."""
        return {
            inner: BlockOwner(block.index, index, op)
            for block in self.program.blocks
            for index, op in enumerate(block.ops)
            if (inner := op.block_index()) is not None
        }

    @cached_property
    def gradients(self) -> dict[int, int]:
        """The gradient block of each forward block."""
        return {block.forward: block.index for block in self.program.blocks if block.forward >= 0}

    def is_array(self, place: ScopedVariable) -> bool:
        """Return True if the variable is a tensor array."""
        var = self.program.blocks[place.block].vars.get(place.name)
        return var is not None and var.kind == ARRAY

    def gradient_pairs(
        self, owner: BlockOwner, inner: int, slot: str
    ) -> tuple[tuple[ScopedVariable, ScopedVariable], ...]:
        """Return (outer, inner) gradient pairs for the inputs in a slot; Paddle finds an inner gradient by name."""
        pairs = zip(owner.op.inputs.get(slot, ()), owner.op.outputs.get(f"{slot}{GRAD}", ()), strict=False)
        return tuple(
            (self.resolve(owner.block, outer), self.resolve(inner, f"{name}{GRAD}"))
            for name, outer in pairs
            if nonempty_names((outer,))
        )

    def forward_block(self, block: int) -> int | None:
        """Return the forward block of a gradient block, or None."""
        forward = self.program.blocks[block].forward
        return forward if forward >= 0 else None

    def lookup_chain(self, block: int) -> Iterator[tuple[int, bool]]:
        """Yield the blocks searched for a name, nearest first, each with True if the block is a forward block."""
        while block >= 0:
            yield block, False
            forward = self.forward_block(block)
            if forward is not None:
                yield forward, True
            block = self.program.blocks[block].parent

    def nested_blocks(self, block: int) -> Iterator[int]:
        """Yield a block and all nested blocks, in order."""
        yield block
        for op in self.program.blocks[block].ops:
            inner = op.block_index()
            if inner is not None:
                yield from self.nested_blocks(inner)

    @cached_property
    def copied_inputs(self) -> dict[int, frozenset[str]]:
        """The inputs that Paddle copies into the scope of each iteration, by body block of each training loop.

        Paddle copies dense tensors, except parameters and names both read and written by an operator of the body.
        """
        return {
            block: self._copied_inputs_of(block, owner)
            for block, owner in self.owners.items()
            if owner.op.type == "while" and block in self.gradients and self.program.version >= COPIES_INPUTS_SINCE
        }

    def _copied_inputs_of(self, block: int, owner: BlockOwner) -> frozenset[str]:
        """Return the copied inputs of a training loop."""
        updated = {name for op in self.program.blocks[block].ops for name in set(op.reads) & set(op.writes)}
        names = set()
        for name in nonempty_names(owner.op.inputs.get("X", ())):
            var = self.program.find_var(owner.block, name)
            if name not in updated and var is not None and var.kind == TENSOR and not var.parameter:
                names.add(name)
        return frozenset(names)

    def resolve(self, block: int, name: str) -> ScopedVariable:
        """Return the variable of a name used in a block; in a gradient block, possibly a snapshot taken by the loop."""
        found = self._resolve_cache.get((block, name))
        if found is None:
            found = self._resolve_cache[block, name] = self._resolve_with(block, name, self.snapshots)
        return found

    @cached_property
    def _resolve_cache(self) -> dict[tuple[int, str], ScopedVariable]:
        """The cache of resolved names."""
        return {}

    def _resolve_with(self, block: int, name: str, copies: Mapping[int, frozenset[str]]) -> ScopedVariable:
        """Resolve a name, given the copied inputs of each block."""
        for nearest, again in self.lookup_chain(block):
            if name in self.program.blocks[nearest].vars or (again and name in copies.get(nearest, ())):
                return ScopedVariable(nearest, name)
        return ScopedVariable(0, name)

    @cached_property
    def snapshots(self) -> dict[int, frozenset[str]]:
        """The copied inputs with a possible later write to the variable or the copy, for which both can differ."""
        writers = self._find_writers(self.copied_inputs)
        return {
            block: frozenset(name for name in names if self._may_change(block, name, writers))
            for block, names in self.copied_inputs.items()
        }

    def _may_change(self, block: int, name: str, writers: Mapping[ScopedVariable, tuple[tuple[int, int], ...]]) -> bool:
        """Return True if an operator may write the input after the loop begins, or write the copy in the gradient."""
        outer = self.resolve_outside(block, name)
        begin = self.enclosing_operator(outer.block, block)
        early = all(where == outer.block and index < begin for where, index in writers.get(outer, ()))
        return not early or ScopedVariable(block, name) in writers

    def enclosing_operator(self, outer: int, block: int) -> int:
        """Return the index of the operator in block `outer` that encloses `block`; -1 if none does."""
        while block in self.owners:
            owner = self.owners[block]
            if owner.block == outer:
                return owner.index
            block = owner.block
        return -1

    def resolve_outside(self, block: int, name: str) -> ScopedVariable:
        """Return the variable of a name at the operator that runs the block."""
        return self._resolve_with(self.owners[block].block, name, self.copied_inputs)

    @cached_property
    def writers(self) -> dict[ScopedVariable, tuple[tuple[int, int], ...]]:
        """The operators that write each variable, as (block, index), in order."""
        return self._find_writers(self.snapshots)

    def _find_writers(self, copies: Mapping[int, frozenset[str]]) -> dict[ScopedVariable, tuple[tuple[int, int], ...]]:
        """Return the writers of each variable, given the copied inputs of each block."""
        positions: dict[ScopedVariable, list[tuple[int, int]]] = {}
        for block in self.program.blocks:
            for index, op in enumerate(block.ops):
                if op.type not in FORWARD_OWNERS:
                    for name in dict.fromkeys(nonempty_names(op.writes)):
                        positions.setdefault(self._resolve_with(block.index, name, copies), []).append(
                            (block.index, index)
                        )
        return {place: tuple(where) for place, where in positions.items()}

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

from sublet.integrations.paddle.format.program import GRAD, PaddleOp
from sublet.integrations.paddle.operators.dialect import effects_of, nonempty_names
from sublet.integrations.paddle.peaks.scopes import BlockOwner, PaddleScopes, ScopedVariable
from sublet.integrations.paddle.peaks.simulated_run import ContentScope, RunRequest, SimulatedRun


@dataclass(frozen=True)
class SimulatedMemory:
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


def simulate_run(request: RunRequest, collection: GarbageCollection) -> SimulatedMemory:
    """Simulate a run in Paddle and return its memory.

    Raises PlanError if the number of iterations of a loop is unknown.
    """
    execution, late = _ExecutorRun(request, collection), _LateFreeRun(request, collection)
    execution.run()
    if collection.collects:
        late.run()
    lagging, with_scratch = max(late.peak, execution.peak), max(execution.with_scratch, execution.peak)
    return SimulatedMemory(execution.peak, lagging, with_scratch, execution.at, execution.trips, execution.kept)


@dataclass(frozen=True)
class GarbageCollection:
    """Garbage collection of a program: the names freed after each operator; none if `collects` is False."""

    scopes: PaddleScopes
    keep: frozenset[ScopedVariable]
    collects: bool = True

    @cached_property
    def freed_after(self) -> dict[tuple[int, int], list[str]]:
        """The names of the block freed after each (block, operator)."""
        freed: dict[tuple[int, int], list[str]] = {}
        for block in self.scopes.program.blocks if self.collects else ():
            for name, index in self._last_mentions(block.index).items():
                if name in block.vars and not self._is_never_freed(ScopedVariable(block.index, name)):
                    freed.setdefault((block.index, index), []).append(name)
        return freed

    def _is_never_freed(self, place: ScopedVariable) -> bool:
        """Return True if the garbage collector never frees the variable."""
        lasts = self.scopes.program.blocks[place.block].vars[place.name].persistable
        return lasts or place in self.keep or place.name in self._names_until_deletion[place.block]

    def _last_mentions(self, block: int) -> dict[str, int]:
        """Return the last operator that mentions each name of a block."""
        return {
            place.name: index
            for index, op in enumerate(self.scopes.program.blocks[block].ops)
            for place in self._mentioned_variables(block, op)
            if place.block == block
        }

    def _mentioned_variables(self, block: int, op: PaddleOp) -> set[ScopedVariable]:
        """Return the variables mentioned by an operator or by its nested blocks, except mentions only for the shape."""
        does, inner = effects_of(op), op.block_index()
        variables = {self.scopes.resolve(block, name) for name in (*does.reads, *does.writes, *does.adds)}
        if inner is not None:
            for each in self.scopes.program.blocks[inner].ops:
                variables |= self._mentioned_variables(inner, each)
        return variables

    @cached_property
    def _names_until_deletion(self) -> dict[int, frozenset[str]]:
        """The names that stay until the deletion of the scope, by block."""
        names: dict[int, frozenset[str]] = {block.index: frozenset() for block in self.scopes.program.blocks}
        for forward, gradient in self.scopes.gradients.items():
            inside = [
                op for block in self.scopes.nested_blocks(gradient) for op in self.scopes.program.blocks[block].ops
            ]
            names[forward] = frozenset(name for op in inside for name in (*op.reads, *op.writes))
            owner = self.scopes.owners.get(gradient)
            if owner is not None:
                inputs = (*owner.op.inputs.get("X", ()), *owner.op.inputs.get("Input", ()))
                names[gradient] = frozenset((*(f"{name}{GRAD}" for name in inputs), *owner.op.writes))
        return names


class _ExecutorRun(SimulatedRun[int]):
    """A walk with bytes as the content of variables: Paddle's executor with prompt frees."""

    def __init__(self, request: RunRequest, collection: GarbageCollection) -> None:
        super().__init__(request, collection.scopes)
        self.freed_after = collection.freed_after
        self.sharing_variables: set[ScopedVariable] = set()  # variables that share the bytes of another name
        self.total = self.peak = self.with_scratch = 0
        self.at = (0, 0)
        self.kept: dict[int, int] = {}

    def visit_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Allocate the outputs of an operator. A write to an array adds bytes; other array operators set the total."""
        sizes = self.sizes
        for _, place in self.written_variables(block, index, op):
            sources = [self.scopes.resolve(block, name) for name in nonempty_names(op.inputs.get("X", ()))]
            if op.type == "write_to_array":
                self.grow_variable(place, (self.content_of(place) or 0) + sum(map(sizes.declared_bytes, sources)))
            elif self.scopes.is_array(place):
                self.grow_variable(
                    place, sum(self.content_of(source) or sizes.declared_bytes(source) for source in sources)
                )
            elif not self.is_persistable(place):
                self.grow_variable(place, sizes.written_bytes(block, index, place))
        self.with_scratch = max(self.with_scratch, self.total + self.asked.scratch.get((block, index), 0))

    def operator_done(self, block: int, index: int) -> None:
        """Free the names collected after the operator."""
        for name in self.freed_after.get((block, index), ()):
            self.total -= self.current_scopes[block].held.pop(name, 0)

    def copy_input(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Allocate the copy of an input."""
        self.grow_variable(inner, self.content_of(outer) or self.sizes.declared_bytes(outer))

    def share_gradient(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Note that the name holds only bytes of another name."""
        self.sharing_variables.add(inner)

    def fill_zeros(self, place: ScopedVariable) -> None:
        """Allocate the zeros of a gradient, unless the gradient is an array."""
        if not self.scopes.is_array(place):
            self.grow_variable(place, self.sizes.declared_bytes(place))

    def add_gradient(self, outer: ScopedVariable, inner: ScopedVariable, carried: bool) -> None:
        """Allocate the outer gradient."""
        self.fill_zeros(outer)

    def delete_scope(self, scope: ContentScope[int]) -> None:
        """Free all content of a scope."""
        self.total -= sum(scope.all_contents())

    def keep_scopes(self, owner: BlockOwner, slot: str, scopes: list[ContentScope[int]]) -> None:
        """Keep the scopes, and note the bytes of the last scope."""
        super().keep_scopes(owner, slot, scopes)
        inner = owner.op.block_index()
        if scopes and inner is not None:
            self.kept[inner] = sum(scopes[-1].all_contents())

    def grow_variable(self, place: ScopedVariable, nbytes: int) -> None:
        """Give a variable at least `nbytes` bytes. Paddle allocates the new bytes before the free of the old bytes."""
        before = self.content_of(place) or 0
        if nbytes > before and place not in self.sharing_variables and not self.is_persistable(place):
            self.total += nbytes
            if self.total > self.peak:
                self.peak, self.at = self.total, self.where
            self.total -= before
            self.current_scopes[place.block].held[place.name] = nbytes


class _LateFreeRun(_ExecutorRun):
    """A walk with late frees: content dying in an inner block is freed only at the end of the block."""

    def operator_done(self, block: int, index: int) -> None:
        """Free names only in block 0."""
        if block == 0:
            super().operator_done(block, index)

    def run_block(self, block: int) -> None:
        """Run a block, then free all collected names of the block."""
        super().run_block(block)
        if block:
            for index in range(len(self.program.blocks[block].ops)):
                super().operator_done(block, index)

"""The policy of the design "Memory Optimization", as written in the design's text, as a baseline.

The control flow graph has all operators and back edges. A scan over the operators keeps a pool of dead memory:

    if op.support_inplace():  i -> pool, then pool -> o
    else:                     pool -> o, then i -> pool

Here i are inputs with their last use at the operator, and o its outputs. An operator supports in-place if every output
may safely take every input (`facts.py`): the property belongs to an operator, not to a pair. The text does not define
the choice from the pool; this implementation takes the oldest entry of the same type with enough bytes. Memory is
shared within a scope only, because an iteration keeps its own memory. Excluded are names unknown to the text and
required by Paddle: names on operators with blocks, gradients found by name, persistable variables, and variables other
than dense tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

from sublet.analysis.liveness import LiveRange, LiveRanges, compute_live_ranges, live_in_out
from sublet.base.errors import ModelError
from sublet.base.ranges import merge, overlap
from sublet.base.tensor import DType
from sublet.frontends.paddle.format.program import GRAD, TENSOR, PaddleOp, PaddleProgram
from sublet.frontends.paddle.lives.control_flow import PaddleFlow, PaddlePoint, build_flow
from sublet.frontends.paddle.lives.scopes import ScopedVariable
from sublet.frontends.paddle.operators.effects import facts_from_declaration
from sublet.frontends.paddle.operators.shapes import VariableSizes
from sublet.frontends.paddle.policies.renaming import OperatorPosition, RenamingDraft


def share_names_by_pool(
    program: PaddleProgram, sizes: VariableSizes, keep: Collection[ScopedVariable] = ()
) -> RenamingDraft:
    """Return a draft with names shared through the pool; variables in `keep` stay."""
    flow = build_flow(program, keep)
    pool = _SeedPool(program, flow, sizes, keep)
    for point, (into, out) in zip(flow.points, live_in_out(flow), strict=True):
        if point.kind == "op":
            dying = [place for place in point.uses if place in into and place not in out]
            pool.scan_operator(point, program.blocks[point.block].ops[point.op], dying)
    return pool.draft


@dataclass(slots=True)
class _PooledMemory:
    """A piece of memory, named after its first variable, with the live ranges of all its variables."""

    name: str
    nbytes: int
    dtype: DType | None
    taken: LiveRange


class _SeedPool:
    """The pool of dead memory, with an entry list for each block."""

    def __init__(
        self, program: PaddleProgram, flow: PaddleFlow, sizes: VariableSizes, keep: Collection[ScopedVariable]
    ) -> None:
        self.draft = RenamingDraft(program)
        self.scopes = flow.scopes
        self.sizes = sizes
        self.lives: LiveRanges[ScopedVariable] = compute_live_ranges(flow)
        self.fixed = {place.name for place in keep} | _fixed_names(program)
        self.free: dict[int, list[_PooledMemory]] = {block.index: [] for block in program.blocks}
        self.memory_by_variable: dict[ScopedVariable, _PooledMemory] = {}
        self.mentions: dict[ScopedVariable, list[OperatorPosition]] = {}
        for block in program.blocks:
            for index, op in enumerate(block.ops):
                for name in dict.fromkeys((*op.reads, *op.writes)):
                    self.mentions.setdefault(self.scopes.resolve(block.index, name), []).append((block.index, index))

    def scan_operator(self, point: PaddlePoint, op: PaddleOp, dying: list[ScopedVariable]) -> None:
        """Apply the policy to an operator; `dying` are the operands with their last use here."""
        in_place = self.supports_inplace(point.block, op)
        if in_place:
            self.give_back(point, dying)
        for place in point.defs:
            memory = self.memory_of(point, place)
            if memory is not None and place not in point.uses and len(self.scopes.writers[place]) == 1:
                self.take_for_output(point, place, memory)
        if not in_place:
            self.give_back(point, dying)

    def supports_inplace(self, block: int, op: PaddleOp) -> bool:
        """Return True if every output is known to be safe in place of every input."""
        safe = facts_from_declaration(self.scopes.program, block, op).inplace
        slots = [[slot for slot, names in side.items() if names] for side in (op.inputs, op.outputs)]
        return bool(safe) and all(pair in safe for pair in product(*slots))

    def give_back(self, point: PaddlePoint, dying: list[ScopedVariable]) -> None:
        """Return the memory of dying inputs to the pool (i -> pool)."""
        for place in dying:
            memory = self.memory_of(point, place)
            if memory is not None:
                self.free[point.block].append(memory)

    def take_for_output(self, point: PaddlePoint, place: ScopedVariable, needed: _PooledMemory) -> None:
        """Take memory from the pool for an output (pool -> o).

        The choice is the oldest entry of the same type, with enough bytes and without an overlapping live range.
        """
        free = self.free[point.block]
        for index, memory in enumerate(free):
            fits = memory.dtype == needed.dtype and memory.nbytes >= needed.nbytes
            if fits and not overlap(memory.taken, needed.taken):
                del free[index]
                memory.taken = merge((*memory.taken, *needed.taken))
                self.memory_by_variable[place] = memory
                self.draft.rename(place.name, memory.name, self.mentions[place])
                return

    def memory_of(self, point: PaddlePoint, place: ScopedVariable) -> _PooledMemory | None:
        """Return the memory of a variable of the point's block; None for an excluded variable or an unknown size."""
        if place not in self.memory_by_variable:
            var = self.scopes.program.blocks[place.block].vars.get(place.name)
            if place.block != point.block or place.name in self.fixed or place not in self.scopes.writers:
                return None
            if var is None or var.persistable or var.kind != TENSOR:
                return None
            try:
                nbytes = self.sizes.nbytes(place.block, place.name)
            except ModelError:
                return None
            self.memory_by_variable[place] = _PooledMemory(
                place.name, nbytes, var.dtype, self.lives.slot_ranges.get(place, ())
            )
        return self.memory_by_variable[place]


def _fixed_names(program: PaddleProgram) -> set[str]:
    """Return the names that Paddle looks up at run time."""
    owners = [op for block in program.blocks for op in block.ops if op.block_index() is not None]
    named = {name for op in owners for name in (*op.reads, *op.writes)}
    texts = {
        text for op in owners for attr in op.attrs.values() if isinstance(attr.value, tuple) for text in attr.value
    }
    return named | {f"{name}{GRAD}" for name in named} | {text for text in texts if isinstance(text, str)}

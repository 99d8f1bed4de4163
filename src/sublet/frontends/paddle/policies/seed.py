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

from sublet.analysis.liveness import LiveRanges, Pieces, live_sets, liveness
from sublet.base.errors import ModelError
from sublet.base.ranges import merge, overlap
from sublet.base.tensor import DType
from sublet.frontends.paddle.format.program import GRAD, TENSOR, Op, Program
from sublet.frontends.paddle.lives.flow import Flow, Point, flow
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.effects import facts_declared
from sublet.frontends.paddle.operators.shapes import Sizes
from sublet.frontends.paddle.policies.renaming import At, Draft


def seed(program: Program, sizes: Sizes, keep: Collection[Place] = ()) -> Draft:
    """Return a draft with names shared through the pool; variables in `keep` stay."""
    laid = flow(program, keep)
    pool = _Pool(program, laid, sizes, keep)
    for point, (into, out) in zip(laid.points, live_sets(laid), strict=True):
        if point.kind == "op":
            dying = [place for place in point.uses if place in into and place not in out]
            pool.scan(point, program.blocks[point.block].ops[point.op], dying)
    return pool.draft


@dataclass(slots=True)
class _Memory:
    """A piece of memory, named after its first variable, with the live ranges of all its variables."""

    name: str
    nbytes: int
    dtype: DType | None
    taken: Pieces


class _Pool:
    """The pool of dead memory, with an entry list for each block."""

    def __init__(self, program: Program, laid: Flow, sizes: Sizes, keep: Collection[Place]) -> None:
        self.draft = Draft(program)
        self.scopes = laid.scopes
        self.sizes = sizes
        self.lives: LiveRanges[Place] = liveness(laid)
        self.fixed = {place.name for place in keep} | _fixed(program)
        self.free: dict[int, list[_Memory]] = {block.index: [] for block in program.blocks}
        self.of: dict[Place, _Memory] = {}
        self.mentions: dict[Place, list[At]] = {}
        for block in program.blocks:
            for index, op in enumerate(block.ops):
                for name in dict.fromkeys((*op.reads, *op.writes)):
                    self.mentions.setdefault(self.scopes.place(block.index, name), []).append((block.index, index))

    def scan(self, point: Point, op: Op, dying: list[Place]) -> None:
        """Apply the policy to an operator; `dying` are the operands with their last use here."""
        in_place = self.supports_inplace(point.block, op)
        if in_place:
            self.give(point, dying)
        for place in point.defs:
            memory = self.memory(point, place)
            if memory is not None and place not in point.uses and len(self.scopes.writers[place]) == 1:
                self.take(point, place, memory)
        if not in_place:
            self.give(point, dying)

    def supports_inplace(self, block: int, op: Op) -> bool:
        """Return True if every output is known to be safe in place of every input."""
        safe = facts_declared(self.scopes.program, block, op).inplace
        slots = [[slot for slot, names in side.items() if names] for side in (op.inputs, op.outputs)]
        return bool(safe) and all(pair in safe for pair in product(*slots))

    def give(self, point: Point, dying: list[Place]) -> None:
        """Return the memory of dying inputs to the pool (i -> pool)."""
        for place in dying:
            memory = self.memory(point, place)
            if memory is not None:
                self.free[point.block].append(memory)

    def take(self, point: Point, place: Place, needed: _Memory) -> None:
        """Take memory from the pool for an output (pool -> o).

        The choice is the oldest entry of the same type, with enough bytes and without an overlapping live range.
        """
        free = self.free[point.block]
        for index, memory in enumerate(free):
            fits = memory.dtype == needed.dtype and memory.nbytes >= needed.nbytes
            if fits and not overlap(memory.taken, needed.taken):
                del free[index]
                memory.taken = merge((*memory.taken, *needed.taken))
                self.of[place] = memory
                self.draft.rename(place.name, memory.name, self.mentions[place])
                return

    def memory(self, point: Point, place: Place) -> _Memory | None:
        """Return the memory of a variable of the point's block; None for an excluded variable or an unknown size."""
        if place not in self.of:
            var = self.scopes.program.blocks[place.block].vars.get(place.name)
            if place.block != point.block or place.name in self.fixed or place not in self.scopes.writers:
                return None
            if var is None or var.persistable or var.kind != TENSOR:
                return None
            try:
                nbytes = self.sizes.nbytes(place.block, place.name)
            except ModelError:
                return None
            self.of[place] = _Memory(place.name, nbytes, var.dtype, self.lives.halves.get(place, ()))
        return self.of[place]


def _fixed(program: Program) -> set[str]:
    """Return the names that Paddle looks up at run time."""
    owners = [op for block in program.blocks for op in block.ops if op.block() is not None]
    named = {name for op in owners for name in (*op.reads, *op.writes)}
    texts = {
        text for op in owners for attr in op.attrs.values() if isinstance(attr.value, tuple) for text in attr.value
    }
    return named | {f"{name}{GRAD}" for name in named} | {text for text in texts if isinstance(text, str)}

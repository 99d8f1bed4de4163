"""Levels 0 and 1 of Paddle's published memory optimization transpiler (`fluid.memory_optimize`, 1.x), as a baseline.

Reproduced as published, mistakes included. Each list of operators is a straight line without back edges: block 0 is a
line; the body of a loop or branch, followed by its gradient, is another. A new name of a line takes over the name of a
dead variable of the same type, with an equal shape (level 0) or a shape of no fewer elements (level 1). Excluded are
persistable variables, variables other than dense tensors, names on operators with blocks, gradients of parameters, and
names from the caller.

The levels ignore names made up by Paddle. A gradient block finds the gradient of an input under the input's name +
"@GRAD", so a rename of such a gradient trains wrong (`cond` does).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from sublet.analysis.liveness import LiveRange, LiveRanges, compute_live_ranges, live_in_out
from sublet.base.errors import ModelError
from sublet.base.ranges import merge, overlap
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import EMPTY_NAME, GRAD, TENSOR, PaddleOp, PaddleProgram, PaddleVar
from sublet.integrations.paddle.operators.dialect import facts_from_declaration
from sublet.integrations.paddle.operators.shapes import VariableSizes
from sublet.integrations.paddle.peaks.control_flow import PaddleFlow, PaddlePoint, build_flow
from sublet.integrations.paddle.peaks.scopes import ScopedVariable

# Draft of a program with renamed variables, changed operator by operator.

OperatorPosition = tuple[int, int]
"""The position of an operator: block and index."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """A rename of variable `name` to `taken`, the name of a dead variable, from an operator of a block on."""

    block: int
    op: int
    name: str
    taken: str


class RenamingDraft:
    """A program with a list of renames, applied to the operators."""

    def __init__(self, program: PaddleProgram) -> None:
        self.program = program
        self.ops: dict[OperatorPosition, PaddleOp] = {
            (block.index, index): op for block in program.blocks for index, op in enumerate(block.ops)
        }
        self.renamings: list[Renaming] = []

    def rename(self, name: str, taken: str, ops: Iterable[OperatorPosition]) -> None:
        """Rename `name` to `taken` in the given operators; the first operator defines the name."""
        every = list(ops)
        self.renamings.append(Renaming(*every[0], name, taken))
        for at in every:
            self.ops[at] = self.ops[at].with_names({name: taken})

    def build_program(self) -> PaddleProgram:
        """Return the program with all renames."""
        if not self.renamings:
            return self.program
        blocks = [
            replace(block, ops=tuple(self.ops[block.index, index] for index in range(len(block.ops))))
            for block in self.program.blocks
        ]
        return replace(self.program, blocks=tuple(blocks))


# The policy of the design "Memory Optimization", as written in the design's text, as a baseline.
#
# The control flow graph has all operators and back edges. A scan over the operators keeps a pool of dead memory:
#
#     if op.support_inplace():  i -> pool, then pool -> o
#     else:                     pool -> o, then i -> pool
#
# Here i are inputs with their last use at the operator, and o its outputs. An operator supports in-place if every
# output may safely take every input (`dialect.py`): the property belongs to an operator, not to a pair. The text does
# not define the choice from the pool; this implementation takes the oldest entry of the same type with enough bytes.
# Memory is shared within a scope only, because an iteration keeps its own memory. Excluded are names unknown to the
# text and required by Paddle: names on operators with blocks, gradients found by name, persistable variables, and
# variables other than dense tensors.


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


LEVELS = (0, 1)
OWNERS = ("while", "while_grad", "parallel_do", "parallel_do_grad", "conditional_block", "conditional_block_grad")
PAIRS = (("while", "while_grad"), ("parallel_do", "parallel_do_grad"), ("conditional_block", "conditional_block_grad"))


def share_names_by_level(
    program: PaddleProgram, level: int, skip: Collection[str] = (), *, skip_grads: bool = True
) -> RenamingDraft:
    """Return a draft with names shared by level 0 or 1; names in `skip` stay."""
    draft = RenamingDraft(program)
    skipped = frozenset(skip) | (_gradients_of_parameters(program) if skip_grads else frozenset())
    for line in _straight_lines(program):
        _share_names(draft, line, level, skipped)
    return draft


@dataclass(frozen=True)
class _StraightLine:
    """Operators assumed to run in sequence; the first `forward` operators are no gradients."""

    ops: tuple[OperatorPosition, ...]
    forward: int
    skip: frozenset[str]


@dataclass(frozen=True, slots=True)
class _LinePoint:
    """A program point of a line, for liveness."""

    uses: tuple[str, ...]
    defs: tuple[str, ...]
    kills: tuple[str, ...] = ()


@dataclass(frozen=True)
class _LineFlow:
    """The control flow graph of a line: each point has only the next point as successor."""

    points: tuple[_LinePoint, ...]

    @property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The successors of each point."""
        return tuple((index + 1,) if index + 1 < len(self.points) else () for index in range(len(self.points)))


@dataclass(order=True, slots=True)
class _DeadName:
    """A reusable name of a dead variable; the pool is sorted by number of elements."""

    elements: int
    name: str = field(compare=False)
    dims: tuple[int, ...] = field(compare=False)


def _straight_lines(program: PaddleProgram) -> Iterator[_StraightLine]:
    """Yield block 0, then the inner blocks, each forward block joined with its gradient block."""
    inner = list(_inner_lines(program))
    top = program.blocks[0]
    yield _StraightLine(
        _operator_positions(program, 0), len(top.ops), frozenset().union(*(line.skip for line in inner))
    )
    yield from inner


def _inner_lines(program: PaddleProgram) -> Iterator[_StraightLine]:
    """Yield a line for each block run by a forward operator of block 0."""
    for forward_type, gradient_type in PAIRS:
        owners = {
            op.block_index() or 0: op
            for op in program.blocks[0].ops
            if op.type in (forward_type, gradient_type) and op.block_index()
        }
        gradients = {program.blocks[index].forward: index for index, op in owners.items() if op.type == gradient_type}
        for block, op in owners.items():
            if op.type == forward_type:
                gradient = gradients.get(block)
                named = [op] if gradient is None else [op, owners[gradient]]
                ops = _operator_positions(program, block) + (
                    () if gradient is None else _operator_positions(program, gradient)
                )
                skip = frozenset(name for each in named for name in (*each.reads, *each.writes))
                yield _StraightLine(ops, len(program.blocks[block].ops), skip)


def _operator_positions(program: PaddleProgram, block: int) -> tuple[OperatorPosition, ...]:
    """Return the positions of a block's operators."""
    return tuple((block, index) for index in range(len(program.blocks[block].ops)))


def _share_names(draft: RenamingDraft, line: _StraightLine, level: int, skip: Collection[str]) -> None:
    """Scan a line from first to last operator, and rename each new name to a reusable name."""
    program = draft.program
    points = [
        _LinePoint(*(tuple(dict.fromkeys(side)) for side in (draft.ops[at].reads, draft.ops[at].writes)))
        for at in line.ops
    ]
    sets = [(set(into), set(out)) for into, out in live_in_out(_LineFlow(tuple(points)))]
    named = line.skip | frozenset(skip) | _names_filled_on_cpu(draft, line)
    pool: list[_DeadName] = []
    for position, (block, index) in enumerate(line.ops):
        op, forward = draft.ops[block, index], position < line.forward
        if op.type in OWNERS:
            continue
        for name in dict.fromkeys(op.writes):
            var = _shareable_var(program, block, name, forward, named)
            if var is None or name in op.reads:
                continue
            for place, dead in enumerate(pool):
                other = _find_var(program, block, dead.name, forward)
                if other is None or name == dead.name or other.dtype != var.dtype or not _fits(var.dims, dead, level):
                    continue
                del pool[place]
                draft.rename(name, dead.name, line.ops[position:])
                for live in (each for pair in sets[position:] for each in pair):
                    if name in live:
                        live.remove(name)
                        live.add(dead.name)
                break
        into, out = sets[position]
        for name in sorted(into - out):
            var = _shareable_var(program, block, name, forward, named)
            if var is not None and all(dead.name != name for dead in pool):
                insort(pool, _DeadName(abs(prod(var.dims)), name, var.dims))


def _fits(dims: tuple[int, ...], dead: _DeadName, level: int) -> bool:
    """Return True if a shape may reuse the dead variable.

    Level 0 requires equal shapes. Level 1 also accepts fewer elements, if both or neither have an open first extent.
    """
    if level == 0:
        return dims == dead.dims
    return (dims[0] == -1) == (dead.dims[0] == -1) and abs(prod(dims)) <= dead.elements


def _find_var(program: PaddleProgram, block: int, name: str, forward: bool) -> PaddleVar | None:
    """Return the variable of a name; in a gradient block also a variable of a forward or enclosing block."""
    if forward:
        return program.blocks[block].vars.get(name)
    todo, seen = [block], set()
    while todo:
        at = todo.pop(0)
        if at < 0 or at in seen:
            continue
        seen.add(at)
        if name in program.blocks[at].vars:
            return program.blocks[at].vars[name]
        todo += [program.blocks[at].parent, program.blocks[at].forward]
    return None


def _shareable_var(
    program: PaddleProgram, block: int, name: str, forward: bool, skip: Collection[str]
) -> PaddleVar | None:
    """Return the variable of a name, if the name may be renamed or reused; None otherwise."""
    var = None if name == EMPTY_NAME or name in skip else _find_var(program, block, name, forward)
    return var if var is not None and not var.persistable and var.kind == TENSOR and var.dims else None


def _names_filled_on_cpu(draft: RenamingDraft, line: _StraightLine) -> frozenset[str]:
    """Return the names filled on the CPU on every device (`force_cpu`)."""
    filled = [
        op
        for at in line.ops
        if (op := draft.ops[at]).type == "fill_constant" and (a := op.attrs.get("force_cpu")) and a.value
    ]
    return frozenset(name for op in filled for name in op.writes)


def _gradients_of_parameters(program: PaddleProgram) -> frozenset[str]:
    """Return the gradients of parameters, from the attribute `op_role_var` of the operators of block 0."""
    roles = [attr.value for op in program.blocks[0].ops if (attr := op.attrs.get("op_role_var")) is not None]
    return frozenset(str(name) for role in roles if isinstance(role, tuple) for name in role[1::2])

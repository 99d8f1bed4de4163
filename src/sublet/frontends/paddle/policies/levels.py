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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod

from sublet.analysis.liveness import live_in_out
from sublet.frontends.paddle.format.program import EMPTY_NAME, TENSOR, PaddleProgram, PaddleVar
from sublet.frontends.paddle.policies.renaming import OperatorPosition, RenamingDraft

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

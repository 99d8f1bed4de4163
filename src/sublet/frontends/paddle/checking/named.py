"""What names must be: declared where they are used; told by the owner of a block that takes them from around itself.

The executor makes variables of the former, and orders and frees by the latter. And of types that their operators take:
Paddle looks at those before a run, in blocks too that are never run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sublet.base.errors import Finding
from sublet.base.tensor import DType
from sublet.frontends.paddle.format.program import EMPTY, GRAD, TENSOR, Block, Op, Program

VIEW = "view_slice"
ANY_TYPE = (VIEW, "assign", "share_data", "while", "while_grad", "conditional_block", "conditional_block_grad")
"""Operators that hand on what is of any type."""
WAITING = "depend"
WAITING_TYPES = {DType.F32, DType.F64, DType.I32, DType.I64}
"""Types of the tensor X that goes on after `depend`: from 3.0 on Paddle has no kernel for others. What X waits for may
be of any type."""

Types = tuple[str, frozenset[tuple[str, frozenset[DType | None]]]]
"""An operator by its type and those of its operands, slot by slot."""


def unnamed(original: Program, rewritten: Program) -> list[Finding]:
    """What blocks of a rewritten program take from around them, or leave there, without being told by their owner.

    What the original does not tell either is left alone.
    """
    known = {(block, name) for block, name, _ in _found(original)}
    return [finding for block, name, finding in _found(rewritten) if (block, name) not in known]


def mistyped(original: Program, rewritten: Program) -> Iterator[Finding]:
    """The operators of a rewritten program whose operands are of types that no such operator of the original has."""
    known = {types for *_, types in _types(original)}
    for block, i, op, types in _types(rewritten):
        if op.reads and types not in known and op.type not in ANY_TYPE and not _waits(rewritten, block, op):
            where = f"block {block.index}, op {i} ({op.type})"
            yield Finding("types", where, "has operands of types that no such op of the original program has")


def _types(program: Program) -> Iterator[tuple[Block, int, Op, Types]]:
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            slots = {
                slot: frozenset(_dtype(program, block, name) for name in names) for slot, names in op.inputs.items()
            }
            yield block, i, op, (op.type, frozenset((slot, dtypes) for slot, dtypes in slots.items() if dtypes))


def _waits(program: Program, block: Block, op: Op) -> bool:
    """Whether an operator hands on a tensor of a type for which Paddle can make it wait."""
    tensors = [program.var(block.index, name) for name in op.inputs.get("X", ())]
    return op.type == WAITING and all(
        var is not None and var.kind == TENSOR and var.dtype in WAITING_TYPES for var in tensors
    )


def _dtype(program: Program, block: Block, name: str) -> DType | None:
    var = program.var(block.index, name)
    if var is None and block.forward >= 0:
        var = program.var(block.forward, name)
    return None if var is None else var.dtype


def _found(program: Program) -> Iterator[tuple[int, str, Finding]]:
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            for name in (*op.reads, *op.writes):
                if name not in (EMPTY, "") and not _declared(program, block, name):
                    where = f"block {block.index}, op {i} ({op.type})"
                    what = f"%{name} is declared neither in the block nor in one around it"
                    yield block.index, name, Finding("undeclared", where, what)
            inner = op.block()
            if inner is None:
                continue
            for name, count in Counter(op.inputs.get("X", ())).items():
                if op.type == "while" and count > 1:
                    where = f"block {block.index}, op {i} (while)"
                    what = f"%{name} is an input more than once, and the loop saves each under one name"
                    yield inner, name, Finding("twice", where, what)
            told = {*op.reads, *op.writes, *(f"{name}{GRAD}" for name in op.reads)}
            forward = program.blocks[inner].forward
            told |= set(program.blocks[forward].vars) if forward >= 0 else set()
            names = op.attrs.get("original_output_grad")
            told |= set(map(str, names.value)) if names is not None and isinstance(names.value, tuple) else set()
            for position, name in _free(program, program.blocks[inner]):
                if name not in told and not _private(program, block, i, inner, name):
                    where = f"block {inner}, op {position} ({program.blocks[inner].ops[position].type})"
                    owner = f"op {i} ({op.type}) of block {block.index}"
                    what = f"%{name} comes from around the block, and {owner} does not name it"
                    yield inner, name, Finding("unnamed", where, what)


def _declared(program: Program, block: Block, name: str) -> bool:
    """Whether a name is a variable of the block or of one around it, or of the block whose gradient it is."""
    own = program.home(block.index, name) is not None
    return own or (block.forward >= 0 and program.home(block.forward, name) is not None)


def _private(program: Program, block: Block, at: int, inner: int, name: str) -> bool:
    """Whether only the operators of one block, run within operator `at` of `block`, write and read a variable of that.

    Then there is nothing to order or to free in between. What else names it must come after `at`, and wait for that: it
    reads what `at` is told to write.
    """
    while name not in block.vars and block.parent >= 0:
        around = program.blocks[block.parent]
        at, block = next((i for i, op in enumerate(around.ops) if op.block() == block.index), -1), around
    if name not in block.vars or block.vars[name].persistable or at < 0:
        return False
    naming = {each.index for each in program.blocks for op in each.ops if name in (*op.reads, *op.writes)}
    waiting = set(block.ops[at].writes) - {EMPTY, ""}
    others = [i for i, op in enumerate(block.ops) if name in (*op.reads, *op.writes)]
    late = all(i > at and waiting & {*block.ops[i].reads} for i in others)
    return late and naming - {block.index} == {inner}


def _free(program: Program, block: Block) -> Iterator[tuple[int, str]]:
    """The names in a block that are not its own, nor persist, nor are only looked at for a view: see `Judgement`."""
    for i, op in enumerate(block.ops):
        if op.type == VIEW:
            continue
        for name in dict.fromkeys((*op.reads, *op.writes)):
            var = program.var(block.index, name)
            if name not in (EMPTY, "") and name not in block.vars and not (var is not None and var.persistable):
                yield i, name

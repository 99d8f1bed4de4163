"""Rules for names and types: declaration of each name, captures of blocks, and operand types of operators.

A block may use a name from outside only if the operator that runs the block lists the name: the executor creates
variables from declarations, and orders and frees by the lists. Paddle checks operand types before a run, even in blocks
that never run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sublet.base.errors import Finding
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import EMPTY_NAME, GRAD, TENSOR, PaddleBlock, PaddleOp, PaddleProgram

VIEW = "view_slice"
TYPE_AGNOSTIC = (VIEW, "assign", "share_data", "while", "while_grad", "conditional_block", "conditional_block_grad")
"""Operators for operands of any type."""
DEPEND = "depend"
DEPEND_TYPES = {DType.F32, DType.F64, DType.I32, DType.I64}
"""Types of the operand X of `depend`: since 3.0 Paddle has no kernel for further types. The operands `Dep` may have any
type."""

OperandTypes = tuple[str, frozenset[tuple[str, frozenset[DType | None]]]]
"""The type of an operator, and the types of its operands by slot."""


def unlisted_captures(original: PaddleProgram, rewritten: PaddleProgram) -> list[Finding]:
    """Return a finding for each name captured or left by a block without mention by the block's owner.

    A capture already present in the original gives no finding.
    """
    known = {(block, name) for block, name, _ in _name_findings(original)}
    return [finding for block, name, finding in _name_findings(rewritten) if (block, name) not in known]


def new_operand_types(original: PaddleProgram, rewritten: PaddleProgram) -> Iterator[Finding]:
    """Yield each operator of the rewritten program with a combination of operand types absent from the original."""
    known = {types for *_, types in _operand_types(original)}
    for block, i, op, types in _operand_types(rewritten):
        if (
            op.reads
            and types not in known
            and op.type not in TYPE_AGNOSTIC
            and not _is_supported_depend(rewritten, block, op)
        ):
            where = f"block {block.index}, op {i} ({op.type})"
            yield Finding("types", where, "has operand types that no {op.type} of the original program has")


def _operand_types(program: PaddleProgram) -> Iterator[tuple[PaddleBlock, int, PaddleOp, OperandTypes]]:
    """Yield each operator with its operand types."""
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            slots = {
                slot: frozenset(_dtype(program, block, name) for name in names) for slot, names in op.inputs.items()
            }
            yield block, i, op, (op.type, frozenset((slot, dtypes) for slot, dtypes in slots.items() if dtypes))


def _is_supported_depend(program: PaddleProgram, block: PaddleBlock, op: PaddleOp) -> bool:
    """Return True if the operator is a `depend` on tensors of types with a kernel for `depend`."""
    tensors = [program.find_var(block.index, name) for name in op.inputs.get("X", ())]
    return op.type == DEPEND and all(
        var is not None and var.kind == TENSOR and var.dtype in DEPEND_TYPES for var in tensors
    )


def _dtype(program: PaddleProgram, block: PaddleBlock, name: str) -> DType | None:
    """Return the element type of a name; a gradient block also sees variables of its forward block."""
    var = program.find_var(block.index, name)
    if var is None and block.forward >= 0:
        var = program.find_var(block.forward, name)
    return None if var is None else var.dtype


def _name_findings(program: PaddleProgram) -> Iterator[tuple[int, str, Finding]]:
    """Yield a finding for each undeclared name, duplicate loop input and unlisted capture, with its block and name."""
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            for name in (*op.reads, *op.writes):
                if name not in (EMPTY_NAME, "") and not _is_declared(program, block, name):
                    where = f"block {block.index}, op {i} ({op.type})"
                    what = f"%{name} is declared neither in the block nor in an enclosing block"
                    yield block.index, name, Finding("undeclared", where, what)
            inner = op.block_index()
            if inner is None:
                continue
            for name, count in Counter(op.inputs.get("X", ())).items():
                if op.type == "while" and count > 1:
                    where = f"block {block.index}, op {i} (while)"
                    what = f"%{name} is an input more than once, and the loop saves inputs by name"
                    yield inner, name, Finding("twice", where, what)
            listed = {*op.reads, *op.writes, *(f"{name}{GRAD}" for name in op.reads)}
            forward = program.blocks[inner].forward
            listed |= set(program.blocks[forward].vars) if forward >= 0 else set()
            names = op.attrs.get("original_output_grad")
            listed |= set(map(str, names.value)) if names is not None and isinstance(names.value, tuple) else set()
            for position, name in _free_names(program, program.blocks[inner]):
                if name not in listed and not _is_private_to_block(program, block, i, inner, name):
                    where = f"block {inner}, op {position} ({program.blocks[inner].ops[position].type})"
                    owner = f"op {i} ({op.type}) of block {block.index}"
                    what = f"%{name} is read from an enclosing block, and {owner} does not list it"
                    yield inner, name, Finding("unnamed", where, what)


def _is_declared(program: PaddleProgram, block: PaddleBlock, name: str) -> bool:
    """Return True if the block, an enclosing block, or the forward block of a gradient block declares the name."""
    own = program.declaring_block(block.index, name) is not None
    return own or (block.forward >= 0 and program.declaring_block(block.forward, name) is not None)


def _is_private_to_block(program: PaddleProgram, block: PaddleBlock, at: int, inner: int, name: str) -> bool:
    """Return True if only operators of block `inner`, run within operator `at` of `block`, write and read the variable.

    A private variable needs no order and no free in between. Any further mention must come after `at` and wait for
    `at`: it must read a name written by `at`.
    """
    while name not in block.vars and block.parent >= 0:
        around = program.blocks[block.parent]
        at, block = next((i for i, op in enumerate(around.ops) if op.block_index() == block.index), -1), around
    if name not in block.vars or block.vars[name].persistable or at < 0:
        return False
    naming = {each.index for each in program.blocks for op in each.ops if name in (*op.reads, *op.writes)}
    waiting = set(block.ops[at].writes) - {EMPTY_NAME, ""}
    others = [i for i, op in enumerate(block.ops) if name in (*op.reads, *op.writes)]
    late = all(i > at and waiting & {*block.ops[i].reads} for i in others)
    return late and naming - {block.index} == {inner}


def _free_names(program: PaddleProgram, block: PaddleBlock) -> Iterator[tuple[int, str]]:
    """Yield the free names of a block with their operator index, except persistable names and operands of views."""
    for i, op in enumerate(block.ops):
        if op.type == VIEW:
            continue
        for name in dict.fromkeys((*op.reads, *op.writes)):
            var = program.find_var(block.index, name)
            if name not in (EMPTY_NAME, "") and name not in block.vars and not (var is not None and var.persistable):
                yield i, name

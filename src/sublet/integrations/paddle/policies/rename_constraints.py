"""Rename constraints: the names excluded from renames, with reasons. The renaming passes respect the constraints.

Paddle finds variables by name at run time, and some names do not appear in the program: the gradient of a loop looks up
its input's name + `@GRAD` in the gradient block, and a caller of the executor looks up feeds and fetches. So the rules
apply by name, over all blocks: a name may be renamed only if no rule applies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sublet.integrations.paddle.format.program import (
    EMPTY_NAME,
    GRAD,
    TENSOR,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
)
from sublet.integrations.paddle.operators.dialect import effects_of, facts_of
from sublet.integrations.paddle.peaks.control_flow import maybe_uninitialized_names
from sublet.integrations.paddle.peaks.scopes import PaddleScopes

# Uses of names by the operators of a block and its gradient block, and renames in blocks.


@dataclass(frozen=True, slots=True)
class NameUse:
    """A use of a name by an operator: a read of the bytes, a write, or neither for a use of the shape only.

    `known` is True if the operator has facts and no output is a view of an input; an unknown operator may keep a view.
    """

    at: int
    reads: bool
    writes: bool
    known: bool


def name_uses(program: PaddleProgram, blocks: Collection[int]) -> dict[str, list[NameUse]]:
    """Return every use of every name by the operators of the given blocks, in execution order."""
    uses: dict[str, list[NameUse]] = {}
    for at, op in enumerate(op for block in blocks for op in program.blocks[block].ops):
        for name, mention in _uses_by(op, at):
            uses.setdefault(name, []).append(mention)
    return uses


def is_written_first(uses: Sequence[NameUse]) -> bool:
    """Return True if the first operator to use the name writes the name without a read."""
    return uses[0].writes and not any(mention.reads for mention in uses if mention.at == uses[0].at)


def _uses_by(op: PaddleOp, at: int) -> Iterator[tuple[str, NameUse]]:
    """Yield the uses of names by an operator."""
    does, facts = effects_of(op), facts_of(op.type)
    known = facts.known and not facts.shares
    for names, reads, writes in (
        (does.reads, True, False),
        (does.shapes, False, False),
        (does.writes, False, True),
        (does.adds, True, True),
    ):
        yield from ((name, NameUse(at, reads, writes, known)) for name in names)


def rename_in_blocks(program: PaddleProgram, blocks: Collection[int], names: Mapping[str, str]) -> PaddleProgram:
    """Return the program with renamed names in the given blocks; a block loses the variables of replaced names."""
    if not names:
        return program
    changed = [_rename_in_block(block, names) if block.index in blocks else block for block in program.blocks]
    return replace(program, blocks=tuple(changed))


def _rename_in_block(block: PaddleBlock, names: Mapping[str, str]) -> PaddleBlock:
    """Return a block with renamed names."""
    kept = {name: var for name, var in block.vars.items() if name not in names}
    return replace(block, vars=kept, ops=tuple(op.with_names(names) for op in block.ops))


def rename_constraints(program: PaddleProgram, keep: Collection[str] = ()) -> Mapping[str, str]:
    """Return each name that must stay, with the reason."""
    by_name: dict[str, str] = {EMPTY_NAME: "the name marks a missing operand"}
    for rule in (
        _constraints_by_caller(keep),
        _constraints_by_control_flow(program),
        _constraints_by_variable(program),
        _constraints_by_use(program),
    ):
        for name, reason in rule:
            by_name.setdefault(name, reason)
    for name in maybe_uninitialized_names(program):
        by_name.setdefault(name, "the variable may be read before its first write")
    return MappingProxyType(by_name)


def _constraints_by_caller(keep: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names kept for the caller."""
    for name in keep:
        yield name, "the caller keeps the variable"


def _constraints_by_variable(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names excluded by their variable: kind, size, or several declarations."""
    declared: dict[str, int] = {}
    for block in program.blocks:
        for name, var in block.vars.items():
            yield from ((name, reason) for reason in _variable_reasons(var))
            if declared.setdefault(name, block.index) != block.index:
                yield name, "several blocks declare the name, and Paddle chooses by scope"


def _variable_reasons(var: PaddleVar) -> Iterator[str]:
    """Yield the reasons in the properties of a variable."""
    if var.persistable or var.parameter:
        yield "the variable outlives the run: a weight, or a state of the optimiser"
    if var.kind != TENSOR:
        yield "the variable is not a tensor, but Paddle's record of a loop or a sequence"
    elif any(extent < 0 for extent in var.dims[1:]):
        yield "the size is unknown, even for a known batch"


def _constraints_by_control_flow(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names mentioned by operators with blocks, the gradients of such names, and names in attributes."""
    for block in program.blocks:
        for op in block.ops:
            if owns_blocks(op):
                for name in (*op.reads, *op.writes, *_attribute_texts(op)):
                    yield name, f"{op.type} looks up the name in the scope of its block"
                    yield name + GRAD, f"{op.type} looks up the gradient by name"
            for name in _attribute_texts(op):
                yield name, f"an attribute of {op.type} contains the name"


def _constraints_by_use(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names excluded by their uses: a use outside of the declaring block; no declaration, write or read."""
    blocks_of: dict[str, set[int]] = {}
    read, written = set[str](), set[str]()
    for block in program.blocks:
        for op in block.ops:
            read.update(op.reads)
            written.update(op.writes)
            for name in (*op.reads, *op.writes):
                blocks_of.setdefault(name, set()).add(block.index)
    gradients = PaddleScopes(program).gradients
    for block in program.blocks:
        for name in block.vars:
            other_blocks = blocks_of.get(name, set()) - {block.index, gradients.get(block.index, block.index)}
            if other_blocks:
                yield name, f"block {min(other_blocks)} uses the name, block {block.index} declares it"
    for name in blocks_of:
        if all(name not in block.vars for block in program.blocks):
            yield name, "no block declares the name"
        elif name not in written:
            yield name, "no operator writes the variable: the caller feeds it"
        elif name not in read:
            yield name, "no operator reads the variable: the caller may fetch it"


def owns_blocks(op: PaddleOp) -> bool:
    """Return True if the operator runs a block: a loop, a branch, or the gradient of either."""
    return any(attr.kind in ("BLOCK", "BLOCKS") for attr in op.attrs.values())


def _attribute_texts(op: PaddleOp) -> Iterator[str]:
    """Yield every string in the attributes of an operator: any may be the name of a variable."""
    for attr in op.attrs.values():
        if isinstance(attr.value, str):
            yield attr.value
        elif isinstance(attr.value, tuple):
            yield from (part for part in attr.value if isinstance(part, str))

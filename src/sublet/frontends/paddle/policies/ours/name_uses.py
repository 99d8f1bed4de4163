"""Uses of names by the operators of a block and its gradient block, and renames in blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import PaddleBlock, PaddleOp, PaddleProgram
from sublet.frontends.paddle.operators.effects import effects_of
from sublet.frontends.paddle.operators.facts import facts_of


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

"""Uses of names by the operators of a block and its gradient block, and renames in blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import Block, Op, Program
from sublet.frontends.paddle.operators.effects import effects
from sublet.frontends.paddle.operators.facts import of


@dataclass(frozen=True, slots=True)
class Mention:
    """A use of a name by an operator: a read of the bytes, a write, or neither for a use of the shape only.

    `known` is True if the operator has facts and no output is a view of an input; an unknown operator may keep a view.
    """

    at: int
    reads: bool
    writes: bool
    known: bool


def mentions(program: Program, blocks: Collection[int]) -> dict[str, list[Mention]]:
    """Return every use of every name by the operators of the given blocks, in execution order."""
    uses: dict[str, list[Mention]] = {}
    for at, op in enumerate(op for block in blocks for op in program.blocks[block].ops):
        for name, mention in _of(op, at):
            uses.setdefault(name, []).append(mention)
    return uses


def begins(seen: Sequence[Mention]) -> bool:
    """Return True if the first operator to use the name writes the name without a read."""
    return seen[0].writes and not any(mention.reads for mention in seen if mention.at == seen[0].at)


def _of(op: Op, at: int) -> Iterator[tuple[str, Mention]]:
    """Yield the uses of names by an operator."""
    does, facts = effects(op), of(op.type)
    known = facts.known and not facts.shares
    for names, reads, writes in (
        (does.reads, True, False),
        (does.shapes, False, False),
        (does.writes, False, True),
        (does.adds, True, True),
    ):
        yield from ((name, Mention(at, reads, writes, known)) for name in names)


def renamed(program: Program, blocks: Collection[int], names: Mapping[str, str]) -> Program:
    """Return the program with renamed names in the given blocks; a block loses the variables of replaced names."""
    if not names:
        return program
    changed = [_renamed(block, names) if block.index in blocks else block for block in program.blocks]
    return replace(program, blocks=tuple(changed))


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    """Return a block with renamed names."""
    kept = {name: var for name, var in block.vars.items() if name not in names}
    return replace(block, vars=kept, ops=tuple(op.renamed(names) for op in block.ops))

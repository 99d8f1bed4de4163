"""How the operators of a block, and then those of its gradient block, mention names; and names replaced by others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import Block, Op, Program
from sublet.frontends.paddle.operators.effects import effects
from sublet.frontends.paddle.operators.facts import of


@dataclass(frozen=True, slots=True)
class Mention:
    """A name at one operator: whether its bytes are read there (else only its shape), or written.

    `known` says whether the operator has facts, and none that its output is a view of its input: another may be.
    """

    at: int
    reads: bool
    writes: bool
    known: bool


def mentions(program: Program, blocks: Collection[int]) -> dict[str, list[Mention]]:
    """Every mention of every name by the operators of these blocks, in the order in which they run."""
    found: dict[str, list[Mention]] = {}
    for at, op in enumerate(op for block in blocks for op in program.blocks[block].ops):
        for name, mention in _of(op, at):
            found.setdefault(name, []).append(mention)
    return found


def begins(seen: Sequence[Mention]) -> bool:
    """Whether a name is written before it is read."""
    return seen[0].writes and not any(mention.reads for mention in seen if mention.at == seen[0].at)


def _of(op: Op, at: int) -> Iterator[tuple[str, Mention]]:
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
    """The program with other names in the operators of some blocks; variables that nobody mentions there go."""
    if not names:
        return program
    changed = [_renamed(block, names) if block.index in blocks else block for block in program.blocks]
    return replace(program, blocks=tuple(changed))


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    kept = {name: var for name, var in block.vars.items() if name not in names}
    return replace(block, vars=kept, ops=tuple(op.renamed(names) for op in block.ops))

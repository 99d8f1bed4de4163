"""Draft of a program with renamed variables, changed operator by operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import Op, Program

At = tuple[int, int]
"""The position of an operator: block and index."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """A rename of variable `name` to `taken`, the name of a dead variable, from an operator of a block on."""

    block: int
    op: int
    name: str
    taken: str


class Draft:
    """A program with a list of renames, applied to the operators."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: dict[At, Op] = {
            (block.index, index): op for block in program.blocks for index, op in enumerate(block.ops)
        }
        self.done: list[Renaming] = []

    def rename(self, name: str, taken: str, ops: Iterable[At]) -> None:
        """Rename `name` to `taken` in the given operators; the first operator defines the name."""
        every = list(ops)
        self.done.append(Renaming(*every[0], name, taken))
        for at in every:
            self.ops[at] = self.ops[at].renamed({name: taken})

    def finished(self) -> Program:
        """Return the program with all renames."""
        if not self.done:
            return self.program
        blocks = [
            replace(block, ops=tuple(self.ops[block.index, index] for index in range(len(block.ops))))
            for block in self.program.blocks
        ]
        return replace(self.program, blocks=tuple(blocks))

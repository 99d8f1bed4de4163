"""Renaming the variables of a program, operator by operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import Op, Program

At = tuple[int, int]
"""An operator: its block and its index there."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """From an operator of a block on, a variable goes by the name of another, which is dead."""

    block: int
    op: int
    name: str
    taken: str


class Draft:
    """A program of which operators are renamed one after another."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: dict[At, Op] = {
            (block.index, index): op for block in program.blocks for index, op in enumerate(block.ops)
        }
        self.done: list[Renaming] = []

    def rename(self, name: str, taken: str, ops: Iterable[At]) -> None:
        """A name in operators, the first of which defines it, becomes another."""
        every = list(ops)
        self.done.append(Renaming(*every[0], name, taken))
        for at in every:
            self.ops[at] = self.ops[at].renamed({name: taken})

    def finished(self) -> Program:
        if not self.done:
            return self.program
        blocks = [
            replace(block, ops=tuple(self.ops[block.index, index] for index in range(len(block.ops))))
            for block in self.program.blocks
        ]
        return replace(self.program, blocks=tuple(blocks))

"""Draft of a program with renamed variables, changed operator by operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import PaddleOp, PaddleProgram

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

"""A program of ExecuTorch executed over real bytes, one way through it: each write leaves a mark of its own.

It shares nothing with the judge: no flow, no lives, no steps; only what docs/executorch.md says of instructions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sublet.integrations.executorch.instructions import ExecutorchMethod, JumpIfFalse, KernelCall, ValueMove

ROUNDS = 3

Mark = tuple[int, int]
"""Which write it was, and which byte of the tensor."""


class Executed:
    """One run. `wrong` tells the first tensor that did not hold what was written to it when it was read."""

    def __init__(self, method: ExecutorchMethod, seed: int) -> None:
        self._method, self._random = method, random.Random(seed)
        self._memory: dict[tuple[int, int], Mark] = {}
        self._place = {number: value.place for number, value in enumerate(method.values)}
        self._holds: dict[int, list[Mark | None]] = {}
        self._writes, self._filled = 0, dict[int, int]()
        self._changes = {n for each in method.instructions if isinstance(each, KernelCall) for n in each.arguments}
        self.wrong = ""

    def run(self) -> str:
        """Run to the end, or to the first wrong read, which it names."""
        for number in self._method.inputs:
            self._write(number)
        for number, value in enumerate(self._method.values):
            if value.constant or value.initial:
                self._write(number)
        at, taken = 0, dict[int, int]()
        while at < len(self._method.instructions) and not self.wrong:
            each, at = self._method.instructions[at], at + 1
            if isinstance(each, KernelCall):
                self._kernel(each.operator, each.arguments)
            elif isinstance(each, ValueMove):
                self._name(each.source, each.target)
            elif isinstance(each, JumpIfFalse):
                self._read(each.value)
                if self._jumps(each, at - 1, taken):
                    at = each.to
        for number in self._method.outputs:
            self._read(number)
        return self.wrong

    def _jumps(self, jump: JumpIfFalse, at: int, taken: dict[int, int]) -> bool:
        truth = self._method.values[jump.value].truth
        if jump.to <= at:
            taken[at] = taken.get(at, 0) + 1
            if taken[at] < ROUNDS:
                return True
            taken[at] = 0
            self._filled.clear()
            return False
        if truth is not None and jump.value not in self._changes:
            return not truth
        return self._random.random() < 0.5

    def _kernel(self, operator: str, arguments: Sequence[int]) -> None:
        name = operator.partition(".")[0]
        if name == "executorch_prim::et_view":
            self._name(arguments[0], arguments[2])
        elif name == "executorch_prim::et_copy_index":
            self._read(arguments[1])
            self._fill(arguments[0])
        elif name == "aten::copy_":
            self._read(arguments[1])
            self._write(arguments[0])
        else:
            *read, made = arguments
            written = self._method.values[made].items or (made,)
            outs = len(written)
            if read and self._method.values[read[-1]].items == tuple(written):
                read.pop()
            elif tuple(read[-outs:]) == tuple(written):
                read = read[:-outs]
            for number in (n for each in read for n in (each, *self._method.values[each].items)):
                self._read(number)
            shared = {self._place[n] for n in read if n not in written} & {self._place[n] for n in written} - {None}
            if shared:
                self.wrong = self.wrong or f"{operator} writes over what it reads"
            for number in written:
                self._write(number)

    def _name(self, source: int, target: int) -> None:
        if self._method.values[source].nbytes is not None:
            self._place[target] = self._place[source]
            self._holds[target] = list(self._holds.get(source, []))

    def _write(self, number: int, begin: int = 0, end: int | None = None) -> None:
        nbytes, place = self._method.values[number].nbytes, self._place[number]
        if nbytes is None:
            return
        self._writes += 1
        held = self._holds.setdefault(number, [None] * nbytes)
        for byte in range(begin, nbytes if end is None else end):
            held[byte] = (self._writes, byte)
            if place is not None:
                self._memory[place.memory, place.begin + byte] = (self._writes, byte)

    def _fill(self, number: int) -> None:
        nbytes, row = self._method.values[number].nbytes or 0, self._filled.get(number, 0)
        self._filled[number] = row + 1
        if row == 0:
            self._holds.pop(number, None)
        self._write(number, row * nbytes // ROUNDS, (row + 1) * nbytes // ROUNDS)

    def _read(self, number: int) -> None:
        value, place = self._method.values[number], self._place[number]
        if not value.nbytes or place is None or self.wrong:
            return
        there = [self._memory.get((place.memory, place.begin + byte)) for byte in range(value.nbytes)]
        held = self._holds.get(number)
        if held is None:  # a view: what was last written to exactly its bytes
            whole = there[0] is not None and there == [(there[0][0], byte) for byte in range(value.nbytes)]
            self.wrong = "" if whole else f"{value.name} holds nothing whole"
        elif any(mark is not None and mark != found for mark, found in zip(held, there, strict=True)):
            self.wrong = f"{value.name} does not hold what was written to it"

"""A run in pieces: up to a cut, where somebody looks at what is there, and on from it later."""

from __future__ import annotations

from typing import Any

from sublet.ir.graph import Value
from sublet.plan import bound_to
from sublet.runtime.cuts import CUT
from sublet.runtime.executable import Executable
from sublet.runtime.joining import Guarded
from sublet.runtime.kernel import Array, Call
from sublet.runtime.program import Program


class Pieces:
    """An executable with cuts at its root level, run piece by piece.

    Who runs it puts inputs in their places before the piece that reads them first, and reads what a cut keeps.
    Nothing is checked here, and nothing is told of its state to the executable.
    """

    def __init__(self, executable: Executable) -> None:
        executable.prepare()
        program = executable._program
        assert program is not None
        self._pieces = between_cuts(program)
        self._executable = executable
        self._moved = program.moved
        self._arrays: dict[str, Array] = {}
        self._ended = executable._memory.ended()

    def __len__(self) -> int:
        return len(self._pieces)

    def run(self, number: int) -> None:
        """Run one piece. The pieces before it must have run, since the first began."""
        turn = self._executable._turn
        with turn.own, turn.shared(), turn.running(self._executable.graph.name):
            if not number:
                self._moved.nbytes = 0
            for call in self._pieces[number]:
                call()

    def array(self, value: Value) -> Array:
        """Where a value lies before the end."""
        found = self._arrays.get(value.name)
        if found is None:
            memory = self._executable._memory
            found = memory.here().array(value)
            if value.name not in memory.pointers:  # what these stand for depends on the run
                self._arrays[value.name] = found
        return found

    def result(self, value: Value) -> Array:
        """Where an output lies at the end."""
        return self._ended.array(value)


def between_cuts(program: Program) -> list[tuple[Call, ...]]:
    """The calls of a program, piece by piece."""
    pieces: list[list[Call]] = [[]]
    for call in program.calls:
        if isinstance(call, Guarded) and call.nodes[0].op == CUT:
            pieces.append([])
        else:
            pieces[-1].append(call)
    return [tuple(piece) for piece in pieces]


def overwritten(executable: Executable, value: Value) -> Any:
    """The storage of a value that the caller bound."""
    return executable._memory.raw(bound_to(value.name))

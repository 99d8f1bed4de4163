"""Resumable execution: run a program up to a suspension point, and continue later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.ir.graph import Node, Value
from sublet.ops.op import SUSPEND
from sublet.plan import bound_storage_name
from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Call, Kernel, Operand
from sublet.runtime.program import BoundProgram


class ResumableExecutable:
    """An executable with suspension points at its root level, run piece by piece.

    The caller writes inputs to their storages before the first piece reading them, and reads saved values at the
    suspension points. The class checks nothing, and does not update the state of the executable.
    """

    def __init__(self, executable: Executable) -> None:
        program = executable.bound_program()
        self._pieces = calls_between_suspensions(program)
        self._executable = executable
        self._moved = program.moved
        self._arrays: dict[str, Array] = {}
        self._ended = executable.planned_memory.places_after_run()

    def __len__(self) -> int:
        return len(self._pieces)

    def run(self, number: int) -> None:
        """Run one piece. The preceding pieces must have run, since the first began."""
        turn = self._executable.planned_memory.locks
        with turn.own, turn.shared_lock(), turn.running(self._executable.graph.name):
            if not number:
                self._moved.nbytes = 0
            for call in self._pieces[number]:
                call()

    def array(self, value: Value) -> Array:
        """Return the array of a value before the end of the run."""
        found = self._arrays.get(value.name)
        if found is None:
            memory = self._executable.planned_memory
            found = memory.places_at().array(value)
            if value.name not in memory.pointers:  # the binding of a renamed carry changes during the run
                self._arrays[value.name] = found
        return found

    def result(self, value: Value) -> Array:
        """Return the array of an output after the last piece."""
        return self._ended.array(value)


def calls_between_suspensions(program: BoundProgram) -> list[tuple[Call, ...]]:
    """Return the calls of a program, grouped by suspension points."""
    pieces: list[list[Call]] = [[]]
    for call in program.calls:
        if isinstance(call, ErrorContext) and call.nodes[0].op == SUSPEND:
            pieces.append([])
        else:
            pieces[-1].append(call)
    return [tuple(piece) for piece in pieces]


def bound_storage_of(executable: Executable, value: Value) -> Any:
    """Return the storage of a value bound by the caller."""
    return executable.planned_memory.raw(bound_storage_name(value.name))


@dataclass(frozen=True)
class SuspensionBackend:
    """The backend of suspension points."""

    name: str = "cut"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return a kernel without work for a suspension point; None for other nodes."""
        return _SuspensionKernel() if node.op == SUSPEND else None


@dataclass(frozen=True)
class _SuspensionKernel:
    """The kernel of a suspension point: a separate call that does nothing."""

    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return lambda: None

"""A run in pieces: up to a cut, where somebody looks at what is there, and on from it later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, register
from sublet.plan import bound_to
from sublet.runtime.executable import Executable
from sublet.runtime.joining import Guarded
from sublet.runtime.kernel import Array, Call, Kernel, Operand

CUT = "cut.here"
"""The op of a node that computes nothing: what it reads is there when a run has come to it."""

register("cut", lambda name: Op(name, pure=False, outputs=(0, 0)))


@dataclass(frozen=True)
class Cuts:
    """The backend of cuts."""

    name: str = "cut"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Does nothing, as a call of its own."""
        return _Cut() if node.op == CUT else None


@dataclass(frozen=True)
class _Cut:
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return lambda: None


class Pieces:
    """An executable with cuts at its root level, run piece by piece.

    Who runs it puts inputs in their places before the piece that reads them first, and reads what a cut keeps.
    Nothing is checked here, and nothing is told of its state to the executable.
    """

    def __init__(self, executable: Executable) -> None:
        executable.prepare()
        program = executable._program
        assert program is not None
        pieces: list[list[Call]] = [[]]
        for call in program.calls:
            if isinstance(call, Guarded) and call.nodes[0].op == CUT:
                pieces.append([])
            else:
                pieces[-1].append(call)
        self._pieces = [tuple(piece) for piece in pieces]
        self._executable = executable
        self._moved = program.moved
        self._arrays: dict[str, Array] = {}
        self._ended = executable._memory.ended()

    def __len__(self) -> int:
        return len(self._pieces)

    def run(self, number: int) -> None:
        """Run one piece. The pieces before it must have run, since the first began."""
        with self._executable._lock:
            if not number:
                self._moved.nbytes = 0
            for call in self._pieces[number]:
                call()

    def array(self, value: Value) -> Array:
        """Where a value lies before the end."""
        found = self._arrays.get(value.name)
        if found is None:
            found = self._arrays[value.name] = self._executable._memory.here().array(value)
        return found

    def result(self, value: Value) -> Array:
        """Where an output lies at the end."""
        return self._ended.array(value)


def overwritten(executable: Executable, value: Value) -> Any:
    """The storage of a value that the caller bound."""
    return executable._memory.raw(bound_to(value.name))

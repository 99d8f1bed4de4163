"""Calls that follow one another with nothing to decide between them: they may be recorded, and replayed as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sublet.runtime.backends.torch.kernel import torch
from sublet.runtime.calls import InTurn
from sublet.runtime.kernel import Call


class Recorder(Protocol):
    """Makes one call of many, which does again what they did, at the same addresses, without asking Python."""

    def record(self, call: Call) -> Call:
        """Do once what a call does, and give what does it again."""


class Part:
    """A call that may be one of a stretch."""

    __slots__ = ("call", "recorder")

    def __init__(self, call: Call, recorder: Recorder | None = None) -> None:
        self.call, self.recorder = call, recorder

    def __call__(self) -> None:
        with torch().inference_mode():
            self.call()

    def joined(self, following: Sequence[Call]) -> tuple[Call, int]:
        """One call for this one and all of the following that may be of the same stretch."""
        parts = [self]
        for other in following:
            if not isinstance(other, Part) or other.recorder is not self.recorder:
                break
            parts.append(other)
        return Stretch([part.call for part in parts], self.recorder), len(parts) - 1


class Stretch(InTurn):
    """Several calls as one, recorded at the second run: in the first one libraries set up, and results are watched."""

    __slots__ = ("_recorder", "_replay", "_run_before")

    def __init__(self, calls: Sequence[Call], recorder: Recorder | None) -> None:
        super().__init__(calls)
        self._recorder, self._run_before = recorder, False
        self._replay: Call | None = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        if self._recorder is not None and self._run_before:
            self._replay = self._recorder.record(self._run)
        else:
            self._run()
        self._run_before = True

    def _run(self) -> None:
        with torch().inference_mode():
            super().__call__()

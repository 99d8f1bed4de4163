"""Graph segments: successive calls without control flow in between, recorded once and replayed as a single call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sublet.runtime.backends.torch.kernel import torch
from sublet.runtime.calls import CallSequence
from sublet.runtime.kernel import Call


class CallRecorder(Protocol):
    """A recorder of calls, such as a CUDA graph: replays a call's device work at the same addresses without Python."""

    def record(self, call: Call) -> Call:
        """Run `call` once and return a call repeating the same work."""


class SegmentCall:
    """A call that may become part of a graph segment."""

    __slots__ = ("call", "recorder")

    def __init__(self, call: Call, recorder: CallRecorder | None = None) -> None:
        self.call, self.recorder = call, recorder

    def __call__(self) -> None:
        with torch().inference_mode():
            self.call()

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        """Merge the call with following calls of the same recorder; return the segment and the number merged."""
        parts = [self]
        for other in following:
            if not isinstance(other, SegmentCall) or other.recorder is not self.recorder:
                break
            parts.append(other)
        return GraphSegment([part.call for part in parts], self.recorder), len(parts) - 1


class GraphSegment(CallSequence):
    """A sequence of calls as a single call, recorded at the second run.

    The first run is not recorded: libraries initialise and the calls verify results.
    """

    __slots__ = ("_recorder", "_replay", "_run_before")

    def __init__(self, calls: Sequence[Call], recorder: CallRecorder | None) -> None:
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

"""Loops of Python's in remembered functions: every round is recorded, and somebody should say so before it hurts."""

from __future__ import annotations

import warnings
from collections import Counter

from sublet.nn.lines import Line, line_of

MOST = 1000
"""Rounds of a loop of Python's that are recorded without a word."""


class Unrolled:
    """How often each place of the user's program was recorded in a call."""

    def __init__(self) -> None:
        self._times: Counter[Line] = Counter()

    def note(self, line: Line | None) -> Line | None:
        """The line, once more; warns when it is more often than is reasonable."""
        if line is not None:
            self._times[line] += 1
            if self._times[line] == MOST + 1:
                warnings.warn(
                    f"{line_of(line)}: more than {MOST:,} rounds of a loop of Python's are recorded one by one: "
                    "d.while_ records a loop as one command",
                    stacklevel=2,
                )
        return line

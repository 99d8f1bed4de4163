"""A warning for Python loops in jit functions: every iteration is recorded as separate steps."""

from __future__ import annotations

import warnings
from collections import Counter

from sublet.nn.source_location import CodePosition, format_position

MAX_SILENT_ITERATIONS = 1000
"""Steps recorded for one line of a call without a warning; the warning comes once, at the next step."""


class IterationCounter:
    """The number of steps recorded in a call for each line of the user's program."""

    def __init__(self) -> None:
        self._times: Counter[CodePosition] = Counter()

    def note(self, line: CodePosition | None) -> CodePosition | None:
        """Count a step at a line, and return the line; warn once beyond MAX_SILENT_ITERATIONS."""
        if line is not None:
            self._times[line] += 1
            if self._times[line] == MAX_SILENT_ITERATIONS + 1:
                warnings.warn(
                    f"{format_position(line)}: a Python loop of more than {MAX_SILENT_ITERATIONS:,} iterations is "
                    "recorded step by step: d.while_ records a loop as one command",
                    stacklevel=2,
                )
        return line

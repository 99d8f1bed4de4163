"""Which line of the user's program is running: nodes and mistakes are told by it."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = str(Path(__file__).parent.parent)


def user_line() -> str:
    """The innermost running line outside this package, as "file:line"; "" when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) and not name.endswith("contextlib.py"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def at_line(message: str) -> str:
    """The message, with the user's line before it."""
    line = user_line()
    return f"{line}: {message}" if line else message

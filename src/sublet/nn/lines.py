"""Which line of the user's program is running: nodes and mistakes are told by it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = str(Path(__file__).parent.parent)


Line = tuple[CodeType, int]
"""Code of the user's, and the position in it that runs."""

_THEIRS: dict[str, bool] = {}
"""Whether a file is the user's, of those that were met so far."""


def user_code() -> Line | None:
    """What runs innermost outside this package; None when there is nothing. `line_of` tells it in words."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        theirs = _THEIRS.get(name)
        if theirs is None:
            theirs = _THEIRS[name] = not name.startswith(PACKAGE) and not name.endswith("contextlib.py")
        if theirs:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(code: Line | None) -> str:
    """What `user_code` told, as "file:line"; "" for None."""
    if code is None:
        return ""
    running, at = code
    lines = (line for begin, end, line in running.co_lines() if begin <= at < end and line is not None)
    return f"{running.co_filename}:{next(lines, running.co_firstlineno)}"


def user_line() -> str:
    """The innermost running line outside this package, as "file:line"; "" when there is none."""
    return line_of(user_code())


def at_line(message: str) -> str:
    """The message, with the user's line before it."""
    line = user_line()
    return f"{line}: {message}" if line else message

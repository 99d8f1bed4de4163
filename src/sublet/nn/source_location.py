"""The running line of the user's program, used for the source of nodes and for messages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = str(Path(__file__).parent.parent)


CodePosition = tuple[CodeType, int]
"""A position in the user's program: code object and byte offset of the instruction."""

_IS_USER_FILE: dict[str, bool] = {}
"""Cache: True for a file of the user's, False for a file of this package."""


def user_position() -> CodePosition | None:
    """Return the innermost running position outside of the package; None without a position.

    `format_position` converts the position to text.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        is_user_file = _IS_USER_FILE.get(name)
        if is_user_file is None:
            is_user_file = _IS_USER_FILE[name] = not name.startswith(PACKAGE) and not name.endswith("contextlib.py")
        if is_user_file:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def format_position(code: CodePosition | None) -> str:
    """Return a position as "file:line"; "" for None."""
    if code is None:
        return ""
    running, at = code
    lines = (line for begin, end, line in running.co_lines() if begin <= at < end and line is not None)
    return f"{running.co_filename}:{next(lines, running.co_firstlineno)}"


def user_line() -> str:
    """Return the innermost running line outside of this package as "file:line"; "" without a line."""
    return format_position(user_position())


def at_line(message: str) -> str:
    """Return the message, with the user's line in front."""
    line = user_line()
    return f"{line}: {message}" if line else message

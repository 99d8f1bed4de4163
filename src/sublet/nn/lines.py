"""Which line of the user's program is running: nodes and mistakes are told by it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

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


_OURS: set[int] = set()
"""The code of this package that was met so far, by its identity: it stays."""


def user_code() -> tuple[CodeType, int] | None:
    """The innermost running line outside this package, cheaper than `user_line`: `line_of` tells it in words."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if id(code) not in _OURS:
            name = code.co_filename
            if not name.startswith(PACKAGE) and not name.endswith("contextlib.py"):
                return code, frame.f_lineno
            if name.startswith(PACKAGE):
                _OURS.add(id(code))
        frame = frame.f_back
    return None


def line_of(code: tuple[CodeType, int] | None) -> str:
    """What `user_code` told, as "file:line"; "" for None."""
    return "" if code is None else f"{code[0].co_filename}:{code[1]}"

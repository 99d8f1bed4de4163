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


_OURS: dict[str, bool] = {}
"""By name of a file, whether it is of this package."""


def user_code() -> tuple[CodeType, int] | None:
    """The innermost running line outside this package, cheaper than `user_line`: `line_of` tells it in words."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _OURS.get(name)
        if ours is None:
            ours = _OURS[name] = name.startswith(PACKAGE) or name.endswith("contextlib.py")
        if not ours:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def line_of(code: tuple[CodeType, int] | None) -> str:
    """What `user_code` told, as "file:line"; "" for None."""
    return "" if code is None else f"{code[0].co_filename}:{code[1]}"

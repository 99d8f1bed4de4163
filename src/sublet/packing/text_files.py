"""Text files, read with clear errors and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from sublet.errors import ProblemError


def read_text(path: Path) -> str:
    """The text of a file; ProblemError when it cannot be read, or is not text."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader and no failure ever sees half of it.

    Raises ProblemError when it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(text.encode())  # a pipe or terminal cannot be replaced
            return
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(text.encode())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, UnicodeEncodeError) as error:
        raise ProblemError(f"{path}: cannot be written: {error}") from error

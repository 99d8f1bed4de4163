"""Files, read with clear errors and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import Any

from sublet.base.errors import SubletError


def read_bytes(path: str | Path, error: type[SubletError]) -> bytes:
    """The bytes of a file. Raises `error` when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror or cause}") from cause


def read_text(path: str | Path, error: type[SubletError]) -> str:
    """The text of a file. Raises `error` when it cannot be read, or is not text."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as cause:
        if isinstance(cause, UnicodeDecodeError):
            raise error(f"{path}: not a text file (byte {cause.start} is not UTF-8)") from cause
        raise error(f"{path}: cannot be read: {getattr(cause, 'strerror', None) or cause}") from cause


def write(path: str | Path, content: str | bytes, error: type[SubletError] = SubletError) -> None:
    """Replace a file in one step, so that no reader and no failure ever sees half of it.

    Raises `error` when it cannot be written.
    """
    parts = (part.encode() if isinstance(part, str) else part for part in (content,))  # what cannot be encoded is told
    write_parts(path, parts, error)


def write_parts(path: str | Path, parts: Iterable[Any], error: type[SubletError] = SubletError) -> None:
    """The same, from bytes or arrays of bytes one after another."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            with Path(path).open("wb") as pipe:  # a pipe or terminal cannot be replaced
                pipe.writelines(parts)
            return
        target = Path(path).resolve()
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        _remove_partials(target)
        try:
            with partial.open("wb") as file:
                file.writelines(parts)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as cause:
        raise error(f"{path}: cannot be written: {getattr(cause, 'strerror', None) or cause}") from cause


def _remove_partials(target: Path) -> None:
    """Remove what writers of the same file left that were killed: partial files of processes that are gone."""
    for left in target.parent.glob(f".{escape(target.name)}.*.partial"):
        number = left.name.removeprefix(f".{target.name}.").removesuffix(".partial")
        if number.isascii() and number.isdigit() and not _is_running(int(number)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """True unless the process is known to be gone."""
    if os.name != "posix":  # elsewhere os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's process
        return True
    return True


def make_folder(path: Path) -> None:
    """The folder, and those around it, made where they are missing. Raises SubletError when that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise SubletError(f"{path}: cannot be made a folder: {cause.strerror or cause}") from cause

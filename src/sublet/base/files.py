"""File access with clear errors and atomic writes, and a parser for untrusted JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import Any

from sublet.base.errors import SubletError


def read_bytes(path: str | Path, error: type[SubletError]) -> bytes:
    """Return the bytes of a file. Raises `error` for an unreadable file."""
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror or cause}") from cause


def read_text(path: str | Path, error: type[SubletError]) -> str:
    """Return the text of a file. Raises `error` for a file that cannot be read, or is not UTF-8."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as cause:
        if isinstance(cause, UnicodeDecodeError):
            raise error(f"{path}: not a text file (byte {cause.start} is not UTF-8)") from cause
        raise error(f"{path}: cannot be read: {getattr(cause, 'strerror', None) or cause}") from cause


def write(path: str | Path, content: str | bytes, error: type[SubletError] = SubletError) -> None:
    """Replace a file in one step: neither a reader nor a failure leaves a half-written file.

    Raises `error` if the write fails.
    """
    # A generator: encoding errors occur inside `write_parts`, which reports them as `error`.
    parts = (part.encode() if isinstance(part, str) else part for part in (content,))
    write_parts(path, parts, error)


def write_parts(path: str | Path, parts: Iterable[Any], error: type[SubletError] = SubletError) -> None:
    """Replace a file in one step by consecutive bytes or arrays of bytes. Raises `error` if the write fails."""
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
    """Remove partial files of the same target left by dead processes."""
    for left in target.parent.glob(f".{escape(target.name)}.*.partial"):
        number = left.name.removeprefix(f".{target.name}.").removesuffix(".partial")
        if number.isascii() and number.isdigit() and not _is_running(int(number)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """True unless the process is known to be gone."""
    if os.name != "posix":  # on Windows os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True


def make_folder(path: Path) -> None:
    """Create a folder with its missing parents. Raises SubletError on failure."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise SubletError(f"{path}: cannot be created as a folder: {cause.strerror or cause}") from cause


# A parser for untrusted JSON: bounded memory, no repeated keys.

MOST_VALUES = 4 << 20
"""Values in one text. A parsed value takes 30 to 240 bytes, so a text takes at most 1 GB. `parse_json` refuses a text
with more values before parsing. The plan of a program with 100,000 nodes has about 3 million values."""


def parse_json(text: str | bytes, source: str, error: type[Exception], most_values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON, as text or as UTF-8 bytes.
        source: the name of the text in errors.
        error: the type of exception to raise.
        most_values: the largest number of values allowed in the text.

    Raises:
        error: for invalid JSON, too deep nesting, a repeated key of an object, or too many values.
    """
    if count_values(text) > most_values:
        raise error(f"{source}: has more than {most_values:,} JSON values, the limit of Sublet")
    try:
        plain = text if isinstance(text, str) else text.decode()  # `json` would accept UTF-16 and UTF-32 as well
        return json.loads(plain, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as cause:
        raise error(f"{source}: is not valid JSON: {str(cause)[:200]}") from None


def count_values(text: str | bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, without parsing the text."""
    if isinstance(text, bytes):
        return 1 + sum(map(text.count, (b"{", b"[", b",")))
    return 1 + sum(map(text.count, "{[,"))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict. Raises ValueError for a repeated key."""
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"the key {key[:40]!r} occurs twice in one object")
        record[key] = value
    return record

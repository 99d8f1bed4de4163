"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from sublet.errors import SubletError


def save(path: Path, content: bytes) -> None:
    """Write to a file beside `path` first, then take its place. Raises SubletError when that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise SubletError(f"{path}: cannot be written ({error})") from error

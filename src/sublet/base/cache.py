"""A cache on disk: folders by key, written whole or not at all, with eviction of the least recently used folders.

The cache holds only reproducible data. An unwritable cache behaves like an empty cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

LIMIT_BYTES = 8 << 30
"""Bytes of all entries of one cache. The variable SUBLET_CACHE_BYTES overrides the limit; 0 turns the cache off."""

MOST_ENTRIES = 1 << 14
"""Entries of one cache. Beyond this number the cache evicts the least recently used entries, even small entries."""


def cache_root() -> Path:
    """Return the folder of all caches: SUBLET_CACHE, or `sublet` below the user's cache folder."""
    chosen = os.environ.get("SUBLET_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sublet"


def limit_bytes() -> int:
    """Return the largest size of a cache in bytes."""
    text = os.environ.get("SUBLET_CACHE_BYTES", "")
    return int(text) if text.isascii() and text.isdigit() else LIMIT_BYTES


def find_entry(name: str, key: str) -> Path | None:
    """Return the folder of `key` in the cache called `name`, and mark the folder as used now; None if absent."""
    folder = cache_root() / name / key
    try:
        os.utime(folder)
    except OSError:
        return None
    return folder


def add_entry(name: str, key: str, fill: Callable[[Path], None]) -> Path | None:
    """Return the folder of `key`, filled by `fill` unless another process was faster; None if the cache cannot keep it.

    Readers see only complete folders. All exceptions of `fill` except for OSError pass to the caller.
    """
    root = cache_root() / name
    limit = limit_bytes()
    if not limit:
        return None
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=root, prefix=".partial-", ignore_cleanup_errors=True) as scratch:
            fresh = Path(scratch) / key
            fresh.mkdir()
            fill(fresh)
            if _size(fresh) > limit:
                return None
            try:
                fresh.rename(root / key)
            except OSError:  # the entry exists already
                return find_entry(name, key)
        _evict(root, limit, keep=key)
    except OSError:
        return None
    return root / key


def remove_entry(name: str, key: str) -> None:
    """Remove a broken entry."""
    shutil.rmtree(cache_root() / name / key, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _evict(root: Path, limit: int, keep: str) -> None:
    """Remove the least recently used entries until the rest fits; other processes may evict concurrently."""
    ages: list[tuple[float, str, int]] = []
    for folder in root.iterdir():
        if not folder.name.startswith("."):
            try:
                ages.append((folder.stat().st_mtime, folder.name, _size(folder)))
            except OSError:  # another process removed the folder
                continue
    total = sum(size for _, _, size in ages)
    count = len(ages)
    for _, key, size in sorted(ages):
        if (total > limit or count > MOST_ENTRIES) and key != keep:
            shutil.rmtree(root / key, ignore_errors=True)
            total, count = total - size, count - 1

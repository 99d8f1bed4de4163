"""The cache on disk: whole entries, bounded, harmless when it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sublet.base import cache
from sublet.base.cache import add_entry, cache_root, find_entry, remove_entry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(content: bytes) -> object:
    return lambda fresh: (fresh / "file").write_bytes(content)


def test_an_entry_is_found_until_it_is_removed() -> None:
    assert find_entry("things", "a") is None
    made = add_entry("things", "a", fill(b"one"))
    assert made is not None
    assert find_entry("things", "a") == made == cache_root() / "things" / "a"
    assert (made / "file").read_bytes() == b"one"
    remove_entry("things", "a")
    assert find_entry("things", "a") is None


def test_the_first_of_two_writers_wins() -> None:
    add_entry("things", "a", fill(b"first"))

    def slow(fresh: Path) -> None:
        (fresh / "file").write_bytes(b"second")

    kept = add_entry("things", "a", slow)
    assert kept is not None
    assert (kept / "file").read_bytes() == b"first"
    assert [path.name for path in kept.parent.iterdir()] == ["a"]


def test_a_failure_leaves_nothing(folder: Path) -> None:
    def fail(fresh: Path) -> None:
        (fresh / "file").write_bytes(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        add_entry("things", "a", fail)
    assert list((folder / "things").iterdir()) == []


def test_the_oldest_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "250")
    for age, key in enumerate(("a", "b", "c")):
        made = add_entry("things", key, fill(bytes(100)))
        assert made is not None
        if key != "c":
            os.utime(made, (1000 + age, 1000 + age))
    assert [find_entry("things", key) is not None for key in ("a", "b", "c")] == [False, True, True]
    assert add_entry("things", "large", fill(bytes(300))) is None


def test_few_entries_are_kept_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_ENTRIES", 2)
    for age, key in enumerate(("a", "b", "c")):
        made = add_entry("small", key, fill(bytes(1)))
        assert made is not None
        if key != "c":
            os.utime(made, (1000 + age, 1000 + age))
    assert [find_entry("small", key) is not None for key in ("a", "b", "c")] == [False, True, True]


def test_no_cache_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path / "file"))
    assert add_entry("things", "a", fill(b"one")) is None
    assert find_entry("things", "a") is None
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")
    assert add_entry("things", "a", fill(b"one")) is None

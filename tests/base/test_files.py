"""Files are written whole or not at all, and errors name them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.base.errors import ModelError, PlanError
from sublet.base.files import read_text, write


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PlanError, match=r"plan\.json: cannot be written: No space left"):
        write(path, b"new", PlanError)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_keeps_links_and_devices(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    write("/dev/null", b"gone")


def test_reading_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"ab\xff")
    with pytest.raises(ModelError, match="byte 2 is not UTF-8"):
        read_text(path, ModelError)
    with pytest.raises(ModelError, match="cannot be read"):
        read_text(tmp_path, ModelError)


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a[1].json"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, alive = (tmp_path / f".{path.name}.{pid}.partial" for pid in (gone.pid, os.getppid()))
    other, odd = tmp_path / f".b.json.{gone.pid}.partial", tmp_path / f".{path.name}.x.partial"
    for each in (left, alive, other, odd):
        each.write_bytes(b"half")
    write(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, alive, other, odd])

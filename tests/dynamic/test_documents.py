"""What docs/dynamic.md shows runs as it is written; the example trains."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_document_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    known: dict[str, Any] = {}
    for snippet in PYTHON.findall((ROOT / "docs/dynamic.md").read_text(encoding="utf-8")):
        exec(compile(snippet, "docs/dynamic.md", "exec"), known)
    assert known["step"].recorded_calls <= 2
    assert "calls replayed" in capsys.readouterr().out


def test_the_example_learns_to_read_digits(capsys: pytest.CaptureFixture[str]) -> None:
    example = run_path(str(ROOT / "examples/digits.py"))
    assert example["main"](epochs=2) > 0.95
    assert example["step"].planned <= 4
    assert "2 plans" in capsys.readouterr().out

"""What docs/modules.md shows runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_document_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for snippet in PYTHON.findall((ROOT / "docs/modules.md").read_text(encoding="utf-8")):
        exec(compile(snippet, "docs/modules.md", "exec"), known)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "['net/0/weight', 'net/1/scale', 'net/1/bias']"
    assert out[1].startswith("['tower/stem/weight', 'tower/blocks/0/0/weight'")
    assert known["tagger"].copied_bytes == 0

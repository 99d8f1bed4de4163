"""What docs/training.md and the README show of training runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import Cli

ROOT = Path(__file__).parent.parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAINING = (ROOT / "docs/training.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_document_of_training_runs_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[str, Any] = {}
    for snippet in PYTHON.findall(TRAINING):
        exec(compile(snippet, "docs/training.md", "exec"), known)
    assert known["serve"].copied_bytes == 0
    before = known["meta"].state("w")
    known["meta"](given=np.ones((2, 10, 3), np.float32), wanted=np.ones((2, 10, 1), np.float32))
    assert not np.array_equal(before, known["meta"].state("w"))
    for line in re.findall(r"^    sublet (plan .*)$", TRAINING, re.MULTILINE):
        status, out, _ = Cli(monkeypatch, capsys)(*line.split())
        assert status == 0
        assert "batch_norm" in out
    assert "<title>" in Path("step.html").read_text(encoding="utf-8")


def test_the_step_that_the_readme_shows_learns() -> None:
    (snippet,) = [found for found in PYTHON.findall((ROOT / "README.md").read_text("utf-8")) if "train_step" in found]
    random = np.random.default_rng(0)
    known: dict[str, Any] = {
        "images": random.normal(size=(64, 1, 8, 8)).astype(np.float32),
        "digits": random.integers(0, 10, 64),
    }
    exec(compile("import sublet\n" + snippet, "README.md", "exec"), known)
    given = {"x": known["images"], "labels": known["digits"]}
    losses = [known["train"](given)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1

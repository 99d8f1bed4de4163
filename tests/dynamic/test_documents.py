"""What docs/dynamic.md shows runs as it is written; the example trains."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn

ROOT = Path(__file__).parent.parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_document_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for snippet in PYTHON.findall((ROOT / "docs/dynamic.md").read_text(encoding="utf-8")):
        exec(compile(snippet, "docs/dynamic.md", "exec"), known)
    assert known["step"].recorded_calls <= 2
    out = capsys.readouterr().out
    assert "calls replayed" in out
    assert "nn.sgd(" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "step.sublet"]


def test_the_example_learns_to_read_digits_as_the_static_graph_does(capsys: pytest.CaptureFixture[str]) -> None:
    source = (ROOT / "examples/digits.py").read_text(encoding="utf-8")
    assert source.count("\n") <= 40
    example = run_path(str(ROOT / "examples/digits.py"))
    accuracy = example["main"](epochs=3)
    assert accuracy > 0.95
    assert accuracy >= _static(example, epochs=3) - 0.02
    assert example["step"].planned <= 4
    assert "2 plans" in capsys.readouterr().out


def _static(example: dict[str, Any], epochs: int) -> float:
    """The accuracy of the same network, written first and trained by the plan of `train_step`."""
    g = sublet.Graph("train")
    logits = example["net"](g.input("x", (32, 1, 8, 8)))
    loss = nn.softmax_cross_entropy(logits, g.input("y", (32,), "i64"))[0].mean()
    step = sublet.compile(sublet.train_step(loss, g.parameters, sublet.SGD(g.input("rate"), momentum=0.9)))

    def batches(epoch: int) -> Any:
        return ({**batch, "rate": np.float32(batch["rate"])} for batch in example["batches"](epoch))

    sublet.fit(step, batches, epochs=epochs)
    images, labels = (example[name][example["test"]] for name in ("images", "labels"))
    g = sublet.Graph("use", training=False)
    g.output("digit", nn.argmax(example["net"](g.input("x", images.shape)), axis=1))
    return float((sublet.compile(g, weights=step.weights)(x=images)["digit"] == labels).mean())

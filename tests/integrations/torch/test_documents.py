"""What README.md and docs/torch.md show of PyTorch runs as it is written."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import sublet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).parent.parent.parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", ["README.md", "docs/torch.md"])
def test_the_snippets_run(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = PYTHON.findall((ROOT / document).read_text(encoding="utf-8"))
    first = next(i for i, snippet in enumerate(snippets) if "torch.compile" in snippet)
    known: dict[str, Any] = {"sublet": sublet}
    gradients = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, while it traces
        for snippet in snippets[first : first + 1] if document == "README.md" else snippets:
            exec(compile(snippet, document, "exec"), known)
            gradients |= known["module"][0].weight.grad is not None
    assert "forward and backward" in capsys.readouterr().out
    assert gradients

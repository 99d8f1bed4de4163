"""Notebooks of examples/ run from the first cell to the last, and hold neither outputs nor paths of a machine."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.prose import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run_cells(notebook: dict[str, Any]) -> list[Any]:
    """Run the code cells in order, lines of `%pip` left out; return the value of each last expression."""
    names: dict[str, Any] = {}
    values = []
    for cell in notebook["cells"]:
        source = "".join(line for line in cell["source"] if not line.startswith("%pip "))
        if cell["cell_type"] != "code" or not source:
            continue
        *before, last = ast.parse(source).body
        shown = isinstance(last, ast.Expr)
        exec(compile(ast.Module(before if shown else [*before, last], []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return values


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path: Path) -> None:
    values = run_cells(json.loads(path.read_text(encoding="utf-8")))
    pictures = [value for value in values if hasattr(value, "_repr_html_")]
    assert len(pictures) >= 2
    assert all("<" in picture._repr_html_() for picture in pictures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_a_failing_cell_fails() -> None:
    notebook = {"cells": [{"cell_type": "code", "source": ["assert False"]}]}
    with pytest.raises(AssertionError):
        run_cells(notebook)

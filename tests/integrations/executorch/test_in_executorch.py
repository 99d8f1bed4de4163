"""Sublet's plans executed by ExecuTorch's runtime: what PyTorch computes, in no more bytes than its own plans take.

They need a Python that has executorch, pytest and Sublet, named by SUBLET_EXECUTORCH_PYTHON, or this one; else they
are skipped. `make test-executorch` makes one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sublet.base.optional_imports import is_installed

ROOT = Path(__file__).parents[3]
PYTHON = "SUBLET_EXECUTORCH_PYTHON"
RANDOM = 5
FIVE = {"mini-CNN", "inception", "transformer", "densenet", "U-Net"}
WRONG = {"two conds", "nested conds", "a view of a cond", "two outcomes", "two maps"}
"""What ExecuTorch 1.5.1 computes wrongly with its own plans."""


def run(*arguments: str) -> str:
    python = os.environ.get(PYTHON) or (sys.executable if is_installed("executorch") else "")
    if not python:
        pytest.skip(f"{PYTHON} names no Python with executorch")
    done = subprocess.run([python, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    said = run("-m", "benchmarks.executorch.planned", "--json", "--random", str(RANDOM))
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_its_runtime_computes_what_pytorch_does(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 13 + RANDOM
    assert [row["name"] for row in rows if not row["equal"] or row["ours_judged"] != "right"] == []


def test_no_more_bytes_than_the_best_of_its_algorithms(rows: list[dict[str, Any]]) -> None:
    assert [row["name"] for row in rows if not row["bound"] <= row["ours"] <= row["best"]] == []
    five = [row for row in rows if row["name"] in FIVE]
    assert len(five) == 5
    assert sum(row["ours"] == row["bound"] for row in five) >= 4
    assert sum(row["ours"] < row["best"] for row in five) >= 3


def test_its_own_plans_are_judged_as_they_run(rows: list[dict[str, Any]]) -> None:
    """A plan that the judge accepts runs right; the five with control flow that run wrong are refused."""
    assert [row["name"] for row in rows if row["greedy_judged"] == "right" and not row["greedy_equal"]] == []
    assert {row["name"] for row in rows if row["greedy_judged"] == "wrong"} >= WRONG
    assert {row["name"] for row in rows if row["greedy_judged"] == "right"} >= FIVE


def test_what_it_offers_is_honoured_or_declined() -> None:
    """Memories by numbers, inputs and outputs that the caller places, storage bases, another algorithm beside it."""
    said = run(str(Path(__file__).with_name("options.py")))
    assert said.splitlines()[-1] == "honoured"

"""Loops on the command line: copies forbidden, maxima of rounds declared, kept in the plan and asked for in the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.test_commands import Cli, cli
from tests.passes.test_trip_counts import X, expected, model
from tests.viz.loops import DELAY

assert cli


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    path = tmp_path / "growing.onnx"
    onnx.save(model(), path)
    np.savez(tmp_path / "feeds.npz", m=np.int64(2), go=np.bool_(True), x=X)
    return path


@pytest.fixture
def delay(tmp_path: Path) -> Path:
    path = tmp_path / "delay.sublet"
    path.write_text(DELAY)
    return path


def test_forbidden_copies_are_an_error_and_nothing_is_written(cli: Cli, delay: Path, tmp_path: Path) -> None:
    status, out, err = cli("plan", delay, "--forbid-copies", "--out", tmp_path / "plan.json")
    assert (status, out) == (2, "")
    assert "next turn: 4,096 bytes from %s to %all" in err.replace("\n", " ").replace("  ", " ")
    assert not (tmp_path / "plan.json").exists()


def test_the_plan_tells_how_values_take_turns(cli: Cli, delay: Path) -> None:
    status, out, _ = cli("plan", delay)
    assert status == 0
    assert "loop turn: 2 prologue iterations, then a period of 2 body versions" in out
    content = json.loads(cli("plan", delay, "--json")[1])
    assert [(loop["first"], loop["ring"]) for loop in content["loops"]] == [(2, 2)]


def test_a_maximum_of_rounds_is_kept_in_the_plan(cli: Cli, growing: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert "outside the arena" in cli("plan", growing)[1]
    status, out, err = cli("plan", growing, "--max-trips", "Loop_0=3", "--out", plan, "--json")
    assert status == 0, err
    content = json.loads(out)
    assert (content["max_trips"], content["outside"]) == ({"Loop_0": 3}, [])
    assert cli("check", growing, plan)[0] == 0
    given = ("--input", tmp_path / "feeds.npz", "--backend", "reference", "--out", tmp_path / "out.npz")
    status, _, err = cli("run", growing, "--plan", plan, *given)
    assert status == 0, err
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["all"], expected(2))


def test_a_run_beyond_the_maximum_is_one_message(cli: Cli, growing: Path, tmp_path: Path) -> None:
    given = ("--input", tmp_path / "feeds.npz", "--backend", "reference")
    assert cli("run", growing, *given, "--max-trips", "2")[0] == 0
    status, _, err = cli("run", growing, *given, "--max-trips", "1")
    assert status == 2
    assert "runs more than the planned 1 iterations" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-trips", "many"], "write N or LOOP=N"),
        (["--max-trips", "=4"], "write N or LOOP=N"),
        (["--max-trips", "4", "--max-trips", "5"], "for every loop is given twice"),
        (["--max-trips", "lop=4"], "there is no loop 'lop'"),
        (["--max-trips", str(10**17)], "too large"),
    ],
)
def test_a_bad_maximum(cli: Cli, growing: Path, words: list[str], message: str) -> None:
    status, _, err = cli("plan", growing, *words)
    assert status == 2
    assert message in err.replace("\n", " ")

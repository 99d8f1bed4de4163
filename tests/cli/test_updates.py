"""Updates on the command line: told by plan and run, compared and poisoned with the state they start from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sublet.ir.text import to_text
from tests.analysis.test_updates import STEP, updating
from tests.cli.test_commands import Cli, cli

assert cli


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.sublet"
    path.write_text(to_text(STEP))
    return path


def test_a_plan_tells_what_is_updated(cli: Cli, step: Path, tmp_path: Path) -> None:
    status, out, _ = cli("plan", step, "--forbid-copies", "--budget", "1M", "--out", tmp_path / "plan.json")
    assert status == 0
    words = " ".join(out.split())
    assert "to spare. 512 B updated and kept by each run lie outside the arena, and do not count" in words
    assert "updated in place 512 B kept for the next run: 2 values; copied: 0 B" in words
    told = json.loads(cli("show", tmp_path / "plan.json", "--json")[1])
    assert (told["updated"], told["updated_bytes"], told["moves"]) == (["w", "m"], 512, [])
    assert cli("check", step, tmp_path / "plan.json")[0] == 0


def test_a_plan_tells_what_is_copied(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "copied.sublet"
    path.write_text(to_text(updating("", "%w = %x, %v = %x")))
    words = " ".join(cli("plan", path)[1].split())
    assert "2 values; copied: 128 B" in words
    assert "bytes copied at the end of each run: update: 128 B, x to w and 1 more: %x has its own bytes" in words
    status, _, err = cli("plan", path, "--forbid-copies")
    assert status == 2
    assert "update: 64 bytes from %x to %w" in err


def test_a_plan_tells_what_is_exchanged(cli: Cli, tmp_path: Path) -> None:
    model, plan = tmp_path / "exchange.sublet", tmp_path / "plan.json"
    model.write_text(to_text(updating("", "%w = %v, %v = %w")))
    status, out, _ = cli("plan", model, "--forbid-copies", "--out", plan)
    assert status == 0
    assert "2 values, 2 of which exchange their memory; copied: 0 B" in " ".join(out.split())
    assert json.loads(cli("show", plan, "--json")[1])["exchanged"] == [["w", "v"]]
    assert cli("export", model, "--plan", plan, "--to", "c", "--out", tmp_path, "--name", "net")[0] == 0
    header = (tmp_path / "net_memory.h").read_text()
    assert "%w: weight in memory of the caller, updated by each run */" in header
    assert "/* after each run each takes the storage of the next, the last that of the first: w, v */" in header
    assert json.loads(cli("check", model, plan, "--json")[1])["claims"]["exchanged"] == "proven"
    plan.write_text(plan.read_text().replace('"exchanged": [', '"exchanged": [["w", "x"],'))
    status, out, _ = cli("check", model, plan)
    assert (status, "[false-exchange]" in out) == (1, True)
    words = ("run", model, "--random", 1, "--repeat", 5, "--compare", "--poison", "--backend", "numpy", "--json")
    told = json.loads(cli(*words)[1])
    assert (told["equal"], told["copied_bytes"]) == (True, 0)


def test_a_run_is_compared_and_poisoned_from_the_state_it_is_in(cli: Cli, step: Path) -> None:
    words = ("run", step, "--random", 1, "--repeat", 3, "--compare", "--poison", "--backend", "numpy")
    status, out, err = cli(*words)
    assert status == 0, err
    assert "updated 512 B of the above, kept for the next run: 2 values" in " ".join(out.split())
    told = json.loads(cli(*words, "--json")[1])
    assert (told["equal"], told["updated"], told["copied_bytes"]) == (True, ["w", "m"], 0)

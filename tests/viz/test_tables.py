"""Tables at narrow terminals: no line is wider, names are cut in the middle; pipes and JSON get whole names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from sublet.viz.summary import MIN_NAME_COLUMNS, cut_middle
from tests.support.command_line import Cli

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAP = re.compile(r"^.*▼.*\n(.+\n)*", re.MULTILINE)
"""A memory map, a picture of at most 120 columns in any output."""
NAMES = [f"{letter}{'/layer' * 33}.{letter}" for letter in "xabcd"]
REGION = f"s{'/ram' * 50}.s"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A chain of tensors with names of 201 characters."""
    lines = [f"graph @net(%{NAMES[0]}: f32[16,64]) {{"]
    for op, source, result in zip(("Relu", "Softmax", "Neg", "Softmax"), NAMES, NAMES[1:], strict=False):
        lines.append(f"  %{result}: f32[16,64] = onnx.{op}(%{source}) @{result}.{op}")
    path = tmp_path / "net.sublet"
    path.write_text("\n".join([*lines, f"  return %{NAMES[-1]}", "}", ""]))
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def two_plans(cli: Cli, model: Path) -> tuple[object, ...]:
    plans = [model.parent / f"{letter}{'-plan' * 40}.json" for letter in "ab"]
    for plan in plans:
        assert cli("plan", model, "--out", plan)[0] == 0
    return ("show", *plans)


def wrong_plan(cli: Cli, model: Path) -> tuple[object, ...]:
    plan = model.parent / "foreign.json"
    plan.write_text(json.dumps({"tensors": [{"name": name, "offset": 0} for name in NAMES[:3]]}))
    return ("check", model, plan)


COMMANDS: dict[str, Callable[[Cli, Path], tuple[object, ...]]] = {
    "plan": lambda _, model: ("plan", model),
    "verdict": lambda _, model: ("plan", model, "--budget", "1K"),
    "advise": lambda _, model: ("plan", model, "--advise"),
    "frontier": lambda _, model: ("plan", model, "--frontier"),
    "regions": lambda _, model: ("plan", model, "--region", f"{REGION}=4KiB", "--region", "dram=80KiB"),
    "run": lambda _, model: ("run", model, "--random", 1, "--profile", model.parent / "trace.json"),
    "two plans": two_plans,
    "check": wrong_plan,
}


TENSOR_ROW = r"^ +(\d KiB|shared) +[xabcd]/la\S*…\S*\.[xabcd] "
CUT_ROWS = {
    "plan": TENSOR_ROW,
    "verdict": TENSOR_ROW,
    "regions": r"^  s/ram\S*…\S*/ram\.s +\d KiB",
    "run": r"% +1 +[xabcd]/la\S*…\S* +onnx",
    "two plans": r"a-\S*…\S*json +b-\S*…\S*json +change",
}
"""A row of a table with a cut name, by command."""


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal(
    cli: Cli, model: Path, name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = COMMANDS[name](cli, model)
    for variable, text in (("FORCE_COLOR", "1"), ("COLUMNS", str(columns))):
        monkeypatch.setenv(variable, text)
    lines = ESCAPES.sub("", cli(*words)[1]).splitlines()
    assert max(map(cell_len, lines)) <= columns
    if name in CUT_ROWS:
        assert any(re.search(CUT_ROWS[name], line) for line in lines)


def test_a_sentence_keeps_half_a_line_for_its_name(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in (("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(variable, text)
    out = " ".join(ESCAPES.sub("", cli("plan", model)[1]).split())
    (name,) = re.findall(r"estimate: without (\S+) \(4 KiB\) the peak would be", out)
    assert cell_len(name) == 40


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_gets_whole_names(cli: Cli, model: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = COMMANDS[name](cli, model)
    monkeypatch.setenv("COLUMNS", "60")
    without_maps = MAP.sub("", cli(*words)[1])
    assert "…" not in without_maps
    expected = {"regions": [REGION], "two plans": [f"b{'-plan' * 40}.json"], "frontier": [""]}.get(name, NAMES)
    assert any(long_name in without_maps for long_name in expected)


def test_json_has_whole_names(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in (("FORCE_COLOR", "1"), ("COLUMNS", "60")):
        monkeypatch.setenv(variable, text)
    out = cli("plan", model, "--json")[1]
    assert "\\u2026" not in out
    assert any(f'"{name}"' in out for name in NAMES)


@pytest.mark.parametrize("columns", range(14))
@pytest.mark.parametrize("text", ["", "a", "abcdefghijkl", "日本語日本語日本語", "é" * 12, "a日b本c語d日e本"])
@pytest.mark.parametrize("dots", ["…", "..."])
def test_the_middle_is_cut_to_the_columns(columns: int, text: str, dots: str) -> None:
    cut = cut_middle(text, columns, dots)
    if cell_len(text) <= columns:
        assert cut == text
        return
    assert cell_len(cut) == columns
    if columns > 4 + len(dots):
        assert dots in cut
        assert (cut[0], cut[-1]) == (text[0], text[-1])


def test_a_cut_name_keeps_both_ends() -> None:
    assert cut_middle("encoder.layers.0.attention.out", MIN_NAME_COLUMNS) == "enco….out"

"""`--const` of every command with a model: inputs fixed, defaults opened, plans that remember both, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.support.command_line import Cli

pytest.importorskip("onnxruntime")

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
net (float[1, n] x, int64 rate, float[1] gain) => (y) <int64 wide = {16000}, float[1] gain = {2}> {
  fast = Equal(rate, wide)
  a = Mul(x, gain)
  y = If(fast) <
    then_branch = wide_band () => (s) { places = NonZero(a)  floats = Cast<to = 1>(places)  s = ReduceSum(floats) },
    else_branch = narrow_band () => (s) { s = ReduceSum(a) }
  >
}"""


pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.float32([[1, 0, -4]]))
    np.savez(tmp_path / "all.npz", x=np.float32([[1, 0, -4]]), gain=np.float32([3]))
    return tmp_path / "net.onnx"


def test_a_constant_decides_the_verdict_and_the_check_knows_the_constant(cli: Cli, path: Path, tmp_path: Path) -> None:
    plan, words = tmp_path / "plan.json", (path, "--dim", "n=3", "--budget", "1K")
    assert cli("plan", *words)[0] == 3
    status, out, _ = cli("plan", *words, "--const", "rate=8000", "--out", plan, "--json")
    assert (status, json.loads(out)["recipe"]["const"]) == (0, {"rate": "8000"})
    assert cli("check", path, plan)[0] == 0
    assert cli("show", plan, "--model", path)[0] == 0
    assert cli("export", path, "--plan", plan, "--to", "c", "--out", tmp_path / "a")[0] == 0
    assert cli("export", path, "--dim", "n=3", "--const", "rate=8000", "--to", "c", "--out", tmp_path / "b")[0] == 0
    first, second = (sorted(folder.iterdir()) for folder in (tmp_path / "a", tmp_path / "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_an_exported_model_holds_the_constant(cli: Cli, path: Path, tmp_path: Path) -> None:
    words, written = ("--dim", "n=3", "--const", "rate=8000", "--const"), tmp_path / "c" / "net_planned.onnx"
    assert cli("export", path, *words[:-1], "--to", "onnx", "--out", tmp_path / "c")[0] == 0
    assert cli("check", written)[0] == 0
    graph = onnx.load(written).graph
    assert [value.name for value in graph.input] == ["x", "gain"]
    assert [onnx.numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer if tensor.name == "rate"] == [
        8000
    ]
    assert (
        cli("run", written, "--dim", "n=3", "--input", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "y.npz")[0] == 0
    )
    assert np.load(tmp_path / "y.npz")["y"] == -6
    status, _, err = cli("export", path, *words, "gain=open", "--to", "onnx", "--out", tmp_path / "d")
    assert (status, "with rate=8000, gain=open" in err, "export to c, csv or markdown" in err) == (2, True, True)


def test_a_default_is_given_like_any_input(cli: Cli, path: Path, tmp_path: Path) -> None:
    words = ("run", path, "--dim", "n=3", "--const", "rate=8000", "--out", tmp_path / "y.npz", "--compare")
    x, plan = f"x={tmp_path / 'x.npy'}", tmp_path / "plan.json"
    for inputs, gain, want in (
        ((x,), None, -6),
        ((x, "gain=5"), "open", -15),
        ((tmp_path / "all.npz",), "open", -9),
    ):
        options = [word for given in inputs for word in ("--input", given)]
        assert cli(*words, *options, "--save-plan", plan)[0] == 0
        assert np.load(tmp_path / "y.npz")["y"] == want
        status, out, _ = cli("run", path, "--plan", plan, *options, "--json")
        assert (status, json.loads(out)["recipe"]["const"].get("gain")) == (0, gain)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "--const", "rate"), "write NAME=NUMBER"),
        (("plan", "--const", "rate=1", "--const", "rate=2"), "--const rate is given twice"),
        (("plan", "--const", "speed=1"), "not an input"),
        (("plan", "--const", "rate=fast"), "not a number of type int64"),
        (("plan", "--const", "x=open"), "has no default"),
        (("run", "--const", "rate=8000", "--input", "rate=16000"), "input rate: planned as the constant 8000"),
        (("run", "--plan", "PLAN", "--const", "rate=8000"), "--const cannot be combined with --plan"),
        (("run", "--plan", "PLAN", "--input", "gain=5"), "plan with const={'gain': 'open'} (--const gain=open)"),
        (("check", "PLAN", "--const", "rate=8000"), "a plan by Sublet contains these"),
        (("export", "--plan", "PLAN", "--to", "c", "--out", "OUT", "--const", "rate=8000"), "is a finished plan"),
    ],
)
def test_mistakes_are_told(cli: Cli, path: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    plan, dim = tmp_path / "plan.json", () if "PLAN" in words else ("--dim", "n=3")
    assert cli("plan", path, "--dim", "n=3", "--const", "rate=8000", "--out", plan)[0] == 0
    command, *rest = (str(plan) if word == "PLAN" else str(tmp_path) if word == "OUT" else word for word in words)
    status, _, err = cli(command, path, *rest, *dim)
    assert (status, told in " ".join(err.split())) == (2, True), err

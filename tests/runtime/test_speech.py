"""Speech detectors of the silero-vad wheel, whose state is carried from call to call for hundreds of calls."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.models.wheels import ModelsUnavailableError, RealModel, wheel_models
from sublet.api.compiling import compile
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import CaseOf
from sublet.runtime.executable import Executable
from sublet.runtime.poison import run_poisoned

ort = pytest.importorskip("onnxruntime")

CALLS = 250
VARIANTS = (
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_half",
    "silero_vad_op18_ifless",
    "silero_vad_openvino_16k",
)
SEQUENCE = "silero_vad_16k_sequence"
SAMPLE_RATE = np.array(16_000, np.int64)


@pytest.fixture(scope="module")
def wheels() -> dict[str, RealModel]:
    try:
        return {model.name: model for model in wheel_models()}
    except ModelsUnavailableError as error:
        pytest.skip(f"the wheels are not in the cache and cannot be fetched: {error}")


def session(model: RealModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(model.path), options)


def sound(executable: Executable) -> list[np.ndarray]:
    """Ten frames: tones that rise and fall in noise."""
    spec = executable.inputs["input"].spec
    assert isinstance(spec, TensorSpec)
    rng, times = np.random.default_rng(3), np.arange(spec.nbytes // 4) / 16_000
    tones = [np.sin(2 * np.pi * 110 * (i + 1) * times) + rng.standard_normal(times.size) / 9 for i in range(10)]
    return [tone.reshape(spec.shape).astype(np.float32) * 0.3 for tone in tones]


def given(executable: Executable, fed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return fed | ({"sr": SAMPLE_RATE} if "sr" in executable.inputs else {})


@pytest.mark.parametrize("name", VARIANTS)
def test_state_carried_over_hundreds_of_calls(wheels: dict[str, RealModel], name: str) -> None:
    model = wheels[name]
    executable, theirs = compile(model.path, dims=model.dims), session(model)
    frames = sound(executable)
    mine = right = np.zeros((2, 1, 128), np.float32)
    for call in range(CALLS):
        frame = frames[call // 7 % len(frames)]
        found = executable.views(given(executable, {"input": frame, "state": mine}))
        expected, right = theirs.run(["output", "stateN"], given(executable, {"input": frame, "state": right}))
        mine = found["stateN"]
        np.testing.assert_allclose(found["output"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
    assert executable.copied_bytes <= mine.nbytes
    assert executable.plan.arena_bytes == executable.plan.lower_bound_bytes


def test_a_state_of_two_values(wheels: dict[str, RealModel]) -> None:
    model = wheels[SEQUENCE]
    executable, theirs = compile(model.path, dims=model.dims), session(model)
    frames = sound(executable)
    mine = right = {name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")}
    for call in range(CALLS // 5):
        found = executable.views({"input": frames[call % len(frames)], **mine})
        expected = theirs.run(["speech_probs", "hn", "cn"], {"input": frames[call % len(frames)], **right})
        for ours, other in zip((found["speech_probs"], found["hn"], found["cn"]), expected, strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)
        mine, right = {"h": found["hn"], "c": found["cn"]}, {"h": expected[1], "c": expected[2]}


@pytest.mark.parametrize("name", VARIANTS)
def test_in_poison(wheels: dict[str, RealModel], name: str) -> None:
    model = wheels[name]
    executable = compile(model.path, dims=model.dims)
    state = np.random.default_rng(0).standard_normal((2, 1, 128)).astype(np.float32) / 4
    feeds = given(executable, {"input": sound(executable)[2], "state": state})
    found, poisoned = executable(feeds), run_poisoned(executable, feeds)
    assert all(np.array_equal(found[name], poisoned[name]) for name in found)


def test_arms_share_memory(wheels: dict[str, RealModel]) -> None:
    """Two networks, one an arm: each alone would need almost all of the arena that both need together."""
    model = wheels["silero_vad"]
    executable = compile(model.path, dims=model.dims)
    arms = [arm for node in executable.graph.nodes if isinstance(node, CaseOf) for arm in node.arms]
    assert len(arms) == 2
    regions = {place.value: place.region for place in executable.plan.placements if place.region.storage == "arena"}
    spans = [[regions[v.name] for v in arm.values() if v.name in regions and v.nbytes >= 512] for arm in arms]
    shared = sum(max(0, min(a.end, b.end) - max(a.offset, b.offset)) for a in spans[0] for b in spans[1])
    assert shared >= 4096

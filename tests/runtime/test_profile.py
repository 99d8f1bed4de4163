"""A profile tells every point of a run once for each time it ran, in lanes, and stays bounded."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import KernelError, RunError
from sublet.runtime.profile import Profile
from tests.runtime.networks import CHAIN, LOOP, WIDE, PythonBackend, inception, with_functions


def events(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_every_point_of_a_chain_has_an_event() -> None:
    executable = compile(CHAIN, backend=PythonBackend(), weights={"w": np.ones(16, np.float32)})
    profile = Profile(executable)
    executable.run_watched({"x": np.ones(16, np.float32)}, profile.watch)
    trace = profile.trace()
    complete = events(trace, "X")
    assert [event["name"] for event in complete] == ["start", "first", "second", "third", "end"]
    assert complete[1]["args"] == {
        "point": 1,
        "stream": 0,
        "node": "first",
        "op": "onnx.Mul",
        "outputs": ["%a: f32[16]"],
    }
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(complete))
    assert [event["args"]["name"] for event in events(trace, "M")] == ["stream 0"]
    live = [event["args"]["arena"] for event in events(trace, "C")]
    assert len(live) == len(complete)
    assert max(live) <= executable.arena_bytes
    assert live[2] == 128, "x and a, or b in the place of one of them"
    assert trace["otherData"] == {"graph": "chain", "arena_bytes": executable.arena_bytes, "events_dropped": 0}


def test_a_loop_is_counted_in_full_and_recorded_up_to_the_limit(tmp_path: Path) -> None:
    executable = compile(LOOP, backend="reference")
    profile = Profile(executable, max_events=20)
    inputs = {"h0": np.zeros(3, np.float32), "xs": np.ones((9, 3), np.float32), "limit": np.array(7)}
    executable.run_watched(inputs, profile.watch)
    runs = {str(cost.point): cost.runs for cost in profile.slowest()}
    assert runs["q"] == 7
    assert runs["check loop"] == 8
    assert profile.dropped_events == sum(runs.values()) - 20
    path = tmp_path / "trace.json"
    profile.save(path)
    trace = json.loads(path.read_text())
    assert len(events(trace, "X")) == 20
    assert trace["otherData"]["events_dropped"] == profile.dropped_events
    seconds = [cost.seconds for cost in profile.slowest()]
    assert seconds == sorted(seconds, reverse=True)


def test_streams_have_lanes_of_their_own() -> None:
    def slow(x: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return x

    executable = compile(WIDE, backend=with_functions(A=slow, B=slow), options=Options(streams=2))
    profile = Profile(executable)
    executable.run_watched({"x": np.ones(64, np.float32)}, profile.watch)
    trace = profile.trace()
    names = {event["tid"]: event["args"]["name"] for event in events(trace, "M")}
    assert sorted(names.values()) == ["stream 0", "stream 1"]
    for event in events(trace, "X"):
        if "node" in event["args"]:
            assert names[event["tid"]] == f"stream {event['args']['stream']}"
    live = [event["args"]["arena"] for event in events(trace, "C")]
    assert max(live) <= executable.arena_bytes
    executable.close()


def test_live_bytes_reach_the_peak_of_a_packed_network() -> None:
    executable = compile(inception(), backend="reference")
    profile = Profile(executable)
    executable.run_watched({"x": np.ones((1, 4, 10, 10), np.float32)}, profile.watch)
    live = [event["args"]["arena"] for event in events(profile.trace(), "C")]
    plan = executable.plan
    assert plan.peak.nbytes - plan.alignment * len(plan.peak.values) < max(live) <= plan.peak.nbytes


def test_what_was_seen_before_a_failure_is_kept(tmp_path: Path) -> None:
    def fail(*_: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    executable = compile(CHAIN, backend=with_functions(Add=fail), weights={"w": np.ones(16, np.float32)})
    profile = Profile(executable)
    with pytest.raises(KernelError):
        executable.run_watched({"x": np.ones(16, np.float32)}, profile.watch)
    assert [event["name"] for event in events(profile.trace(), "X")] == ["start", "first", "second"]
    with pytest.raises(RunError, match="cannot be written"):
        profile.save(tmp_path / "no" / "such" / "trace.json")


def test_a_profile_of_nothing() -> None:
    executable = compile(CHAIN, backend=PythonBackend(), weights={"w": np.ones(16, np.float32)})
    assert Profile(executable).trace()["traceEvents"] == []
    assert Profile(executable).slowest() == ()

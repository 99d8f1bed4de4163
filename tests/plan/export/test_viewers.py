"""Plans for viewers and packers: a snapshot for PyTorch's tools, a trace for Perfetto, MiniMalloc's CSV."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch.cuda._memory_viz as viz

import sublet
from sublet.analysis.options import Options
from sublet.api.plans import export_plan
from sublet.base.errors import PlanError
from sublet.checker.external import ForeignOutcome
from sublet.checker.external.files import judge_plan_file
from sublet.packing import MemoryRegion, pack
from sublet.packing.files import read_problem
from sublet.plan import MemoryPlan
from sublet.plan.export.viewers import RUNS
from sublet.plan.statistics import planned_buffers
from sublet.planning.pipeline import plan_memory
from tests.support.programs import program


@cache
def planned(number: int) -> MemoryPlan:
    """Straight lines, loops and branches, rows in wholes; then several arenas, and memory of the caller."""
    if number < 6:
        found = plan_memory(program(random.Random(number), 16, recurrent=number % 2 == 1))
    elif number == 6:
        regions = (MemoryRegion("sram", 64, 1), MemoryRegion("dram", 1 << 20, 10))
        found = plan_memory(program(random.Random(7), 16), Options(alignment=4, regions=regions))
    else:
        found = plan_memory(program(random.Random(8), 16), Options(alignment=1, io="bound"))
    return replace(found, outside=())


@pytest.fixture(params=range(8))
def plan(request: pytest.FixtureRequest) -> MemoryPlan:
    return planned(request.param)


def content(plan: MemoryPlan, form: str) -> str | bytes:
    (text,) = export_plan(plan, form).values()
    return text


def test_pytorch_shows_the_snapshot(plan: MemoryPlan) -> None:
    raw = content(plan, "pytorch-snapshot")
    assert isinstance(raw, bytes)
    assert raw[:2] == b"\x80\x04", "protocol 4"
    snapshot = pickle.loads(raw)
    blocks = list(planned_buffers(plan))
    assert viz.trace(snapshot).count("segment_alloc") + viz.trace(snapshot).count("cudaMalloc") <= len(plan.arenas)
    assert "free completed" in viz.trace(snapshot) or all(b.live[-1][1] >= len(plan.points) for b in blocks)
    assert viz.segsum(snapshot)
    assert viz.trace_plot(snapshot)
    assert viz.segment_plot(snapshot)


def test_the_snapshot_holds_what_lives_and_no_more(plan: MemoryPlan) -> None:
    """Replayed, what is allocated never overlaps, stays inside its segment, and peaks where the plan does."""
    raw = content(plan, "pytorch-snapshot")
    assert isinstance(raw, bytes)
    snapshot = pickle.loads(raw)
    held: dict[int, int] = {}
    segments = {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    most = 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            begin, end = event["addr"], event["addr"] + event["size"]
            assert all(end <= other or other + nbytes <= begin for other, nbytes in held.items())
            assert any(base <= begin and end <= base + size for base, size in segments.items())
            held[begin] = event["size"]
            most = max(most, sum(held.values()))
        elif event["action"] == "free_completed":
            assert held.pop(event["addr"]) == event["size"]
    assert most == plan.peak.nbytes
    left = [block for s in snapshot["segments"] for block in s["blocks"] if block["state"] == "active_allocated"]
    assert {block["address"]: block["size"] for block in left} == held
    assert all(sum(block["size"] for block in s["blocks"]) == s["total_size"] for s in snapshot["segments"])


def test_events_of_a_lane_never_overlap(plan: MemoryPlan) -> None:
    text = content(plan, "perfetto")
    assert isinstance(text, str)
    trace = json.loads(text)
    lanes: dict[int, list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for events in lanes.values():
        ordered = sorted(events)
        assert all(one[1] <= other[0] for one, other in pairwise(ordered))
    assert len(lanes[RUNS]) == len(plan.points)
    live = [event["args"]["bytes"] for event in trace["traceEvents"] if event.get("name") == "live"]
    assert (max(live), live[-1]) == (plan.peak.nbytes, 0)


def test_the_csv_is_judged_right_and_packs_as_well(plan: MemoryPlan, tmp_path: Path) -> None:
    text = content(plan, "minimalloc")
    assert isinstance(text, str)
    path = tmp_path / "plan.csv"
    path.write_text(text)
    found = judge_plan_file(path)
    assert found.outcome is ForeignOutcome.RIGHT
    assert {region.name: region.nbytes for region in found.regions if region.nbytes} == {
        storage.name: storage.nbytes for storage in plan.arenas if storage.nbytes
    }
    if len(plan.arenas) == 1:
        assert pack(read_problem(path)).packing.arena_bytes <= plan.arena_bytes


@pytest.mark.parametrize("form", ["minimalloc", "perfetto", "pytorch-snapshot"])
def test_what_is_not_counted_is_not_exported(form: str) -> None:
    graph = sublet.parse(
        'graph @part(%x: f32[4]) { %a: outside("seq(f32[4])", "a sequence") = onnx.SequenceConstruct(%x) '
        "%y: f32[4] = onnx.SequenceAt(%a, %x) return %y }"
    )
    with pytest.raises(PlanError, match="without a size in the plan: 'a'"):
        export_plan(plan_memory(graph), form)

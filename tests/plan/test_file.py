"""Plans survive the way to disk and back, and are tied to their graph and schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from sublet.analysis.options import Options
from sublet.analysis.streams import assign_streams
from sublet.ir.text import parse
from sublet.plan.file import fingerprint, from_json, load, save, to_json
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory

TEXT = """
graph @net(%x: f32[16], %flag: bool[]) {
  weights %limit: i64[] = [3]
  %n: outside("i64[?]", "depends on data") = onnx.NonZero(%x)
  %h: f32[16] = while(%i: i64[]; %p: f32[16] = %x; ) body @b {
    %c: bool[] = onnx.Less(%i, %limit)
    continue if %c
    %q: f32[16] = onnx.Relu(%p)
    next %q;
  }
  %y: f32[16] = case %flag {
    arm @a {
      yield %h
    }
  }
  return %y, %n
}
"""


@pytest.mark.parametrize("streams", [1, 3])
def test_a_plan_loads_back_equal(tmp_path: Path, streams: int) -> None:
    plan = plan_memory(parse(TEXT), Options(streams=streams), dims={"batch": 2})
    assert from_json(to_json(plan)) == plan
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan


def test_the_fingerprint_sees_graph_and_order() -> None:
    graph = parse(TEXT)
    prints = {
        fingerprint(graph, serial_schedule(graph)),
        fingerprint(graph, assign_streams(graph, 2)),
        fingerprint(parse(TEXT.replace("[16]", "[8]")), serial_schedule(graph)),
        fingerprint(parse(TEXT.replace("onnx.Relu", "onnx.Sigmoid")), serial_schedule(graph)),
    }
    assert len(prints) == 4
    assert fingerprint(parse(TEXT), serial_schedule(parse(TEXT))) in prints

"""What would remain of a peak without a tensor, or with half of it at a time: an estimate, checked by brute force."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import sublet
from sublet.analysis.options import Options
from sublet.packing import MemoryRegion
from sublet.plan.statistics import peak_contributors, planned_buffers
from sublet.planning.pipeline import plan_memory
from sublet.viz.report import plan_json
from tests.support.command_line import Cli
from tests.support.programs import program


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_lives_without_the_buffer(seed: int) -> None:
    plan = plan_memory(program(random.Random(seed), 16))
    blocks = list(planned_buffers(plan))
    at_peak = {one.values: one for one in peak_contributors(plan)}
    assert at_peak
    for block in blocks:
        values = tuple(dict.fromkeys(
            p.value for p in block.members if any(begin <= plan.peak.point < end for begin, end in p.live)
        ))  # fmt: skip
        if values not in at_peak:
            continue
        for part, told in ((1, at_peak[values].without_bytes), (2, at_peak[values].halved_bytes)):
            peak = 0
            for point in range(len(plan.points)):
                spared = sum(nbytes // part for nbytes in block.sizes_needed_at(point))
                peak = max(peak, sum(sum(each.sizes_needed_at(point)) for each in blocks) - spared)
            assert told == peak
    order = [one.without_bytes for one in peak_contributors(plan)]
    assert order == sorted(order)


def test_the_words_call_it_an_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli, path = Cli(monkeypatch, capsys), tmp_path / "net.sublet"
    path.write_text(
        "graph @net(%x: f32[64]) { %a: f32[256] = onnx.A(%x) %b: f32[64] = onnx.B(%a) "
        "%c: f32[64] = onnx.C(%b) return %c }"
    )
    out = cli("plan", path)[1]
    assert "estimate: without a (1 KiB) the peak would be 512 B, with half of the bytes 768 B (not planned" in out
    content = json.loads(cli("plan", path, "--json")[1])
    assert content["relief"]["estimate"] is True
    assert content["relief"]["buffers"][0] == {
        "nbytes": 1024, "tensors": ["a"], "peak_without_bytes": 512, "peak_halved_bytes": 768,
    }  # fmt: skip


def test_each_memory_is_told_with_its_peak() -> None:
    graph = sublet.parse("graph @net(%x: f32[64]) { %a: f32[256] = onnx.A(%x) %b: f32[64] = onnx.B(%a) return %b }")
    regions = (MemoryRegion("sram", 512, 1), MemoryRegion("dram", 1 << 20, 10))
    plan = plan_memory(graph, Options(regions=regions))
    told = plan_json(plan, None, None)["regions"]
    assert [one["name"] for one in told] == ["sram", "dram"]
    assert [one["capacity_bytes"] for one in told] == [512, 1 << 20]
    assert all(one["peak_bytes"] <= one["nbytes"] for one in told)
    assert sum(one["buffers"] for one in told) == len(list(planned_buffers(plan)))

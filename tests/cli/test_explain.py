"""`sublet explain`: the facts on a tensor are those of the plan's records, counted again here point by point."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sublet.base.errors import PlanError
from sublet.cli.explain import tensor_facts
from sublet.ir.text import parse
from sublet.plan import MemoryPlan, Placement
from sublet.plan.file import save
from sublet.plan.statistics import planned_buffers
from sublet.planning.pipeline import plan_memory
from tests.support.command_line import Cli
from tests.support.programs import program
from tests.viz.loops import DELAY, delay_plan
from tests.viz.synthetic import small_plan

SKIP = """
graph @net(%x: f32[64]) {
  %early: f32[256] = onnx.A(%x)
  %a: f32[512] = onnx.B(%x)
  %b: f32[512] = onnx.C(%a)
  %c: f32[64] = onnx.D(%b)
  %d: f32[64] = onnx.E(%c, %early)
  return %d
}
"""
"""`early` is live, unread, while the two large values are."""


def live_bytes_at(plan: MemoryPlan, point: int) -> int:
    return sum(sum(block.sizes_needed_at(point)) for block in planned_buffers(plan))


def points_of(place: Placement) -> set[int]:
    return {point for begin, end in place.live for point in range(begin, end)}


@pytest.mark.parametrize("seed", range(8))
def test_facts_are_those_of_a_count_of_every_point(seed: int) -> None:
    plan = plan_memory(program(random.Random(seed), 16))
    levels = [live_bytes_at(plan, point) for point in range(len(plan.points))]
    assert {place.value for place in plan.placements}
    for name in {place.value for place in plan.placements}:
        facts = tensor_facts(plan, name)
        assert [each.place for each in facts.placements] == [p for p in plan.placements if p.value == name]
        assert facts.peak_bytes == max(levels, default=0)
        assert facts.freed_bytes <= facts.peak_bytes
        for each in facts.placements:
            live = points_of(each.place)
            if live and max(levels[point] for point in live):
                assert each.live_bytes == max(levels[point] for point in live)
                assert each.busiest == min(point for point in live if levels[point] == each.live_bytes)
                own = [b for b in planned_buffers(plan) if b.buffer == each.place.buffer and each.place.buffer >= 0]
                beside = sum(live.nbytes for live in each.neighbours)
                assert beside + sum(sum(b.sizes_needed_at(each.busiest)) for b in own) == each.live_bytes
            assert all(not points_of(other) & live for other in each.reusing)


def test_a_tensor_freed_between_lowers_the_live_bytes_only_where_it_alone_needs_them() -> None:
    plan = plan_memory(parse(SKIP))
    facts = tensor_facts(plan, "early")
    assert facts.peak_bytes == live_bytes_at(plan, plan.peak.point)
    (early,) = [place for place in plan.placements if place.value == "early"]
    inside = range(early.begin + 1, early.end - 1)
    without = [live_bytes_at(plan, t) - early.region.nbytes * (t in inside) for t in range(len(plan.points))]
    assert facts.freed_bytes == max(without) < facts.peak_bytes


def test_sharing_reuse_and_the_last_point_are_told(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(small_plan(), path)
    status, out, _ = cli("explain", path, "y")
    assert status == 0
    lines = {line[2:10].strip(): line[10:] for line in out.splitlines()[1:]}
    assert out.startswith("y: f32[1,1024], 3,072 bytes, written by flatten\n")
    assert lines["lies"] == "arena, bytes 0 to 3,072"
    assert lines["live"] == "from point 2 (flatten) to point 3 (pool)"
    assert lines["shares"] == "view of x"
    assert lines["with"] == "x (the owner), z (over y)"
    assert lines["needed"] == "last at point 3 (pool); then z need the shared bytes"
    assert "not checked" in out
    assert "  after   the bytes hold late from point 5 (gemm)\n" in cli("explain", path, "a")[1]
    assert "weight outside the arena" in cli("explain", path, "w")[1]


def test_a_model_is_planned_first_and_renamed_values_have_no_bytes(cli: Cli, tmp_path: Path) -> None:
    model, plan = tmp_path / "net.sublet", tmp_path / "plan"
    model.write_text(DELAY)
    save(delay_plan(), plan)
    assert "bound by control flow to the bytes of x, y, s" in cli("explain", model, "p", "--align", 64)[1]
    planned, loaded = (json.loads(cli("explain", path, "s", "--json")[1]) for path in (model, plan))
    assert (planned.pop("checked"), loaded.pop("checked")) == (True, False)
    assert planned == loaded
    assert len(planned["placements"]) == 2
    assert planned["pointers"] == ["f", "g", "p", "q"]
    assert [move["edge"] for move in planned["copied"]] == ["next turn"]
    status, _, err = cli("explain", plan, "s", "--align", 16)
    assert (status, "--align is for planning" in err) == (2, True)


def test_an_unplanned_value_is_told_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text('graph @g(%x: f32[4]) { %y: outside("f32[n]", "n is open") = onnx.A(%x) return %y }')
    assert cli("explain", path, "y")[:2] == (0, "y: f32[n], without bytes in the plan: n is open\n")
    content = json.loads(cli("explain", path, "y", "--json")[1])
    assert (content["planned"], content["reason"]) == (False, "n is open")


def test_an_unknown_name_brings_similar_names(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(small_plan(), path)
    status, _, err = cli("explain", path, "imagee")
    assert (status, "did you mean 'image'?" in err) == (2, True)
    assert "did you mean 'late'?" in cli("explain", path, "gemm")[2]  # the name of a node
    for name in ("", "#########"):
        with pytest.raises(PlanError, match="known are 'image', 'x'"):
            tensor_facts(small_plan(), name)


def test_a_name_with_terminal_escapes_is_escaped(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(small_plan(), path)
    text = path.read_text().replace('"late"', '"\\u001b[2J[red]late"')
    path.write_text(text)
    status, out, _ = cli("explain", path, "a")
    assert status == 0
    assert "\\x1b[2J[red]late" in out
    assert "\x1b" not in out


ROWS = """
graph @rows(%x: f32[4,16,64], %z: f32[16,4,64]) {
  %a: f32[4,16,64] = nn.relu(%x)
  %b: f32[4,16,64] = nn.tanh(%x)
  %c: f32[4,16,64] = nn.transpose(%z) {axes = [1, 0, 2]}
  %y: f32[4,48,64] = nn.concat(%a, %b, %c) {axis = 1}
  return %y
}
"""


def test_parts_of_a_batch_lie_in_rows_or_are_copied_for_a_reason(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.sublet"
    path.write_text(ROWS)
    status, out, _ = cli("explain", path, "a")
    assert status == 0
    assert "in 4 rows, one every 12,288 bytes" in out
    assert "copied" not in out
    status, out, _ = cli("explain", path, "c")
    assert status == 0
    assert "16,384 bytes from c to y at run y: %c must be contiguous for node c" in " ".join(out.split())
    for options in (("--no-rows",), ()):
        plan = tmp_path / "plan.json"
        assert cli("plan", path, *options, "--out", plan)[0] == 0
        assert cli("check", path, plan)[0] == 0
        assert ('"rows": 4' in plan.read_text()) is not bool(options)
    for form, words in (("c", "ROWS_A_PITCH ((size_t)12288u)"), ("csv", "4 rows every 12288 bytes")):
        out_dir = tmp_path / form
        assert cli("export", path, "--plan", plan, "--to", form, "--out", out_dir)[0] == 0
        assert words in "".join(file.read_text() for file in out_dir.iterdir())
        assert cli("export", path, "--to", form, "--out", out_dir)[0] == 0
        assert words not in "".join(file.read_text() for file in out_dir.iterdir())
    assert cli("plan", path, "--html", tmp_path / "plan.html")[0] == 0

"""Loops in pictures and words: bands, turns, pointers."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from sublet.analysis.options import Options
from sublet.ir.text import parse
from sublet.plan import PlanPoint, RolledLoop, VersionTransition
from sublet.planning.pipeline import plan_memory
from sublet.viz.loop_bands import describe_versions, iterations_of_version, loop_bands
from sublet.viz.report import plan_json
from sublet.viz.summary import render_summary
from sublet.viz.view_model import picture_of_plan
from tests.viz.loops import DELAY, delay_plan
from tests.viz.synthetic import small_plan


def printed(plan: object) -> str:
    out = StringIO()
    Console(file=out, width=200).print(plan)
    return out.getvalue()


def test_a_band_for_each_copy_of_a_body() -> None:
    plan = delay_plan()
    found = loop_bands(plan)
    assert [band.label for band in found] == [
        "turn: iteration 0",
        "turn: iteration 1",
        "turn: iterations 2, 4, 6, …",
        "turn: iterations 3, 5, 7, …",
    ]
    assert [(band.kept, band.repeats) for band in found] == [
        (False, False),
        (False, False),
        (True, True),
        (False, True),
    ]
    for copy, band in enumerate(found):
        ends = PlanPoint("round", "turn", (("turn", copy),)), PlanPoint("next", "turn", (("turn", copy),))
        assert (plan.points[band.begin], plan.points[band.end - 1]) == ends
    assert [plan.points[band.exit] for band in found] == [PlanPoint("exit", "turn")] * 4
    assert len({band.exit for band in found}) == 4


def test_a_loop_that_is_not_unrolled_is_one_band() -> None:
    plan = plan_memory(parse(DELAY), Options(share=False))
    [band] = loop_bands(plan)
    assert (band.label, band.kept, band.exit) == ("turn: every iteration", True, -1)
    assert plan.points[band.begin] == PlanPoint("round", "turn")


def test_nodes_that_are_called_like_points_draw_no_loop() -> None:
    plan = plan_memory(
        parse("""
    graph @net(%a: f32[64]) {
      %b: f32[64] = onnx.Relu(%a) @"round y"
      %c: f32[64] = onnx.Softmax(%b) @"next y"
      return %c
    }
    """)
    )
    assert loop_bands(plan) == ()


def test_a_loop_in_a_loop_lies_in_its_bands() -> None:
    inner = """%u: f32[64], %v: f32[64] = while(%j: i64[]; %t: f32[64] = %a, %w: f32[64] = %b; ) @inner body @in {
        %d: bool[] = onnx.Less(%j, %n)
        continue if %d
        %e: f32[64] = onnx.Softmax(%t)
        next %w, %e;
      }"""
    text = f"""graph @nested(%x: f32[64], %y: f32[64], %n: i64[]) {{
      %f: f32[64], %g: f32[64] = while(%i: i64[]; %a: f32[64] = %x, %b: f32[64] = %y; ) @outer body @out {{
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        {inner}
        next %v, %u;
      }}
      return %f, %g
    }}"""
    found = loop_bands(plan_memory(parse(text)))
    outer = [band for band in found if band.loop == "outer"]
    assert [band.depth for band in outer] == [0] * len(outer)
    within = [band for band in found if band.loop == "inner"]
    assert within
    for band in within:
        assert band.depth == 1
        assert any(other.begin < band.begin and band.end < other.end for other in outer)


@pytest.mark.parametrize(
    ("first", "ring", "copy", "told"),
    [
        (1, 2, 0, "iteration 0"),
        (1, 2, 1, "iterations 1, 3, 5, …"),
        (0, 3, 2, "iterations 2, 5, 8, …"),
        (2, 1, 2, "iteration 2 and all later ones"),
        (0, 1, 0, "every iteration"),
    ],
)
def test_the_rounds_of_a_copy_in_words(first: int, ring: int, copy: int, told: str) -> None:
    record = RolledLoop("x", (), first, ring)
    assert iterations_of_version(record, copy) == told


def test_where_the_run_decides_copies_are_states() -> None:
    record = RolledLoop("x", (), 0, 3, (VersionTransition(0, (("y", 1),), 2),))
    assert iterations_of_version(record, 2) == "version 3 of 3"
    expected = "loop x: 3 body versions; the run selects the version of each next iteration"
    assert describe_versions(record) == expected


def test_turns_in_words() -> None:
    assert (
        describe_versions(RolledLoop("x", (), 1, 2)) == "loop x: 1 prologue iteration, then a period of 2 body versions"
    )
    assert describe_versions(RolledLoop("x", (), 2, 1)) == "loop x: 2 prologue iterations, then one body version"
    nested = describe_versions(RolledLoop("x", (("y", 1),), 0, 3))
    assert nested == "loop x in version 1 of y: a period of 3 body versions"


def test_the_picture_tells_when_a_value_is_where_and_what_pointers_stand_for() -> None:
    picture = picture_of_plan(delay_plan())
    found = zip(picture.placements, picture.rounds, strict=True)
    told = {place.region.offset: rounds for place, rounds in found if place.value == "s"}
    assert sorted(told.values()) == [
        "iteration 0 of turn; iterations 2, 4, 6, … of turn",
        "iteration 1 of turn; iterations 3, 5, 7, … of turn",
    ]
    assert {place.value: place.stands_for for place in picture.pointers} == {
        "f": ("x", "y", "s"),
        "g": ("y", "s"),
        "p": ("x", "y", "s"),
        "q": ("y", "s"),
    }


def test_a_value_is_alive_while_a_pointer_stands_for_it() -> None:
    """The outputs of the run are whatever the pointer %f stands for."""
    plan = delay_plan()
    last = len(plan.points)
    assert {place.value for place in plan.in_arenas if place.end == last} == {"x", "y", "s", "all"}


def test_the_summary_tells_turns_pointers_and_what_is_moved() -> None:
    told = printed(render_summary(delay_plan()))
    assert "loop turn: 2 prologue iterations, then a period of 2 body versions" in told
    assert "4 loop-carried values renamed, not copied (0 bytes)" in told
    assert "next turn: 4 KiB, s to all: a row is copied: it has fewer than 262,144 bytes, and a copy costs less" in told
    without = parse(DELAY.replace("; %s axis 0", ";").replace(", %all: f32[8,1024]", "").replace("%f, %all", "%f"))
    assert "0 bytes moved by loops and branches" in printed(render_summary(plan_memory(without)))
    assert "moved" not in printed(render_summary(small_plan()))


def test_without_reuse_each_value_counts_once() -> None:
    graph = parse(DELAY)
    plan = plan_memory(graph)
    assert plan.total_bytes == sum(value.nbytes for value in graph.values())


def test_json_lists_loops_pointers_and_moves() -> None:
    content = plan_json(delay_plan(), None, None)
    [loop] = content["loops"]
    assert (loop["loop"], loop["within"], loop["first"], loop["ring"]) == ("turn", [], 2, 2)
    assert content["pointers"]["g"] == ["y", "s"]
    assert "s" in content["multiview"]
    assert content["bytes_by_edge"] == {"next turn": 4096}
    copies = [tensor["copies"] for tensor in content["tensors"] if tensor["name"] == "s"]
    assert copies == [[[["turn", 0]], [["turn", 2]]], [[["turn", 1]], [["turn", 3]]]]


def test_hostile_points_only_mislead_the_picture() -> None:
    plan = replace(delay_plan(), points=(PlanPoint("round", "turn", (("turn", 0),)),) * len(delay_plan().points))
    assert loop_bands(plan) == ()

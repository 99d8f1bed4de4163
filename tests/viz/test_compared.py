"""Two plans in one picture, and what nodes are grouped by."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sublet.analysis.options import Options
from sublet.base.errors import ProblemError
from sublet.base.formatting import human
from sublet.ir.text import parse
from sublet.packing import MemoryRegion, Packing, Problem
from sublet.plan import RUN, NodeDescription, PlanPoint
from sublet.planning.pipeline import plan_memory
from sublet.viz.comparison import compare_pictures
from sublet.viz.png import write_png
from sublet.viz.terminal import memory_map
from sublet.viz.view_model import Picture, group_nodes, picture_of_packing, picture_of_plan, scopes_of
from tests.planning.test_regions import NET
from tests.viz.loops import delay_plan

FIRST = plan_memory(parse(NET))
SECOND = plan_memory(parse(NET), Options(strategy="no_reuse", share=False))
REGIONS = (MemoryRegion("fast", 192, 1), MemoryRegion("slow", 512, 10))


def in_arena(picture: Picture, name: str) -> list[tuple[str, int, int]]:
    """The values whose name of the arena ends so, each with its own address and bytes."""
    arena = next(arena for arena in picture.arenas if arena.name.endswith(name))
    spots = ((place.value, place.region.offset - arena.begin, place.region.nbytes) for place in picture.placements)
    inside = [spot for spot in spots if spot[1] >= 0 and spot[1] + spot[2] <= arena.end - arena.begin]
    return sorted(inside)


def test_each_plan_keeps_its_own_addresses_at_one_scale() -> None:
    picture = compare_pictures(picture_of_plan(FIRST), picture_of_plan(SECOND), ("a.json", "b.json"))
    assert [(arena.name, arena.nbytes) for arena in picture.arenas] == [
        ("a.json", FIRST.arena_bytes),
        ("b.json", SECOND.arena_bytes),
    ]
    for plan, name in ((FIRST, "a.json"), (SECOND, "b.json")):
        expected = sorted((p.value, p.region.offset, p.region.nbytes) for p in plan.in_arenas)
        assert in_arena(picture, name) == expected
    assert len(picture.rectangles) == len(picture_of_plan(FIRST).rectangles) + len(picture_of_plan(SECOND).rectangles)
    assert picture.curve == picture_of_plan(FIRST).curve
    assert picture.label == "a.json"
    (beside,) = picture.others
    assert (beside.label, beside.arena_bytes, beside.curve) == (
        "b.json",
        SECOND.arena_bytes,
        picture_of_plan(SECOND).curve,
    )
    assert {place.value for place in picture.placements[beside.first_placement :]} == {
        p.value for p in SECOND.in_arenas
    }
    assert len({place.buffer for place in picture.placements}) == len(picture.blocks)
    for piece in picture.rectangles:
        place = picture.placements[piece.placement]
        assert (piece.offset, piece.nbytes) == (place.region.offset, place.region.nbytes)


def test_plans_with_regions_and_other_orders_can_be_compared() -> None:
    regions = picture_of_plan(plan_memory(parse(NET), Options(regions=REGIONS)))
    other = picture_of_plan(replace(FIRST, points=(*FIRST.points[:-1], PlanPoint(RUN, "later"), PlanPoint("end"))))
    picture = compare_pictures(regions, other, ("r", "o"))
    assert [arena.name for arena in picture.arenas] == ["r fast", "r slow", "o"]
    assert all(low.end < high.begin for low, high in zip(picture.arenas, picture.arenas[1:], strict=False))
    assert picture.points[-2:] == (f"{FIRST.points[-1]} | later", "end")


def test_what_is_told_of_one_plan_is_not_told_of_both() -> None:
    loop = picture_of_plan(delay_plan())
    picture = compare_pictures(loop, picture_of_plan(FIRST), ("loop", "net"))
    assert (picture.bands, picture.pointers) == ((), ())
    assert loop.bands
    assert loop.pointers
    same = compare_pictures(loop, loop, ("a", "b"))
    assert (same.bands, same.pointers) == (loop.bands, loop.pointers)
    told = compare_pictures(replace(loop, assumed="x is f32[1]"), replace(loop, assumed="y is f32[2]"), ("a", "b"))
    assert told.assumed == "a: x is f32[1]; b: y is f32[2]"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("", "", ""), ("old", "", "a: old"), ("", "old", "b: old"), ("old", "old", "neither checked against its model")],
)
def test_which_of_two_plans_is_not_proven_is_told(first: str, second: str, expected: str) -> None:
    picture = compare_pictures(picture_of_plan(FIRST, first), picture_of_plan(SECOND, second), ("a", "b"))
    assert picture.claimed == expected


def test_characters_and_pictures_tell_the_arenas_of_both(tmp_path: Path) -> None:
    picture = compare_pictures(picture_of_plan(FIRST), picture_of_plan(SECOND), ("a.json", "a long name.json"))
    sizes = f"arena {human(FIRST.arena_bytes)} of a.json, {human(SECOND.arena_bytes)} of a long name.json"
    console = Console(file=StringIO(), width=100, no_color=True)
    console.print(memory_map(picture, width=100))
    drawn = console.file.getvalue()
    assert f"{sizes}; live bytes of a.json" in drawn
    assert f"peak of a.json {human(FIRST.peak.nbytes)}" in drawn
    assert "a lo…json┤" in drawn
    assert "together" not in drawn
    pytest.importorskip("matplotlib", reason="the extra png is not installed")
    write_png(picture, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text(encoding="utf-8")
    for told in (sizes, "live bytes of a.json", "live bytes of a long name.json", "peak of a.json"):
        assert f"<!-- {told}" in text
    assert "together" not in text


def test_a_packing_has_no_points_to_compare() -> None:
    packing = picture_of_packing(Problem(()), Packing((), 0, "none"))
    with pytest.raises(ProblemError, match="only plans can be compared"):
        compare_pictures(picture_of_plan(FIRST), packing, ("a", "b"))


def described(*names: str) -> list[NodeDescription]:
    return [NodeDescription(name, "onnx.Relu", "") for name in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("n1", "n2", "n3", "n4"), ("", "", "", "")),
        (("/a/conv", "/b/conv", "/c/conv", "last"), ("a", "b", "c", "")),
        (("a.0.x", "a.1.x", "a.2.x", "b"), ("a/0", "a/1", "a/2", "")),
        (("a/x", "a/y", "b/z"), ("", "", "")),  # two groups tell nothing
        (tuple(f"a/{i}/{i}/x" for i in range(50)), ("",) * 50),  # one, or more than can be told apart
        (
            tuple(f"l{i}/{j}/x" for i in range(5) for j in range(30)),
            tuple(f"l{i}" for i in range(5) for _ in range(30)),
        ),
    ],
)
def test_scopes_are_as_deep_as_can_be_told_apart(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert scopes_of(described(*names)) == expected


def test_the_module_that_an_exporter_noted_is_the_scope() -> None:
    nodes = [NodeDescription(f"node_{i}", "onnx.Conv", f"in layer{i}.conv, model.py:{i}") for i in range(4)]
    assert scopes_of(nodes) == tuple(f"layer{i}/conv" for i in range(4))


def test_points_and_placements_know_their_ops() -> None:
    points = (PlanPoint("start"), PlanPoint(RUN, "a", (("outer", 1), ("inner", 2))), PlanPoint("exit", "a"))
    found = group_nodes(points, [NodeDescription("a", "onnx.com.microsoft.Gelu", "x.py:3")], ("a", ""))
    assert found.point_ops == ("", "Gelu", "")
    assert (found.ops, found.sources) == (("Gelu", ""), ("x.py:3", ""))

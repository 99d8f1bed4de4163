"""Two plans in one picture, and what nodes are grouped by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.errors import ProblemError
from sublet.ir.text import parse
from sublet.packing import Packing, Problem, Region
from sublet.plan import Described
from sublet.planning import Options, plan_memory
from sublet.viz.compared import compared
from sublet.viz.groups import groups, scopes
from sublet.viz.rectangles import Picture, packing_rectangles, rectangles
from tests.test_plan_regions import NET

FIRST = plan_memory(parse(NET))
SECOND = plan_memory(parse(NET), Options(strategy="no_reuse", share=False))
REGIONS = (Region("fast", 192, 1), Region("slow", 512, 10))


def in_arena(picture: Picture, name: str) -> list[tuple[str, int, int]]:
    """The values whose name of the arena ends so, each with its own address and bytes."""
    arena = next(arena for arena in picture.arenas if arena.name.endswith(name))
    spots = ((place.value, place.region.offset - arena.begin, place.region.nbytes) for place in picture.placements)
    inside = [spot for spot in spots if spot[1] >= 0 and spot[1] + spot[2] <= arena.end - arena.begin]
    return sorted(inside)


def test_each_plan_keeps_its_own_addresses_at_one_scale() -> None:
    picture = compared(rectangles(FIRST), rectangles(SECOND), ("a.json", "b.json"))
    assert [(arena.name, arena.nbytes) for arena in picture.arenas] == [
        ("a.json arena", FIRST.arena_bytes),
        ("b.json arena", SECOND.arena_bytes),
    ]
    for plan, name in ((FIRST, "a.json arena"), (SECOND, "b.json arena")):
        expected = sorted((p.value, p.region.offset, p.region.nbytes) for p in plan.in_arenas)
        assert in_arena(picture, name) == expected
    assert len(picture.rectangles) == len(rectangles(FIRST).rectangles) + len(rectangles(SECOND).rectangles)
    assert picture.curve == rectangles(FIRST).curve
    assert picture.others == (("b.json", rectangles(SECOND).curve),)
    assert len({place.buffer for place in picture.placements}) == len(picture.blocks)
    for piece in picture.rectangles:
        place = picture.placements[piece.placement]
        assert (piece.offset, piece.nbytes) == (place.region.offset, place.region.nbytes)


def test_plans_with_regions_and_other_orders_can_be_compared() -> None:
    regions = rectangles(plan_memory(parse(NET), Options(regions=REGIONS)))
    other = rectangles(replace(FIRST, points=(*FIRST.points[:-1], "later", "end")))
    picture = compared(regions, other, ("r", "o"))
    assert [arena.name for arena in picture.arenas] == ["r fast", "r slow", "o arena"]
    assert all(low.end < high.begin for low, high in zip(picture.arenas, picture.arenas[1:], strict=False))
    assert picture.points[-2:] == (f"{FIRST.points[-1]} | later", "end")


def test_a_packing_has_no_points_to_compare() -> None:
    packing = packing_rectangles(Problem(()), Packing((), 0, "none"))
    with pytest.raises(ProblemError, match="only plans can be compared"):
        compared(rectangles(FIRST), packing, ("a", "b"))


def described(*names: str) -> list[Described]:
    return [Described(name, "onnx.Relu", "") for name in names]


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
    assert scopes(described(*names)) == expected


def test_the_module_that_an_exporter_noted_is_the_scope() -> None:
    nodes = [Described(f"node_{i}", "onnx.Conv", f"in layer{i}.conv, model.py:{i}") for i in range(4)]
    assert scopes(nodes) == tuple(f"layer{i}/conv" for i in range(4))


def test_points_and_placements_know_their_ops() -> None:
    found = groups(("start", "a @1 @2", "loop"), [Described("a", "onnx.com.microsoft.Gelu", "x.py:3")], ("a", ""))
    assert found.point_ops == ("", "Gelu", "")
    assert (found.ops, found.sources) == (("Gelu", ""), ("x.py:3", ""))

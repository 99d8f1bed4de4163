"""Plans that are wrong by themselves, whatever runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.base.errors import PlanViolation
from sublet.checker import check_bytes, require_valid
from sublet.checker.layout import build_layout
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import Context, MemoryPlan, Placement, Region, RolledLoop, Storage, VersionTransition
from sublet.plan.schedule import serial_schedule
from tests.support import dialect
from tests.support.plans import moved, own_bytes, plan_at, with_arena

assert dialect.OPS

GRAPH = parse("""
graph @net(%x: u8[64]) {
  weights %w: u8[64]
  %s: outside("seq", "a test") = test.wrap(%x)
  %y: u8[64] = test.matmul(%x, %w)
  %z: u8[0] = test.slice(%y) {offset = 0}
  return %y
}
""")


def rules(graph: Graph, plan: MemoryPlan) -> list[str]:
    return [finding.rule for finding in check_bytes(graph, serial_schedule(graph), plan)]


def told(graph: Graph, plan: MemoryPlan) -> str:
    with pytest.raises(PlanViolation) as caught:
        require_valid(graph, serial_schedule(graph), plan)
    return str(caught.value)


def placing(plan: MemoryPlan, name: str, **changes: object) -> MemoryPlan:
    """The plan with one placement changed."""
    placements = (replace(p, **changes) if p.value == name else p for p in plan.placements)  # type: ignore[arg-type]
    return replace(plan, placements=tuple(placements))


@pytest.mark.parametrize("bound", [False, True])
def test_a_plan_in_which_nothing_is_shared_is_right(bound: bool) -> None:
    plan = own_bytes(GRAPH, alignment=64, bound=bound)
    assert rules(GRAPH, plan) == []


def test_every_value_with_bytes_needs_a_place() -> None:
    plan = own_bytes(GRAPH)
    without = replace(plan, placements=tuple(p for p in plan.placements if p.value != "y"))
    assert rules(GRAPH, without) == ["unplaced-value"]
    assert "value %y: u8[64] has no placement" in told(GRAPH, without)


def test_nothing_else_has_a_place() -> None:
    plan = own_bytes(GRAPH)
    stray = Placement("q", "u8[64]", Region("arena", 0, 64), (), 0)
    assert rules(GRAPH, replace(plan, placements=(*plan.placements, stray))) == ["unknown-value"]
    outside = replace(stray, value="s")
    assert rules(GRAPH, replace(plan, placements=(*plan.placements, outside))) == ["outside-placed"]
    assert rules(GRAPH, replace(plan, placements=(*plan.placements, plan.placements[0]))) == ["duplicate-placement"]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((("loop", 0),), (("loop", 1),), True),
        ((("loop", 0),), (("loop", 0),), False),
        ((), (("loop", 0),), False),
        ((("loop", 0),), (("loop", 0), ("inner", 1)), False),
        ((("loop", 1),), (("loop", 0), ("inner", 1)), True),
    ],
)
def test_no_copy_of_a_body_has_a_value_twice(one: Context, other: Context, apart: bool) -> None:
    plan = own_bytes(GRAPH)
    place = next(place for place in plan.placements if place.value == "y")
    others = tuple(place for place in plan.placements if place.value != "y")
    for first, second in ((one, other), (other, one)):
        both = (replace(place, copies=(first,) if first else ()), replace(place, copies=(second,) if second else ()))
        found = rules(GRAPH, replace(plan, placements=(*others, *both)))
        assert ("duplicate-placement" not in found) is apart


def test_a_placement_tells_the_right_tensor_and_size() -> None:
    plan = own_bytes(GRAPH)
    assert "value %y: is placed as u8[63], but is u8[64]" in told(GRAPH, placing(plan, "y", spec="u8[63]"))
    assert rules(GRAPH, placing(plan, "y", spec="u8[63]")) == ["wrong-spec"]
    smaller = placing(plan, "y", region=Region("arena", 128, 63))
    assert rules(GRAPH, smaller) == ["wrong-size"]
    assert "has a region of 63 bytes, but needs 64" in told(GRAPH, smaller)


@pytest.mark.parametrize("offset", [-64, 129, 192])
def test_a_region_lies_inside_its_storage(offset: int) -> None:
    plan = moved(own_bytes(GRAPH), {"y": offset})
    assert "out-of-storage" in rules(GRAPH, plan)
    assert f"lies at arena[{offset}, {offset + 64}), but arena has 192 bytes" in told(GRAPH, plan)


def test_a_smaller_arena_is_too_small() -> None:
    assert rules(GRAPH, with_arena(own_bytes(GRAPH), 191)) == ["out-of-storage"]
    assert rules(GRAPH, replace(own_bytes(GRAPH), arena_bytes=191)) == ["arena-size"]


def test_offsets_are_aligned() -> None:
    plan = own_bytes(GRAPH, alignment=64)
    plan = moved(with_arena(plan, 256), {"y": 160})
    assert rules(GRAPH, plan) == ["misaligned"]
    assert "lies at offset 160, which is no multiple of the alignment 64" in told(GRAPH, plan)
    assert rules(GRAPH, replace(plan, alignment=32)) == []
    assert rules(GRAPH, replace(plan, alignment=0)) == ["bad-alignment"]


def test_tensors_without_bytes_may_lie_anywhere() -> None:
    assert rules(GRAPH, moved(own_bytes(GRAPH, alignment=64), {"z": 13})) == []


def test_storages_are_known_and_have_the_size_of_what_they_hold() -> None:
    plan = own_bytes(GRAPH, bound=True)
    assert rules(GRAPH, moved(plan, {"y": ("nowhere", 0)}))[0] == "unknown-storage"
    for storage, rule in (
        (Storage("%y", "input", 64), "storage-kind"),
        (Storage("%y", "disk", 64), "storage-kind"),
        (Storage("%y", "arena", 64), "storage-kind"),
        (Storage("arena2", "arena", 64), "arena-size"),
        (Storage("%w", "weight", 64), "duplicate-storage"),
    ):
        assert rule in rules(GRAPH, replace(plan, storages=(*plan.storages, storage)))
    larger = tuple(replace(s, nbytes=65) if s.kind == "weight" else s for s in plan.storages)
    assert rules(GRAPH, replace(plan, storages=larger)) == ["bound-storage"]


def test_what_the_caller_binds_lies_where_the_caller_looks() -> None:
    plan = own_bytes(GRAPH, bound=True)
    elsewhere = replace(plan, storages=(*plan.storages, Storage("%y", "output", 64)))
    assert "output %y: lies at arena[0, 64), but the plan binds it to storage %y" in told(GRAPH, elsewhere)
    assert rules(GRAPH, moved(elsewhere, {"y": ("y", 0)})) == []
    assert "bound-storage" in rules(GRAPH, moved(plan, {"x": ("w", 0)}))


def test_inputs_are_all_there_at_the_start() -> None:
    graph = parse("graph @two(%a: u8[8], %b: u8[8]) {\n  %c: u8[8] = test.matmul(%a)\n  return %c\n}")
    apart = plan_at(graph, {"a": 0, "b": 8, "c": 8}, 16)
    assert rules(graph, apart) == []
    message = told(graph, moved(apart, {"b": 0}))
    assert "value %a at arena[0, 8): overlaps %b at arena[0, 8)" in message


def test_names_that_occur_twice_are_refused_before_the_replay() -> None:
    node = GRAPH.nodes[1]
    again = replace(GRAPH, nodes=(*GRAPH.nodes, replace(node, name="again")))
    assert rules(again, own_bytes(GRAPH)) == ["illegal-graph"]
    other = replace(node, outputs=(replace(node.defs[0], name="other"),))
    namesake = replace(GRAPH, nodes=(*GRAPH.nodes, other))
    assert "illegal-graph" in rules(namesake, own_bytes(namesake))
    twice = replace(GRAPH, nodes=(*GRAPH.nodes, node))
    assert set(rules(twice, own_bytes(GRAPH))) == {"illegal-graph", "scheduled-twice"}


def test_two_updates_of_the_same_bytes_lose_one() -> None:
    graph = parse("""
    graph @two(%x: u8[8], %y: u8[8]) {
      %a: u8[8] = test.matmul(%x, %y)
      %b: u8[8] = test.matmul(%a, %y)
      update %x = %a, %y = %b
      return %b
    }
    """)
    apart = {"x": 0, "y": 8, "a": 16, "b": 24}
    assert rules(graph, plan_at(graph, apart, 32)) == []
    assert "moves-overlap" in rules(graph, plan_at(graph, {**apart, "y": 4}, 32))


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (RolledLoop("loop", (), 0, 1), False),
        (RolledLoop("loop", (), 1, 1), False),
        (RolledLoop("nobody", (), 0, 1), True),
        (RolledLoop("loop", (), -1, 2), True),
        (RolledLoop("loop", (), 1, 0), True),
        (RolledLoop("loop", (), 0, 2, (VersionTransition(0, (), 1), VersionTransition(1, (), 0))), False),
        (RolledLoop("loop", (), 0, 2, (VersionTransition(0, (), 1), VersionTransition(1, (), 2))), True),
        (RolledLoop("loop", (), 0, 2, (VersionTransition(0, (), 1), VersionTransition(1, (), -1))), True),
    ],
)
def test_copies_of_a_body_are_those_of_a_loop(record: RolledLoop, wrong: bool) -> None:
    graph = parse("""
    graph @net(%x: u8[8]) {
      %f: u8[8] = while(%i: i64[]; %p: u8[8] = %x; ) @loop body @body {
        %c: bool[] = test.below(%i, %i)
        continue if %c
        %u: u8[8] = test.relu(%p)
        next %u;
      }
      return %f
    }
    """)
    plan = replace(own_bytes(graph), rolled=(replace(record, heads=((),) * record.copies),))
    if wrong:
        assert any(finding.rule == "bad-copies" for finding in build_layout(graph, plan)[1])
    else:
        assert rules(graph, plan) == []


@pytest.mark.parametrize(
    ("away", "reached"),
    [(["away"], ""), (["y"], "y"), (["again"], "again"), (["x"], "x"), (["away", "y"], "y")],
)
def test_in_slow_memory_lies_what_is_brought_there_and_nothing_else(away: list[str], reached: str) -> None:
    graph = parse("""
    graph @net(%x: u8[8]) {
      %away: u8[8] = nn.offload(%x)
      %again: u8[8] = nn.reload(%away)
      %y: u8[8] = test.matmul(%again)
      return %y
    }
    """)
    plan = plan_at(graph, {"x": 0, "away": 8, "again": 16, "y": 24}, 32)
    slow = Storage("slow", "arena", 16, rate=10)
    plan = replace(plan, storages=(*plan.storages, slow), arena_bytes=48)
    for i, name in enumerate(away):
        plan = placing(plan, name, region=Region("slow", 8 * i, 8))
    found = check_bytes(graph, serial_schedule(graph), plan)
    assert [(finding.rule, finding.where) for finding in found] == (
        [("out-of-reach", f"value %{reached}")] if reached else []
    )


def test_what_was_brought_away_is_read_where_it_was_brought_back_alone() -> None:
    graph = parse("""
    graph @net(%x: u8[8]) {
      %away: u8[8] = nn.offload(%x)
      %y: u8[8] = test.matmul(%away)
      return %y
    }
    """)
    plan = plan_at(graph, {"x": 0, "away": 8, "y": 16}, 24)
    plan = replace(plan, storages=(*plan.storages, Storage("slow", "arena", 8, rate=10)), arena_bytes=32)
    assert rules(graph, plan) == []
    assert rules(graph, placing(plan, "away", region=Region("slow", 0, 8))) == ["out-of-reach"]

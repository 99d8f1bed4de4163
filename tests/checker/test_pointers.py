"""Pointers that may stand for several values: what is done holds wherever they point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.checker import check_bytes
from sublet.checker.memory import AbstractMemory
from sublet.checker.state import PointsTo
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import POINTER, MemoryPlan
from sublet.plan.schedule import serial_schedule
from tests.support import dialect
from tests.support.plans import moved, plan_at

assert dialect.OPS

CHOSEN = """
graph @net(%i: i32[], %a: u8[8], %b: u8[8], %k: u8[8]) {
  %w: u8[8], %z: u8[8] = case %i @if {
    arm @first {
      yield %k, %a
    }
    arm @second {
      yield %k, %b
    }
  }
  NODES
  return %y
}
"""
PLACES = {"i": 0, "a": 8, "b": 16, "k": 24, "w": 0, "z": 0, "y": 32}


def pointing(graph: Graph, places: dict[str, int], *names: str) -> MemoryPlan:
    """A plan in which some values have no bytes of their own."""
    plan = plan_at(graph, places, 64)
    bare = (
        replace(p, how=POINTER, region=replace(p.region, storage="", offset=0)) if p.value in names else p
        for p in plan.placements
    )
    return replace(plan, placements=tuple(bare))


def messages(nodes: str, places: dict[str, int]) -> str:
    graph = parse(CHOSEN.replace("NODES", nodes))
    return "\n".join(map(str, check_bytes(graph, serial_schedule(graph), pointing(graph, places, "w", "z"))))


@pytest.mark.parametrize("node", ["matmul(%z)", "matmul(%w, %z)", "matmul(%z, %w)"])
def test_nothing_is_written_over_any_place_of_an_operand(node: str) -> None:
    assert messages(f"%y: u8[8] = test.{node}", PLACES) == ""
    for place in ("a", "b", "k") if "%w" in node else ("a", "b"):
        assert "[input-overwritten]" in messages(f"%y: u8[8] = test.{node}", {**PLACES, "y": PLACES[place]})


@pytest.mark.parametrize("node", ["relu(%z)", "add(%z, %k)"])
def test_an_op_in_place_is_so_only_where_its_operand_may_lie_nowhere_else(node: str) -> None:
    for place in ("a", "b"):
        assert messages(f"%y: u8[8] = test.{node}", {**PLACES, "y": PLACES[place]}) == ""
        assert "[input-overwritten]" in messages(f"%y: u8[8] = test.{node}", {**PLACES, "y": PLACES[place] + 4})


@pytest.mark.parametrize(("place", "size"), [("a", 8), ("b", 8), ("b", 4)])
def test_what_it_may_stand_for_is_kept(place: str, size: int) -> None:
    nodes = f"%d: u8[{size}] = test.const()\n  %y: u8[8] = test.matmul(%z)"
    assert messages(nodes, {**PLACES, "d": 40}) == ""
    for begin in (PLACES[place] + offset for offset in (0, 4, -4)):
        found = messages(nodes, {**PLACES, "d": begin})
        for low in (PLACES["a"], PLACES["b"]):
            hit = f"node y: reads %z at arena[{low}, {low + 8}), but bytes [{max(low, begin)}, " in found
            assert hit is (begin < low + 8 and low < begin + size)
    late = f"%y: u8[8] = test.matmul(%z)\n  %d: u8[{size}] = test.const()"
    assert messages(late, {**PLACES, "d": PLACES[place]}) == ""


def test_a_view_of_a_pointer_is_a_copy_of_what_it_stands_for() -> None:
    nodes = "%v: u8[8] = test.reshape(%z)\n  %u: u8[8] = test.matmul(%z)\n  %y: u8[8] = test.matmul(%v, %u)"
    assert messages(nodes, {**PLACES, "v": 40, "u": 48}) == ""
    assert messages(nodes, {**PLACES, "v": 40, "u": 24}) == ""
    assert "node y: reads %v" in messages(nodes, {**PLACES, "v": 40, "u": 40})
    alike = "%v: u8[8] = test.reshape(%w)\n  %u: u8[8] = test.reshape(%k)\n  %y: u8[8] = test.matmul(%v, %u)"
    assert messages(alike, {**PLACES, "v": 40, "u": 40}) == ""
    same = nodes.replace("%z", "%w")
    assert messages(same, {**PLACES, "v": 24, "u": 48}) == ""
    assert messages(same, {**PLACES, "v": 40, "u": 48}) == ""
    assert "node y: reads %v" in messages(same, {**PLACES, "v": 24, "u": 24})


def test_a_parameter_may_take_the_name_of_bytes_that_a_pointer_stands_for() -> None:
    """They are bytes of %x, which lies around the loop, after every round."""
    graph = parse("""
    graph @net(%x: u8[8], %a: u8[4], %n: u8[4]) {
      %f: u8[4], %g: u8[4] = while(%i: i64[]; %p: u8[4] = %a, %q: u8[4] = %a; ) @loop body @body {
        %more: bool[] = test.below(%i, %n)
        continue if %more
        %s: u8[4] = test.matmul(%p, %q)
        %u: u8[4] = test.slice(%x) {offset = 2}
        next %u, %u;
      }
      %r: u8[4] = test.matmul(%f, %g, %x)
      return %r
    }
    """)
    places = {"x": 0, "a": 8, "u": 8, "p": 8, "n": 12, "i": 16, "more": 24, "s": 28, "f": 32, "r": 36, "q": 0, "g": 0}
    plan = pointing(graph, places, "q", "g")
    assert check_bytes(graph, plan.schedule, plan) == ()
    other = moved(plan, {"s": 8})
    assert "node s: " in "\n".join(map(str, check_bytes(graph, plan.schedule, other)))


def test_of_two_ways_to_a_region_is_known_what_both_decide() -> None:
    one = PointsTo(AbstractMemory(), {"a": frozenset({0}), "b": frozenset({1})})
    other = PointsTo(AbstractMemory(), {"b": frozenset({0}), "c": frozenset({0})})
    assert one.meet(other).path_condition == other.meet(one).path_condition == {"b": frozenset({0, 1})}

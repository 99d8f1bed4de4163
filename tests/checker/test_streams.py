"""Schedules: every node once, data in time, and no bytes touched by two steps that nothing orders."""

from __future__ import annotations

import pytest

from sublet.checker import check_bytes
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan.schedule import Schedule, ScheduleStep, serial_schedule
from tests.support import dialect
from tests.support.plans import own_bytes, plan_at

assert dialect.OPS

DIAMOND = parse("""
graph @net(%x: u8[8]) {
  %a: u8[8] = test.matmul(%x)
  %b: u8[8] = test.matmul(%x)
  %y: u8[8] = test.add(%a, %b)
  return %y
}
""")
PARALLEL = (ScheduleStep("a", 0), ScheduleStep("b", 1), ScheduleStep("y", 0, ("b",)))
APART = {"x": 0, "a": 8, "b": 16, "y": 8}


def messages(graph: Graph, places: dict[str, int], schedule: Schedule, arena: int = 128) -> str:
    return "\n".join(map(str, check_bytes(graph, schedule, plan_at(graph, places, arena, schedule=schedule))))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ((ScheduleStep("a"), ScheduleStep("b")), "schedule of net: never runs node y [unscheduled-node]"),
        (
            (ScheduleStep("a"), ScheduleStep("b"), ScheduleStep("y"), ScheduleStep("a")),
            "schedule of net: runs node a twice [scheduled-twice]",
        ),
        (
            (ScheduleStep("a"), ScheduleStep("b"), ScheduleStep("q"), ScheduleStep("y")),
            "runs q, which is no node of the graph [unknown-step]",
        ),
        (
            (ScheduleStep("a", 0, ("b",)), ScheduleStep("b"), ScheduleStep("y")),
            "step a waits for b, which is no earlier step",
        ),
        ((ScheduleStep("a", 0, ("a",)), ScheduleStep("b"), ScheduleStep("y")), "[bad-wait]"),
        (
            (ScheduleStep("a", -1), ScheduleStep("b"), ScheduleStep("y")),
            "runs a in stream -1 (expected 0 to 65535) [bad-stream]",
        ),
    ],
)
def test_a_schedule_is_one_of_its_graph(steps: tuple[ScheduleStep, ...], found: str) -> None:
    assert found in messages(DIAMOND, APART, Schedule(steps))


def test_streams_in_bytes_of_their_own() -> None:
    assert messages(DIAMOND, APART, Schedule(PARALLEL)) == ""


def test_a_dropped_wait_is_missed() -> None:
    found = messages(DIAMOND, APART, Schedule((*PARALLEL[:2], ScheduleStep("y", 0)))).splitlines()
    assert found[0] == "node y: reads %b without being ordered after its producer, node b (wait for b) [missing-wait]"
    assert found[1].startswith("node y: reads arena[16, 24), while node b writes arena[16, 24); nothing orders the two")
    assert found[1].endswith("[race]")


def test_a_wait_through_others_is_a_wait() -> None:
    steps = (ScheduleStep("b", 1), ScheduleStep("a", 0, ("b",)), ScheduleStep("y", 0))
    assert messages(DIAMOND, APART, Schedule(steps)) == ""


CHAINS = parse("""
graph @net(%x: u8[8]) {
  %a: u8[8] = test.matmul(%x)
  %b: u8[8] = test.matmul(%a)
  %c: u8[8] = test.matmul(%x)
  %d: u8[8] = test.matmul(%c)
  return %b, %d
}
""")


def test_two_streams_do_not_reuse_each_others_bytes() -> None:
    places = {"x": 0, "a": 8, "b": 16, "c": 24, "d": 8}
    assert messages(CHAINS, places, serial_schedule(CHAINS)) == ""
    steps = (ScheduleStep("a", 0), ScheduleStep("b", 0), ScheduleStep("c", 1), ScheduleStep("d", 1))
    found = messages(CHAINS, places, Schedule(steps)).splitlines()
    assert found == [
        "node d: writes arena[8, 16), while node a writes arena[8, 16); nothing orders the two "
        "(wait for a, or place the values apart) [race]",
        "node d: writes arena[8, 16), while node b reads arena[8, 16); nothing orders the two "
        "(wait for b, or place the values apart) [race]",
    ]
    waiting = (*steps[:3], ScheduleStep("d", 1, ("b",)))
    assert messages(CHAINS, places, Schedule(waiting)) == ""


def test_a_later_step_may_use_lower_addresses_too() -> None:
    """The order of addresses says nothing about the order of steps."""
    steps = (ScheduleStep("a", 0), ScheduleStep("b", 0), ScheduleStep("c", 1), ScheduleStep("d", 2, ("b", "c")))
    places = {"x": 0, "a": 16, "b": 24, "c": 32, "d": 12}
    assert messages(CHAINS, places, Schedule(steps)) == ""
    assert "[race]" in messages(CHAINS, places, Schedule((*steps[:3], ScheduleStep("d", 2, ("c",)))))


def test_reading_at_the_same_time_is_no_race_and_a_view_in_place_touches_nothing() -> None:
    graph = parse("""
    graph @net(%x: u8[8]) {
      %v: u8[4] = test.slice(%x) {offset = 4}
      %a: u8[4] = test.relu(%v)
      %w: u8[4] = test.slice(%x) {offset = 0}
      %b: u8[8] = test.matmul(%w)
      return %a, %b
    }
    """)
    steps = (ScheduleStep("v", 0), ScheduleStep("a", 0), ScheduleStep("w", 1), ScheduleStep("b", 1))
    places = {"x": 0, "v": 4, "a": 4, "w": 0, "b": 8}
    assert messages(graph, places, Schedule(steps)) == ""
    assert "[race]" in messages(graph, {**places, "w": 16}, Schedule(steps))


def test_what_a_step_reads_twice_is_read_to_the_further_end() -> None:
    """%v ends before %x does: what lies on the rest of %x is written while it is read."""
    graph = parse("""
    graph @net(%x: u8[16], %k: u8[4]) {
      %v: u8[4] = test.slice(%x) {offset = 0}
      %a: u8[8] = test.matmul(%v, %x)
      %b: u8[4] = test.matmul(%k)
      return %a, %b
    }
    """)
    places = {"x": 0, "v": 0, "k": 16, "a": 24, "b": 32}
    for begin in range(-4, 20, 4):
        late = Schedule((ScheduleStep("v", 0), ScheduleStep("a", 0), ScheduleStep("b", 1)))
        assert ("[race]" in messages(graph, {**places, "b": begin + 4}, late)) is (begin < 12), begin


LOOP = parse("""
graph @net(%x: u8[8]) {
  %k: u8[8] = test.matmul(%x)
  %f: u8[8] = while(%i: i64[]; %p: u8[8] = %x; ) @loop body @body {
    %c: bool[] = test.below(%i, %i)
    continue if %c
    %u: u8[8] = test.add(%p, %k)
    %v: u8[8] = test.matmul(%p)
    %t: u8[8] = test.add(%u, %v)
    next %t;
  }
  %d: u8[8] = test.matmul(%x)
  return %f, %d
}
""")
IN_LOOP = (
    ScheduleStep("c", 0),
    ScheduleStep("u", 0, ("c",)),
    ScheduleStep("v", 1, ("c",)),
    ScheduleStep("t", 0, ("u", "v")),
)
AROUND = (ScheduleStep("k", 0), ScheduleStep("loop", 0), ScheduleStep("d", 1))


def test_a_sub_graph_touches_bytes_for_its_node() -> None:
    schedule = Schedule(AROUND, {"loop": (Schedule(IN_LOOP),)})
    plan = own_bytes(LOOP, schedule=schedule)
    assert check_bytes(LOOP, schedule, plan) == ()
    offsets = {placement.value: placement.region.offset for placement in plan.placements}
    found = messages(LOOP, {**offsets, "d": offsets["v"]}, schedule)
    assert "node d: writes arena" in found
    assert "while node loop" in found
    assert "[race]" in found


def test_a_captured_value_is_waited_for() -> None:
    steps = (ScheduleStep("k", 1), ScheduleStep("loop", 0), ScheduleStep("d", 1))
    schedule = Schedule(steps, {"loop": (Schedule(IN_LOOP),)})
    found = check_bytes(LOOP, schedule, own_bytes(LOOP))
    assert [finding.rule for finding in found] == ["missing-wait", "race"]
    assert str(found[0]).startswith("node loop: reads %k without being ordered after its producer, node k")


def test_streams_inside_a_body() -> None:
    places = {p.value: p.region.offset for p in own_bytes(LOOP).placements}
    serially = Schedule(AROUND, {"loop": (serial_schedule(LOOP.nodes[1].subgraphs[0]),)})
    assert messages(LOOP, {**places, "u": places["t"]}, serially) == ""
    schedule = Schedule(AROUND, {"loop": (Schedule(IN_LOOP),)})
    assert "node v: writes arena" in messages(LOOP, {**places, "v": places["c"], "u": places["c"]}, schedule)


def test_evaluation_nodes_come_before_all_others() -> None:
    steps = (ScheduleStep("c", 0), ScheduleStep("u", 0), ScheduleStep("v", 1), ScheduleStep("t", 0, ("u", "v")))
    found = check_bytes(LOOP, Schedule(AROUND, {"loop": (Schedule(steps),)}), own_bytes(LOOP))
    assert [str(finding) for finding in found] == [
        "node v: is not ordered after node c, which runs before the condition of loop loop (wait for c) [check-order]"
    ]


def test_sub_graphs_have_schedules() -> None:
    found = check_bytes(LOOP, Schedule(AROUND), own_bytes(LOOP))
    assert [finding.rule for finding in found] == ["missing-body"]
    assert "has 0 schedules for the 1 sub-graphs of loop" in str(found[0])


def test_a_branch_is_beside_others_with_all_that_it_touches() -> None:
    """What it reads no longer is written over by more bytes, which another stream reads."""
    graph = parse("""
    graph @net(%x: u8[4], %w: u8[4], %k: i32[]) {
      %a: u8[16] = case %k @choice {
        arm @only {
          %s: u8[4] = test.matmul(%x)
          %t: u8[16] = test.matmul(%s)
          yield %t
        }
      }
      %b: u8[4] = test.matmul(%w)
      %y: u8[4] = test.matmul(%a, %b)
      return %y
    }
    """)
    places = {"x": 0, "w": 16, "k": 24, "s": 28, "t": 0, "a": 0, "b": 32, "y": 36}
    body = Schedule((ScheduleStep("s"), ScheduleStep("t")))
    schedule = Schedule(
        (ScheduleStep("b", 1), ScheduleStep("choice", 0), ScheduleStep("y", 0, ("b",))), {"choice": (body,)}
    )
    assert messages(graph, places, schedule) == ""
    found = messages(graph, {**places, "w": 8}, schedule)
    assert "node choice: writes arena[0, 16), while node b reads arena[8, 12); nothing orders the two" in found

"""Branches: every arm starts from the same bytes, and what follows may rely on what all leave."""

from __future__ import annotations

from sublet.checker import check_bytes
from sublet.ir.text import parse
from sublet.plan.schedule import serial_schedule
from tests.support import dialect
from tests.support.plans import plan_at

assert dialect.OPS

GRAPH = """
graph @net(%i: i32[], %x: u8[8]) {
  %o: u8[8], %p: u8[8] = case %i FALLBACK @if {
    arm @first {
      %a: u8[8] = test.matmul(%x)
      yield %a, %x
    }
    arm @second {
      %b: u8[8] = test.relu(%x)
      %c: u8[8] = test.relu(%b)
      yield %b, %c
    }
  }
  %y: u8[8] = test.add(%o, %p)
  return %y
}
"""
RIGHT = {"i": 0, "x": 8, "o": 16, "p": 24, "a": 16, "b": 16, "c": 24, "y": 16}


def messages(places: dict[str, int], fallback: str = "", returns: str = "%y", arena: int = 64) -> str:
    graph = parse(GRAPH.replace("FALLBACK", fallback).replace("return %y", f"return {returns}"))
    return "\n".join(map(str, check_bytes(graph, serial_schedule(graph), plan_at(graph, places, arena))))


def test_arms_share_bytes_and_leave_their_results_in_place() -> None:
    assert messages(RIGHT) == ""


def test_results_elsewhere_are_moved() -> None:
    assert messages({**RIGHT, "a": 32, "b": 32, "c": 40}) == ""


def test_a_result_that_another_move_overwrites_is_read_first() -> None:
    """Arm `second` swaps: %b lies where %p goes and %c where %o goes."""
    assert messages({**RIGHT, "b": 24, "c": 16}) == ""


def test_targets_of_the_moves_lie_apart() -> None:
    found = messages({**RIGHT, "p": 20})
    assert "case if, end of arm 0: moves %o to arena[16, 24) and %p to arena[20, 28) at once" in found
    assert "[moves-overlap]" in found


def test_an_arm_keeps_what_it_reads_later() -> None:
    found = messages({**RIGHT, "c": 16})
    assert "case if, end of arm 1: reads %b at arena[16, 24), but bytes [16, 24) hold bytes [0, 8) of %c" in found


def test_what_is_read_afterwards_survives_every_arm() -> None:
    assert messages(RIGHT, returns="%y, %x") == ""
    found = messages({**RIGHT, "c": 8}, returns="%y, %x")
    assert "graph output %x: reads %x at arena[8, 16), but bytes [8, 16) have no known content" in found
    assert "%x on one path, %c on another" in found


def test_a_captured_value_may_become_the_result_where_it_lies() -> None:
    places = {**RIGHT, "p": 8}
    assert messages(places) == ""
    assert "[output-lost]" in messages(places, returns="%y, %x")


def test_the_index_is_read_before_the_arms() -> None:
    assert messages({**RIGHT, "a": 0, "b": 40}, arena=64).count("initial-overlap") == 0
    assert messages({**RIGHT, "i": 16}) == ""
    graph = parse(GRAPH.replace("FALLBACK", "").replace("%o: u8[8], %p", "%d: u8[4] = test.const()\n%o: u8[8], %p"))
    found = check_bytes(graph, serial_schedule(graph), plan_at(graph, {**RIGHT, "d": 0}, 64))
    assert [str(finding) for finding in found] == [
        "case if, index: reads %i at arena[0, 4), but bytes [0, 4) hold bytes [0, 4) of %d, written by node d "
        "(place %i and %d apart, or read %i before %d is written) [clobbered]"
    ]


def test_fallbacks_are_one_more_arm() -> None:
    assert messages(RIGHT, "else %x, %x") == ""
    assert messages({**RIGHT, "o": 8, "a": 16, "b": 16}, "else %x, %x") == ""
    graph = parse(
        GRAPH.replace("FALLBACK", "else %e, %x").replace("%o: u8[8], %p", "%e: u8[8] = test.const()\n%o: u8[8], %p")
    )
    right = {**RIGHT, "e": 32}
    assert check_bytes(graph, serial_schedule(graph), plan_at(graph, right, 64)) == ()
    # The arms may write over what only the fallbacks need.
    assert check_bytes(graph, serial_schedule(graph), plan_at(graph, {**right, "c": 32}, 64)) == ()


def test_both_targets_in_one_arm_are_moved_at_once() -> None:
    """The fallbacks swap two values that lie in each other's place."""
    graph = parse("""
    graph @net(%i: i32[], %a: u8[8], %b: u8[8]) {
      %o: u8[8], %p: u8[8] = case %i else %b, %a @if {
        arm @only {
          yield %a, %b
        }
      }
      return %o, %p
    }
    """)
    assert (
        check_bytes(graph, serial_schedule(graph), plan_at(graph, {"i": 16, "a": 0, "b": 8, "o": 0, "p": 8}, 20)) == ()
    )


def test_a_result_that_lies_in_place_in_every_arm_is_not_written() -> None:
    graph = parse("""
    graph @net(%i: i32[], %x: u8[8]) {
      %o: u8[8] = case %i @if {
        arm @first {
          yield %x
        }
        arm @second {
          yield %x
        }
      }
      %y: u8[8] = test.relu(%o)
      return %y
    }
    """)
    plan = plan_at(graph, {"i": 0, "x": ("x", 0), "o": ("x", 0), "y": 8}, 16, bound={"x": "input"})
    assert check_bytes(graph, serial_schedule(graph), plan) == ()

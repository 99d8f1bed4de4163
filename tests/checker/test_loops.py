"""Loops: a round finds what the entry and every earlier round leave, and nothing stale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.checker import check_bytes
from sublet.ir.graph import CaseOf, Graph, While
from sublet.ir.text import parse
from sublet.plan.schedule import serial_schedule
from tests.support import dialect
from tests.support.plans import own_bytes, plan_at

assert dialect.OPS


def messages(graph: Graph, places: dict[str, int], arena: int = 128) -> str:
    return "\n".join(map(str, check_bytes(graph, serial_schedule(graph), plan_at(graph, places, arena))))


def net(carried: str, body: str, updates: str, finals: str = "%f: u8[8]", returns: str = "%f") -> Graph:
    return parse(f"""
    graph @net(%x: u8[8], %k: u8[8]) {{
      {finals} = while(%i: i64[]; {carried}; ) @loop body @body {{
        %c: bool[] = test.below(%i, %k)
        continue if %c
        {body}
        next {updates};
      }}
      return {returns}
    }}
    """)


SIMPLE = net("%p: u8[8] = %x", "%u: u8[8] = test.relu(%p)", "%u")
IN_PLACE = {"x": 0, "k": 8, "f": 0, "i": 16, "p": 0, "c": 24, "u": 0}


def test_a_carry_lives_in_one_place() -> None:
    assert messages(SIMPLE, IN_PLACE) == ""
    assert check_bytes(SIMPLE, serial_schedule(SIMPLE), own_bytes(SIMPLE)) == ()


def test_a_captured_value_survives_all_rounds() -> None:
    """The first round still finds %k; the second does not."""
    found = messages(SIMPLE, {**IN_PLACE, "u": 8})
    assert found.splitlines() == [
        "node c: reads %k at arena[8, 16), but bytes [8, 16) have no known content "
        "(%u of an earlier iteration) (keep the bytes of %k until here) [undefined]"
    ]


def test_an_initial_value_that_is_captured_too_is_not_the_carry() -> None:
    graph = net("%p: u8[8] = %x", "%u: u8[8] = test.add(%p, %x)", "%u")
    assert messages(graph, {**IN_PLACE, "p": 32, "u": 32, "f": 32}) == ""
    assert "node u: reads %x at arena[0, 8), but bytes [0, 8) hold" in messages(graph, IN_PLACE)


def test_the_counter_is_written_every_round() -> None:
    found = messages(SIMPLE, {**IN_PLACE, "i": 0})
    assert "loop loop, exit: reads %p at arena[0, 8), but bytes [0, 8) hold bytes [0, 8) of %i" in found


def test_the_condition_survives_the_other_evaluation_nodes() -> None:
    graph = parse("""
    graph @net(%x: u8[8]) {
      %f: u8[8] = while(%i: i64[]; %p: u8[8] = %x; ) @loop body @body {
        %c: bool[] = test.below(%i, %p)
        %d: u8[8] = test.const()
        continue if %c
        next %p;
      }
      return %f
    }
    """)
    right = {"x": 0, "p": 0, "f": 0, "i": 8, "c": 16, "d": 24}
    assert messages(graph, right) == ""
    assert "loop loop, condition: reads %c at arena[16, 17)" in messages(graph, {**right, "d": 16})


def test_a_swap_is_a_parallel_assignment() -> None:
    graph = net("%p: u8[8] = %x, %q: u8[8] = %k", "", "%q, %p", "%f: u8[8], %g: u8[8]", "%f, %g")
    right = {"x": 0, "k": 32, "p": 0, "q": 8, "f": 0, "g": 8, "i": 16, "c": 24}
    assert messages(graph, right) == ""
    assert "[moves-overlap]" in messages(graph, {**right, "q": 4})


def test_a_delay_line_needs_a_place_a_tap() -> None:
    carried = "%p: u8[8] = %x, %q: u8[8] = %x"
    graph = net(carried, "%u: u8[8] = test.add(%p, %q)", "%u, %p", "%f: u8[8], _", "%f")
    right = {"x": 0, "k": 40, "p": 0, "q": 8, "f": 0, "i": 16, "c": 24, "u": 8}
    assert messages(graph, right) == ""
    assert "end of an iteration: reads %p at arena[0, 8)" in messages(graph, {**right, "u": 0})


def test_a_view_of_an_old_carry_is_not_one_of_the_new() -> None:
    """A body that reads the copy of a view before it is made finds that of the round before."""
    graph = net("%p: u8[8] = %x", "%v: u8[8] = test.reshape(%p)\n%u: u8[8] = test.relu(%v)", "%u")
    places = {**IN_PLACE, "v": 32, "u": 40}
    assert messages(graph, places) == ""
    loop = graph.nodes[0]
    assert isinstance(loop, While)
    check_node, view, reader = loop.body.nodes
    early = replace(graph, nodes=(replace(loop, body=replace(loop.body, nodes=(check_node, reader, view))),))
    assert "node u: reads %v at arena[32, 40), but bytes [32, 40) have no known content" in messages(early, places)


def test_a_value_of_an_arm_is_stale_in_the_next_round() -> None:
    """Nothing may hold %w over from a round in which its arm ran, even in bytes nobody else uses."""
    graph = net(
        "%p: u8[8] = %x",
        """%j: i32[] = test.choose(%p)
        %o: u8[8] = case %j @if {
          arm @one {
            %v: u8[8] = test.reshape(%p)
            %w: u8[8] = test.relu(%v)
            yield %w
          }
          arm @two {
            %n: u8[8] = test.matmul(%p)
            yield %n
          }
        }""",
        "%o",
    )
    places = {**IN_PLACE, "j": 28, "o": 0, "v": 32, "w": 40, "n": 64}
    del places["u"]
    assert messages(graph, places) == ""
    loop = graph.nodes[0]
    assert isinstance(loop, While)
    branch = loop.body.nodes[2]
    assert isinstance(branch, CaseOf)
    reads_other_arm = replace(branch.arms[1], outputs=branch.arms[0].outputs)
    wrong = replace(branch, arms=(branch.arms[0], reads_other_arm))
    body = replace(loop.body, nodes=(*loop.body.nodes[:2], wrong))
    found = messages(replace(graph, nodes=(replace(loop, body=body),)), places)
    assert found.startswith(
        "case if, end of arm 1: reads %w at arena[40, 48), but bytes [40, 48) have no known content"
    )


@pytest.mark.parametrize(("update", "right"), [("%v", True), ("%k", True), ("%p", True)])
def test_an_update_may_be_a_view_a_captured_value_or_the_carry_itself(update: str, right: bool) -> None:
    graph = net("%p: u8[8] = %x", "%v: u8[8] = test.reshape(%p)", update)
    places = {"x": 0, "k": 8, "f": 0, "i": 16, "p": 0, "c": 24, "v": 0}
    assert (messages(graph, places) == "") is right


def test_one_update_may_feed_two_carries() -> None:
    graph = net(
        "%p: u8[8] = %x, %q: u8[8] = %x", "%u: u8[8] = test.matmul(%p, %q)", "%u, %u", "%f: u8[8], %g: u8[8]", "%f, %g"
    )
    right = {"x": 0, "k": 40, "p": 0, "q": 8, "f": 0, "g": 8, "i": 16, "c": 24, "u": 48}
    assert messages(graph, right) == ""
    assert "node u: writes %u" in messages(graph, {**right, "u": 0})


STACKING = """
graph @net(%x: u8[8], %s: u8[3,8]) {
  %f: u8[8], %r: u8[3,8] = while(%i: i64[]; %p: u8[8] = %x; %e: u8[8] in %s axis 0) @loop body @body {
    %c: bool[] = test.below(%i, %i)
    continue if %c
    %u: u8[8] = test.add(%p, %e)
    next %u; %u axis 0
  }
  return %f, %r
}
"""
STACKED = {"x": 0, "s": 8, "f": 0, "r": 32, "i": 56, "p": 0, "e": 64, "c": 72, "u": 0}


def test_slices_and_rows() -> None:
    assert messages(parse(STACKING), STACKED) == ""


def test_a_sequence_is_whole_in_every_round() -> None:
    found = messages(parse(STACKING), {**STACKED, "e": 16})
    assert "loop loop, slices: reads %s at arena[8, 32), but bytes [16, 24) have no known content (%e of an" in found
    assert "loop loop, slices: reads %s" in messages(parse(STACKING), {**STACKED, "u": 16})


@pytest.mark.parametrize("clobbering", ["u", "e", "c", "i"])
def test_rows_that_are_stored_stay(clobbering: str) -> None:
    found = messages(parse(STACKING), {**STACKED, clobbering: 40})
    assert "loop loop, rows: reads %r at arena[32, 56)" in found


def test_rows_do_not_take_the_place_of_the_sequence() -> None:
    assert "loop loop, slices: reads %s" in messages(parse(STACKING), {**STACKED, "r": 8})


def test_what_lies_outside_the_loop_survives_it() -> None:
    graph = net("%p: u8[8] = %x", "%u: u8[8] = test.relu(%p)", "%u", returns="%f, %k")
    assert messages(graph, {**IN_PLACE, "u": 32, "f": 32}) == ""
    assert "graph output %k" in messages(graph, {**IN_PLACE, "u": 40, "f": 8})


NESTED = parse("""
graph @net(%x: u8[8], %k: u8[8]) {
  %f: u8[8] = while(%i: i64[]; %p: u8[8] = %x; ) @outer body @b1 {
    %c: bool[] = test.below(%i, %k)
    continue if %c
    %t: u8[8] = test.const()
    %g: u8[8] = while(%j: i64[]; %q: u8[8] = %p; ) @inner body @b2 {
      %d: bool[] = test.below(%j, %t)
      continue if %d
      %u: u8[8] = test.add(%q, %t)
      next %u;
    }
    next %g;
  }
  return %f
}
""")
NEST = {"x": 0, "k": 8, "f": 0, "i": 16, "p": 0, "c": 24, "t": 32, "g": 0, "j": 40, "q": 0, "d": 25, "u": 0}


def test_loops_nest() -> None:
    assert messages(NESTED, NEST) == ""
    found = messages(NESTED, {**NEST, "j": 8})
    assert "node c: reads %k at arena[8, 16)" in found
    assert len(found.splitlines()) == 1
    twice = messages(NESTED, {**NEST, "u": 32}).splitlines()
    assert [line.split(":")[0] for line in twice] == ["node d", "node u"]


def test_nested_loops_report_each_mistake_once() -> None:
    found = messages(NESTED, {**NEST, "d": 32}).splitlines()
    assert [line.rpartition(" ")[2] for line in found] == ["[input-overwritten]", "[undefined]", "[clobbered]"]

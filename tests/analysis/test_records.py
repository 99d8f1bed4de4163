"""Small records of the analysis, each by itself: what a whole plan shows only where several come together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sublet.analysis.byte_provenance import OriginSegment, compute_provenance
from sublet.analysis.coalesced_buffer import CoalescedBuffer, Member, union_without_members
from sublet.analysis.control_flow_builder import build_control_flow
from sublet.analysis.interference import build_packing_problem
from sublet.analysis.liveness import compute_live_ranges
from sublet.analysis.loop_versions import PLAN_TOO_LONG
from sublet.analysis.options import Options
from sublet.analysis.program_facts import LoopView
from sublet.analysis.sharing import share_buffers
from sublet.analysis.value_versions import NotRenamable, RenamingRefused, ValueVersions, never_reuse
from sublet.base.errors import ProblemError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Value, While
from sublet.ir.text import parse
from sublet.plan import POINTER
from sublet.plan.schedule import Schedule, ScheduleStep, serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.support import dialect  # noqa: F401  (registers the test dialect)

SWAP = """
graph @swap(%a: f32[2], %b: f32[2]) {
  weights %limit: i64[] = [5]
  %u: f32[2], %v: f32[2] = while(%i: i64[]; %x: f32[2] = %a, %y: f32[2] = %b; ) body @round {
    %c: bool[] = test.below(%i, %limit)
    continue if %c
    %t: f32[2] = test.matmul(%x)
    next %y, %t;
  }
  return %u, %v
}
"""


def value(name: str, extent: int = 4) -> Value:
    return Value(name, TensorSpec(DType.F32, (extent,)))


@pytest.mark.parametrize(
    ("pieces", "held"),
    [
        (((3, 5),), True),
        (((3, 6),), False),
        (((2, 5),), False),
        (((3, 5), (9, 12)), True),
        (((3, 12),), False),
        ((), True),
    ],
)
def test_a_window_holds_what_lives_within_one_round(pieces: tuple[tuple[int, int], ...], held: bool) -> None:
    (loop,) = (node for node in parse(SWAP).walk() if isinstance(node, While))
    window = LoopView("row", loop, value("row"), value("whole", 8), 0, False, ((2, 5), (8, 12)))
    assert window.contains_ranges(pieces) is held


def test_an_operand_that_may_be_several_is_the_pointer_that_was_them_first() -> None:
    now = ValueVersions(frozenset(), never_reuse)
    a, b, p, q = (value(name) for name in "abpq")
    now.bind(p, (a, b))
    now.bind(q, (a, b))
    assert now.operand_version(q) == now.operand_version(p) == p
    now.bind(q, (b,))
    assert now.operand_version(q) == b
    assert now.operand_versions([p, None, q]) == ((a, b, b), (p, None, b), ((p, (a, b)),))


def test_the_bytes_of_groups_and_of_two_together() -> None:
    def group(name: str, low: int, high: int) -> CoalescedBuffer:
        return CoalescedBuffer({}, value(name), low, high, ((0, 2),))

    a, b = group("a", 0, 16), group("b", 8, 24)
    assert (a.nbytes, b.nbytes) == (16, 16)
    together = union_without_members(a, b, shift=-4)
    assert (together.low, together.high, together.nbytes) == (0, 20, 20)


def test_members_are_found_by_the_bytes_and_the_time_that_they_share() -> None:
    """More members than are looked at one by one."""
    group = CoalescedBuffer({}, value("m0", 4), 0, 1600, ((0, 400),))
    for i in range(100):
        group.add_member(Member(value(f"m{i}"), 16 * i), ((6 * i + 1, 6 * i + 3),))
    for i in (0, 50, 99):
        beside = {member.value.name for member in group.candidates_overlapping(16 * i, 16, ((6 * i, 6 * i + 4),))}
        assert beside == {f"m{i}"}
        assert not list(group.candidates_overlapping(16 * i, 16, ((6 * i + 200, 6 * i + 204),)))


def test_long_lives_are_found_by_the_bytes_that_they_share() -> None:
    group = CoalescedBuffer({}, value("m0", 4), 0, 1600, ((0, 10_000),))
    for i in range(100):
        group.add_member(Member(value(f"m{i}"), 16 * i), ((1, 10_000),))
    for offset, nbytes, found in ((0, 16, {"m0"}), (24, 16, {"m1", "m2"}), (1592, 8, {"m99"}), (1600, 16, set())):
        assert {member.value.name for member in group.candidates_overlapping(offset, nbytes, ((5000, 5001),))} == found


def test_contents_are_those_of_operands_and_what_is_around_them() -> None:
    graph = parse("""
    graph @net(%x: u8[4], %none: u8[0]) {
      %whole: u8[4] = test.copy(%x)
      %both: u8[8] = test.concat(%x, %none, %x)
      %padded: u8[12] = test.pad(%both) {offset = 2}
      return %whole, %padded
    }
    """)
    values = {one.name: one for one in graph.values()}
    found = {
        one.name: content
        for one, content in compute_provenance(build_control_flow(graph, serial_schedule(graph))).items()
    }
    x, padded = values["x"], values["padded"]
    assert found["whole"] == (OriginSegment(0, 4, x, 0),)
    assert found["both"] == (OriginSegment(0, 4, x, 0), OriginSegment(4, 4, x, 0))
    own = OriginSegment(0, 2, padded, 0), OriginSegment(10, 2, padded, 10)
    assert found["padded"] == (own[0], OriginSegment(2, 4, x, 0), OriginSegment(6, 4, x, 0), own[1])


def with_scratch(graph: Graph) -> Graph:
    """The graph with scratch memory for the node that makes %t."""
    (loop,) = (node for node in graph.nodes if isinstance(node, While))
    nodes = tuple(replace(n, scratch=value("room")) if n.name == "t" else n for n in loop.body.nodes)
    return replace(graph, nodes=(replace(loop, body=replace(loop.body, nodes=nodes)),))


def test_scratch_memory_is_another_instance_in_every_copy_of_a_body() -> None:
    graph = with_scratch(parse(SWAP))
    (loop,) = (node for node in graph.nodes if isinstance(node, While))
    pointers = frozenset(v for v in (*loop.parameters, *loop.finals) if v is not None)
    laid_out = build_control_flow(graph, serial_schedule(graph), pointers)
    rooms = [point.node.scratch for point in laid_out.points if point.node and point.node.scratch]
    assert len(rooms) > 1
    assert len(set(rooms)) == len(rooms)
    for point in laid_out.points:
        if point.node and point.node.scratch:
            assert point.node.scratch in point.defs


def test_the_label_of_a_buffer_names_its_largest_tensors_first() -> None:
    graph = parse("""
    graph @net(%x: u8[4]) {
      %small: u8[4] = test.matmul(%x)
      %other: u8[8] = test.matmul(%x)
      %large: u8[16] = test.concat(%small, %other, %small)
      %view: u8[12] = test.slice(%large)
      return %view
    }
    """)
    laid_out = build_control_flow(graph, serial_schedule(graph))
    buffers = share_buffers(graph, laid_out, compute_live_ranges(laid_out))
    labels = [buffer.label for buffer in build_packing_problem(buffers, laid_out, alignment=1).buffers]
    assert labels == ["the buffer of %x", "the buffer of %large, %view, %other and 1 more"]


def test_points_are_added_in_copies_of_a_body_but_the_first() -> None:
    """The swap has four copies more of its five points: round, two commands, check and next."""
    graph = parse(SWAP)
    (loop,) = (node for node in graph.nodes if isinstance(node, While))
    pointers = frozenset(v for v in (*loop.parameters, *loop.finals) if v is not None)
    with pytest.raises(RenamingRefused) as refused:
        build_control_flow(graph, serial_schedule(graph), pointers, most_added=19)
    (reason,) = refused.value.reasons
    assert isinstance(reason, NotRenamable)
    assert (reason.why, reason.loop) == (PLAN_TOO_LONG, loop.name)
    laid_out = build_control_flow(graph, serial_schedule(graph), pointers, most_added=20)
    assert sum(point.kind == "round" for point in laid_out.points) == 5


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"io": "elsewhere"}, "io 'elsewhere' must be one of arena, bound"),
        ({"alignment": 2.0}, "alignment 2.0 must be an integer"),
        ({"streams": True}, "streams True must be an integer"),
        ({"alignment": 0}, "alignment 0 must be between 1 and"),
        ({"alignment": (1 << 32) + 1}, "alignment 4294967297 must be between 1 and"),
        ({"streams": 0}, "streams 0 must be at least 1"),
    ],
)
def test_options_that_make_no_sense(chosen: dict[str, Any], why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        Options(**chosen)
    assert Options(alignment=1 << 32, streams=1).alignment == 1 << 32


def test_what_is_handed_on_may_take_turns() -> None:
    """%p comes to stand for %q, which takes %k: one of two values that the inner loop exchanges in its rounds."""
    graph = parse("""
    graph @net(%a: u8[8], %b: u8[8], %n: u8[4]) {
      %f: u8[8], %g: u8[8] = while(%i: i64[]; %p: u8[8] = %a, %q: u8[8] = %b; ) @outer body @rounds {
        %more: bool[] = test.below(%i, %n)
        continue if %more
        %kind: i32[] = test.choose(%n) {count = 2, low = 0}
        %l: u8[8] = case %kind @which {
          arm @first {
            yield %a
          }
          arm @second {
            yield %q
          }
        }
        %d: u8[8] = test.matmul(%p, %q, %l)
        %s: u8[8] = test.matmul(%d)
        %t: u8[8] = test.matmul(%s)
        %k: u8[8], _ = while(%j: i64[]; %u: u8[8] = %s, %v: u8[8] = %t; ) @inner body @turns {
          %on: bool[] = test.below(%j, %n)
          continue if %on
          next %v, %u;
        }
        next %l, %k;
      }
      %r: u8[8] = test.matmul(%f, %g)
      return %r
    }
    """)
    plan = plan_memory(graph, Options(alignment=1))
    assert plan.moves == ()
    stands_for = {place.value: set(place.stands_for) for place in plan.placements if place.how == POINTER}
    assert stands_for["k"] == {"s", "t"}
    assert stands_for["q"] == {"b", "s", "t"}
    assert stands_for["p"] == stands_for["l"] == {"a", "b", "s", "t"}


def test_one_buffer_precedes_another_by_the_points_between_them() -> None:
    """In two streams: %a is read by %b alone, and %c after that."""
    graph = parse("""
    graph @net(%x: u8[4]) {
      %a: u8[4] = test.matmul(%x)
      %b: u8[4] = test.matmul(%a)
      %c: u8[4] = test.matmul(%b)
      %y: u8[4] = test.matmul(%c)
      %z: u8[4] = test.matmul(%x)
      %r: u8[4] = test.matmul(%y, %z)
      return %r
    }
    """)
    steps = [
        ScheduleStep("a"),
        ScheduleStep("b"),
        ScheduleStep("c"),
        ScheduleStep("y"),
        ScheduleStep("z", 1),
        ScheduleStep("r", 0, ("z",)),
    ]
    laid_out = build_control_flow(graph, Schedule(tuple(steps)))
    buffers = share_buffers(graph, laid_out, compute_live_ranges(laid_out), merging=False)
    problem = build_packing_problem(buffers, laid_out, alignment=1)
    at = {buffer.members[0].value.name: i for i, buffer in enumerate(buffers)}
    assert problem.precedence is not None
    distance = problem.precedence.distance
    assert [distance[at["a"], at[name]] for name in "xabcyzr"] == [0, 0, 0, 1, 2, 0, 4]
    assert [distance[at[name], at["y"]] for name in "abc"] == [2, 1, 0]
    assert not distance[at["z"]][[at[name] for name in "xabcyr"]].any()

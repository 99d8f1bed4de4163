"""Jumps between the copies of a loop's body: one after each end, and always the same pointers in a copy."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from sublet.analysis.options import Options
from sublet.checker import check_bytes
from sublet.checker.state_space import PlacementIndex, StateSpace
from sublet.checker.timeline import build_timeline
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.plan import MemoryPlan, RolledLoop, VersionTransition
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.support import dialect
from tests.support.interpreter import results_match
from tests.support.plan_mutants import JUMP_MUTATIONS
from tests.support.plans import own_bytes
from tests.support.programs import program

assert dialect.OPS

GRAPH = parse("""
graph @net(%a: u8[24], %seed: u8[4]) {
  %last: u8[24] = while(%i: i64[]; %y: u8[24] = %a; ) @loop body @body {
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    %kind: i32[] = test.choose(%y) {count = 3, low = 0}
    %z: u8[24] = case %kind @which {
      arm @keep {
        yield %y
      }
      arm @back {
        yield %a
      }
      arm @change {
        %m: u8[24] = test.matmul(%y)
        yield %m
      }
    }
    next %z;
  }
  %r: u8[24] = test.matmul(%last, %a)
  return %r
}
""")
PLAN = plan_memory(GRAPH, Options(alignment=1))
"""Copy 0 begins with %a, and copies 1 and 2 with two places of %m in turn."""

KEEP, BACK, CHANGE = ((("which", way),) for way in range(3))
JUMPS = (
    VersionTransition(0, KEEP, 0), VersionTransition(0, BACK, 0), VersionTransition(0, CHANGE, 1),
    VersionTransition(1, KEEP, 1), VersionTransition(1, BACK, 0), VersionTransition(1, CHANGE, 2),
    VersionTransition(2, KEEP, 2), VersionTransition(2, BACK, 0), VersionTransition(2, CHANGE, 1),
)  # fmt: skip


def jumping(*jumps: VersionTransition) -> MemoryPlan:
    return replace(PLAN, rolled=(replace(PLAN.rolled[0], jumps=jumps),))


def found(plan: MemoryPlan) -> list[str]:
    return [str(finding) for finding in check_bytes(GRAPH, plan.schedule, plan) if finding.rule == "bad-jumps"]


def test_the_planned_jumps() -> None:
    assert set(PLAN.rolled[0].jumps) == set(JUMPS)
    assert check_bytes(GRAPH, PLAN.schedule, jumping(*JUMPS)) == ()
    assert check_bytes(GRAPH, PLAN.schedule, jumping(*reversed(JUMPS), JUMPS[0])) == ()


def test_one_way_to_two_copies() -> None:
    """Whichever comes first: who binds the copies before the run follows both."""
    for jumps in (
        (*JUMPS, VersionTransition(1, KEEP, 2)),
        (VersionTransition(1, KEEP, 2), *JUMPS),
        (*JUMPS, VersionTransition(1, (), 2)),
    ):
        says = "\n".join(found(jumping(*jumps)))
        assert "has transitions from body version @1 to both" in says
        assert "if which takes exit 0 (give each exit of a body version exactly one successor)" in says


def test_an_end_that_nothing_follows() -> None:
    assert found(jumping(*JUMPS[:5], *JUMPS[6:]))[:1] == [
        "loop loop: has no transition from body version @1 if which takes exit 2 "
        "(give each exit of a body version exactly one successor) [bad-jumps]"
    ]


@pytest.mark.parametrize(
    "jump",
    [VersionTransition(3, KEEP, 0), VersionTransition(0, (("which", 7),), 1), VersionTransition(0, (("loop", 0),), 1)],
)
def test_a_jump_that_cannot_be_taken(jump: VersionTransition) -> None:
    assert any("never takes the transition from body version" in says for says in found(jumping(*JUMPS, jump)))


def test_a_jump_may_name_a_loop_that_has_one_way_out() -> None:
    """Its body has one copy: to name that way asks for nothing."""
    inner = """
        %e: u8[24] = test.const()
        %n: u8[24] = while(%j: i64[]; %q: u8[24] = %e; ) @inner body @rounds {
          %on: bool[] = test.below(%j, %seed)
          continue if %on
          %v: u8[24] = test.relu(%q)
          next %v;
        }
        %d: u8[24] = test.matmul(%n)
        next %z;"""
    graph = parse(to_text(GRAPH).replace("next %z;", inner))
    plan = plan_memory(graph, Options(alignment=1))
    (record,) = plan.rolled
    assert record.jumps
    named = tuple(replace(jump, ways=(*jump.ways, ("inner", 0))) for jump in record.jumps)
    other = tuple(replace(jump, ways=(*jump.ways, ("inner", 1))) for jump in record.jumps)
    assert check_bytes(graph, plan.schedule, replace(plan, rolled=(replace(record, jumps=named),))) == ()
    more = (*named, other[0])
    found = check_bytes(graph, plan.schedule, replace(plan, rolled=(replace(record, jumps=more),)))
    assert [finding.rule for finding in found] == ["bad-jumps"]
    assert check_bytes(graph, plan.schedule, replace(plan, rolled=(replace(record, jumps=other),)))


def test_a_copy_entered_with_the_pointer_elsewhere() -> None:
    says = found(jumping(JUMPS[0], replace(JUMPS[1], next=1), *JUMPS[2:]))
    assert any("enters body version @1 with %y at arena[" in one and "one iteration, and at" in one for one in says)
    assert any("add a body version for each binding" in one for one in says)


def test_a_pointer_that_changes_without_copies() -> None:
    """A loop with one copy of its body has one thing that its pointer stands for."""
    graph = parse("""
    graph @net(%a: u8[24], %b: u8[24], %seed: u8[4]) {
      %last: u8[24] = while(%i: i64[]; %y: u8[24] = %a; ) @loop body @body {
        %go: bool[] = test.below(%i, %seed)
        continue if %go
        next %b;
      }
      %r: u8[24] = test.matmul(%last, %a)
      return %r
    }
    """)
    plan = plan_memory(graph, Options(alignment=1))
    assert replace(plan.rolled[0], heads=()) == RolledLoop("loop", (), 1, 1)
    says = {str(finding).partition("[")[0] for finding in check_bytes(graph, plan.schedule, replace(plan, rolled=()))}
    assert "loop loop: enters body version @0 with %y at arena" in says


def with_jumps() -> list[tuple[Graph, MemoryPlan]]:
    """Plans that have jumps: this one, and some of random programs."""
    cases = [(GRAPH, PLAN)]
    for seed in (57, 133, 158):
        graph = program(random.Random(seed), 14)
        cases.append((graph, plan_memory(graph, Options(strategy="best_fit_by_size", alignment=1, in_place_from=0))))
    return cases


def test_mutants_are_refused_or_run_right() -> None:
    failing, refused = Counter[str](), Counter[str]()
    for number, (graph, plan) in enumerate(with_jumps()):
        assert any(record.jumps for record in plan.rolled)
        rng = random.Random(number)
        for kind, mutate in [*JUMP_MUTATIONS.items()] * (5 if number else 12):
            mutant = mutate(rng, plan)
            if mutant is None:
                continue
            if check_bytes(graph, mutant.schedule, mutant):
                refused[kind] += 1
                failing[kind] += not results_match(graph, mutant.schedule, mutant, rng, 2)
            else:
                assert results_match(graph, mutant.schedule, mutant, rng), (number, kind)
    assert set(refused) == set(failing) == set(JUMP_MUTATIONS), (refused, failing)


def test_ways_decide_where_nothing_is_pointed_at() -> None:
    """No way leads to the copy between two copies of a body."""
    graph = parse("""
    graph @net(%x: u8[8], %n: u8[4]) {
      %f: u8[8] = while(%i: i64[]; %p: u8[8] = %x; ) @loop body @body {
        %more: bool[] = test.below(%i, %n)
        continue if %more
        %kind: i32[] = test.choose(%p) {count = 2, low = 0}
        %z: u8[8] = case %kind @which {
          arm @one { yield %p }
          arm @two { yield %p }
        }
        next %z;
      }
      return %f
    }
    """)
    jumps = tuple(VersionTransition(copy, (("which", way),), 2 * way) for copy in (0, 2) for way in (0, 1))
    record = RolledLoop("loop", (), 0, 3, jumps, ((), (), ()))
    places = PlacementIndex(own_bytes(graph))
    points = build_timeline(graph, serial_schedule(graph), places.pointers, {("loop", ()): record}, 100)
    walk = StateSpace(points, places)
    assert not places.pointers
    assert {context for visit in walk.visits for context in walk.moment_of(visit).context} == {("loop", 0), ("loop", 2)}

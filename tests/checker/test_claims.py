"""What a plan says besides its regions: true claims are proven, false ones are violations, open ones are told."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sublet.analysis.options import Options
from sublet.checker import LABELS, PROVEN, check, check_bytes, judge
from sublet.checker.bound import stacked_bytes
from sublet.checker.liveness import is_covered_by, merge_ranges
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import MemoryPlan, PlanPoint, Storage
from sublet.plan.schedule import Schedule, ScheduleStep
from sublet.planning.pipeline import plan_memory, reprove_bound
from tests.support.plan_file_mutants import JUMPING, judge_files
from tests.support.programs import program

CHAIN = parse("""
graph @net(%x: f32[16,16]) {
  %a: f32[16,16] = onnx.MatMul(%x, %x)
  %b: f32[16,16] = onnx.MatMul(%a, %x)
  %c: f32[16,16] = onnx.Relu(%b)
  return %c
}
""")

NEEDS_A_SEARCH = 3
"""The seed of a program whose peak no packing reaches where nothing shares bytes."""

LOOP = parse("""
graph @r(%h0: f32[3], %k0: f32[3]) {
  weights %limit: i64[] = [9]
  %h: f32[3], %k: f32[3] = while(%i: i64[]; %p: f32[3] = %h0, %q: f32[3] = %k0; ) @loop body @step {
    %c: bool[] = onnx.Less(%i, %limit)
    continue if %c
    %unread: f32[3] = onnx.Neg(%p)
    next %q, %p;
  }
  return %h, %k
}
""")


def rules(graph: Graph, plan: MemoryPlan) -> set[str]:
    return {finding.rule for finding in check(graph, plan.schedule, plan)}


def with_places(plan: MemoryPlan, **changes: Any) -> MemoryPlan:
    return replace(plan, placements=tuple(replace(place, **changes) for place in plan.placements))


FALSE: dict[str, Any] = {
    "false-bound": [
        {"bound": "trust me"},
        {"proof": ()},
        {"proof": (0, 0)},
        {"proof": (99,)},
        {"lower_bound_bytes": 0},
        {"lower_bound_bytes": 1 << 20},
        {"bound": "search"},
    ],
    "false-sum": [{"total_bytes": 1}, {"view_bytes": 10**9}, {"inplace_bytes": 0}],
    "false-points": [{"points": ("hi",)}],
    "false-name": [{"graph": "other"}, {"stopped": "boredom"}],
}


@pytest.mark.parametrize(("rule", "changes"), [(rule, one) for rule, several in FALSE.items() for one in several])
def test_a_false_claim_is_a_violation(rule: str, changes: dict[str, Any]) -> None:
    plan = plan_memory(CHAIN, Options(alignment=1))
    false = replace(plan, **changes)
    assert check_bytes(CHAIN, plan.schedule, false) == ()
    assert rules(CHAIN, false) == {rule}


def test_a_loose_plan_does_not_become_optimal_by_saying_so() -> None:
    loose = plan_memory(CHAIN, Options(strategy="no_reuse", share=False))
    assert rules(CHAIN, replace(loose, lower_bound_bytes=loose.arena_bytes)) == {"false-bound"}
    apart = tuple(place.buffer for place in loose.placements)
    lie = replace(loose, lower_bound_bytes=loose.arena_bytes, proof=apart)
    assert rules(CHAIN, lie) == rules(CHAIN, replace(lie, bound="antichain")) == {"false-bound"}


def test_steps_that_wait_for_each_other_prove_no_bound() -> None:
    """%a is no longer needed when %c is made, whatever another stream does."""
    graph = parse("""
    graph @net(%x: u8[8]) {
      %a: u8[8] = test.matmul(%x)
      %b: u8[8] = test.matmul(%a)
      %c: u8[8] = test.matmul(%b)
      %d: u8[8] = test.matmul(%x)
      %y: u8[8] = test.matmul(%c, %d)
      return %y
    }
    """)
    steps = (
        ScheduleStep("a"),
        ScheduleStep("d", 1),
        ScheduleStep("b", 2, ("a",)),
        ScheduleStep("c", 0, ("b",)),
        ScheduleStep("y", 1, ("c",)),
    )
    plan = plan_memory(graph, Options(strategy="no_reuse", share=False, alignment=1), schedule=Schedule(steps))
    backwards = (replace(place, buffer=5 - place.buffer) for place in plan.placements)
    for numbered in (plan, replace(plan, placements=tuple(backwards))):
        number = {place.value: place.buffer for place in numbered.placements}
        for names, right in (("ac", False), ("abc", False), ("by", False), ("xy", False),
                             ("ab", True), ("ad", True), ("cd", True), ("bd", True)):  # fmt: skip
            proof = tuple(number[name] for name in names)
            said = replace(numbered, lower_bound_bytes=8 * len(names), bound="antichain", proof=proof)
            assert rules(graph, said) == (set() if right else {"false-bound"})


def test_lives_peak_and_buffers_are_those_of_the_program() -> None:
    plan = plan_memory(CHAIN)
    assert rules(CHAIN, with_places(plan, live=())) == {"false-live"}
    assert rules(CHAIN, with_places(plan, live=((0, 5),))) == {"false-live"}
    assert rules(CHAIN, with_places(plan, buffer=0)) == {"false-buffer", "false-sharing"}
    assert rules(CHAIN, with_places(plan, how="own", shares="")) >= {"false-sharing"}
    assert rules(CHAIN, replace(plan, peak=replace(plan.peak, values=("nobody",)))) == {"false-peak"}
    assert rules(CHAIN, replace(plan, peak=replace(plan.peak, nbytes=7))) == {"false-peak"}


def test_an_arena_that_nothing_lies_in_has_no_bytes() -> None:
    plan = plan_memory(CHAIN)
    spare = (*plan.storages, Storage("spare", "arena", 1 << 61))
    assert rules(CHAIN, replace(plan, storages=spare, arena_bytes=plan.arena_bytes + (1 << 61))) == {"arena-size"}


def test_every_copy_is_told_and_no_other() -> None:
    plan = plan_memory(LOOP, Options(io="bound"))
    assert [str(move.edge) for move in plan.moves] == ["exit loop", "exit loop"]
    for moves in (
        (),
        plan.moves[1:],
        (*plan.moves, plan.moves[0]),
        (replace(plan.moves[0], nbytes=8), *plan.moves[1:]),
    ):
        assert rules(LOOP, replace(plan, moves=moves)) == {"false-moves"}
    free = plan_memory(LOOP)
    assert free.moves == ()
    assert rules(LOOP, replace(free, moves=plan.moves[1:])) == {"false-moves"}


def test_a_pointer_stands_for_what_may_be_assigned_to_it() -> None:
    plan = plan_memory(LOOP)
    [pointer, *_] = [place for place in plan.placements if place.how == "pointer"]
    for told in ((), pointer.stands_for[1:], (*pointer.stands_for, "unread"), pointer.stands_for * 2):
        other = tuple(replace(place, stands_for=told) if place == pointer else place for place in plan.placements)
        assert "false-targets" in rules(LOOP, replace(plan, placements=other))


def test_a_value_has_a_place_in_every_copy_of_a_body_that_writes_it() -> None:
    """Also where nobody reads it: whoever runs the plan must write it somewhere."""
    plan = plan_memory(LOOP)
    first, second = (place for place in plan.placements if place.value == "unread")
    assert first.copies != second.copies
    missing = replace(plan, placements=tuple(place for place in plan.placements if place != second))
    assert "bad-copies" in rules(LOOP, missing)
    more = replace(second, copies=(*second.copies, (("loop", 7),)))
    dead = replace(plan, placements=tuple(more if place == second else place for place in plan.placements))
    assert "bad-copies" in rules(LOOP, dead)


def test_each_claim_is_proven_or_a_label() -> None:
    plan = plan_memory(CHAIN)
    claims = judge(CHAIN, plan.schedule, plan).claim_status
    assert set(claims) == {*PROVEN, *LABELS}
    assert {claims[name] for name in PROVEN} == {"proven"}
    assert judge(CHAIN, plan.schedule, replace(plan, total_bytes=1)).claim_status == {}


def test_what_only_a_search_has_refuted_is_told_and_can_be_refuted_again() -> None:
    graph = program(random.Random(NEEDS_A_SEARCH), 16, control=False)
    plan = plan_memory(graph, Options(alignment=1, share=False))
    assert plan.bound == "search"
    judged = judge(graph, plan.schedule, plan)
    assert judged.findings == ()
    assert set(judged.unproven) == {"lower_bound_bytes"}
    assert judged.claim_status["lower_bound_bytes"].startswith("not proven: found by a search")
    again = reprove_bound(plan, judged)
    assert (again.findings, again.unproven) == ((), {})
    loose = plan_memory(graph, Options(alignment=1, share=False, strategy="no_reuse"))
    lie = replace(loose, lower_bound_bytes=loose.arena_bytes, bound="search", proof=())
    found = reprove_bound(lie, judge(graph, loose.schedule, lie))
    assert [finding.rule for finding in found.findings] == ["false-bound"]


def test_a_life_may_go_a_way_that_no_run_takes_but_not_begin_before_the_bytes_are_written() -> None:
    graph = parse(JUMPING)
    plan = plan_memory(graph, Options(strategy="no_reuse"))

    def kept_at(value: str, point: int) -> MemoryPlan:
        """The plan that says of the first place of a value that it is alive at one more point."""
        number = next(i for i, place in enumerate(plan.placements) if place.value == value)
        place = plan.placements[number]
        points = sorted({point, *(at for begin, end in place.live for at in range(begin, end))})
        longer = replace(place, live=merge_ranges((at, at + 1) for at in points))
        return replace(plan, placements=(*plan.placements[:number], longer, *plan.placements[number + 1 :]))

    later = plan.points.index(PlanPoint("next", "loop", (("loop", 2),)))
    assert rules(graph, kept_at("a", later)) == set(), "by the order alone, the loop may end in its first copy"
    for value in ("m", "p"):
        assert rules(graph, kept_at(value, later)) == set()
        assert rules(graph, kept_at(value, 0)) == {"false-live"}
        assert rules(graph, kept_at(value, plan.points.index(PlanPoint("branch", "first")))) == {"false-live"}


def test_changed_plan_files_are_refused_or_still_true(tmp_path: Path) -> None:
    """A sample; `python -m tests.fuzz --kind plans` makes thousands."""
    judged = [found for seed in range(12) for found in judge_files(seed, tmp_path, count=15)]
    assert len(judged) > 100
    assert len({name for name, _ in judged}) > 40
    assert {accepted for _, accepted in judged} == {True, False}


def test_the_jumps_of_a_loop_are_among_what_is_changed() -> None:
    plan = plan_memory(parse(JUMPING))
    assert any(record.jumps for record in plan.rolled)


def test_a_model_may_lie_in_a_file_of_another_name() -> None:
    """Where a node was written is a label: the plan is of the same program."""
    plan = plan_memory(parse(JUMPING, "written.sublet"))
    graph = parse("\n" + JUMPING, "renamed.sublet")
    assert judge(graph, plan.schedule, plan).findings == ()
    (other, *nodes) = plan.nodes
    assert rules(graph, replace(plan, nodes=(replace(other, op="test.relu"), *nodes))) == {"false-name"}


def test_a_pointer_begins_a_copy_at_the_very_placement_that_is_told() -> None:
    """Another value in the same bytes is another one."""
    graph = parse("""
    graph @net(%a: u8[8], %seed: u8[4]) {
      %n: u8[8] = test.matmul(%a)
      %d: u8[8] = test.matmul(%n)
      %last: u8[8] = while(%i: i64[]; %y: u8[8] = %d; ) @loop body @body {
        %go: bool[] = test.below(%i, %seed)
        continue if %go
        %m: u8[8] = test.matmul(%y)
        next %m;
      }
      return %last
    }
    """)
    plan = plan_memory(graph, Options(alignment=1))
    (record,) = plan.rolled
    tried = 0
    for copy, (number,) in enumerate(record.heads):
        for other, place in enumerate(plan.placements):
            if other != number and place.region == plan.placements[number].region:
                heads = (*record.heads[:copy], (other,), *record.heads[copy + 1 :])
                assert rules(graph, replace(plan, rolled=(replace(record, heads=heads),))) == {"false-heads"}
                tried += 1
    assert tried


def test_ranges_within_others() -> None:
    outer = ((2, 5), (8, 12))
    for inner in ((), ((2, 5),), ((3, 4), (8, 9), (11, 12)), ((8, 12),)):
        assert is_covered_by(inner, outer)
    for inner in (((1, 3),), ((4, 6),), ((3, 9),), ((2, 5), (12, 13)), ((5, 8),), ((13, 14),)):
        assert not is_covered_by(inner, outer)
    assert not is_covered_by(((0, 1),), ())


@pytest.mark.parametrize(
    ("sizes", "alignment", "arenas", "together"),
    [([], 4, 1, 0), ([5, 3], 4, 1, 9), ([3, 5], 4, 1, 9), ([8, 4], 4, 1, 12), ([5, 3], 1, 1, 8), ([5, 3], 4, 2, 8)],
)
def test_what_buffers_take_side_by_side(sizes: list[int], alignment: int, arenas: int, together: int) -> None:
    """What is rounded up is all but the one on top; of several arenas nothing is."""
    storages = tuple(Storage(f"arena{i}", "arena", 16) for i in range(arenas))
    plan = plan_memory(parse("graph @net(%x: u8[4]) {\n  return %x\n}"))
    assert stacked_bytes(replace(plan, alignment=alignment, storages=storages), sizes) == together


def test_a_reason_that_there_is_not_is_none() -> None:
    """A tie is called by what it is."""
    graph = parse("""
    graph @viewed(%x: f32[4]) {
      %y: f32[4] = nn.exp(%x)
      %v: f32[2,2] = nn.reshape(%y) {shape = [2, 2]}
      return %v
    }
    """)
    plan = plan_memory(graph)
    named = tuple(replace(p, how="nobody") if p.how == "view" else p for p in plan.placements)
    assert named != plan.placements
    found = judge(graph, plan.schedule, replace(plan, placements=named)).findings
    assert "false-sharing" in {finding.rule for finding in found}

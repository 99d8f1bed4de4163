"""What updates an input or weight lies in its place where lives allow; elsewhere it is copied, and that is told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.checker import check
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import MemoryPlan, Region, bound_storage_name
from sublet.plan.file import fingerprint, from_json, to_json
from sublet.plan.schedule import Schedule, ScheduleStep
from sublet.planning.pipeline import plan_memory
from tests.support import dialect
from tests.support.interpreter import results_match

assert dialect.OPS

STEP = parse(
    """
    graph @step(%g: f32[64], %rate: f32[]) {
      weights %w: f32[64], %m: f32[64], %mu: f32[]
      %kept: f32[64] = onnx.Mul(%m, %mu)
      %m2: f32[64] = onnx.Add(%kept, %g)
      %change: f32[64] = onnx.Mul(%rate, %m2)
      %w2: f32[64] = onnx.Sub(%w, %change)
      update %w = %w2, %m = %m2
      return
    }
    """
)
FORBID = Options(forbid_copies=True)


def updating(nodes: str, updates: str, returned: str = "") -> Graph:
    """A graph of one input and two weights of 16 floats, and a flag."""
    return parse(
        f"""graph @net(%x: f32[16], %flag: bool[]) {{
          weights %w: f32[16], %v: f32[16]
          {nodes}
          update {updates}
          return {returned}
        }}"""
    )


def region(plan: MemoryPlan, value: str) -> Region:
    return next(place.region for place in plan.placements if place.value == value)


def rules(graph: Graph, plan: MemoryPlan) -> set[str]:
    return {finding.rule for finding in check(graph, plan.schedule, plan)}


@pytest.mark.parametrize("weights", ["bound", "arena"])
def test_an_optimiser_works_in_the_memory_of_its_weights(weights: str) -> None:
    plan = plan_memory(STEP, Options(weights=weights, forbid_copies=True))  # type: ignore[arg-type]
    assert plan.updated == ("w", "m")
    assert region(plan, "w2") == region(plan, "w")
    assert region(plan, "m2") == region(plan, "kept") == region(plan, "m")
    if weights == "bound":
        assert {storage.name for storage in plan.storages} == {"arena", "%w", "%m", "%mu"}
        assert plan.arena_bytes <= 256 + 64  # the gradient and then the change; the rate
    assert from_json(to_json(plan)) == plan


def test_the_fingerprint_depends_on_updates() -> None:
    schedule = plan_memory(STEP).schedule
    other = replace(STEP, updates=STEP.updates[:1])
    assert fingerprint(STEP, schedule) != fingerprint(other, schedule)


def test_a_returned_source_lies_in_its_target_too() -> None:
    plan = plan_memory(updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %n", "%n"), FORBID)
    assert region(plan, "n") == region(plan, "w")


@pytest.mark.parametrize(
    ("nodes", "updates", "why"),
    [
        ("", "%w = %v", "%v has its own bytes before the run"),
        ("", "%w = %x", "%x has its own bytes before the run"),
        ("%n: f32[16] = onnx.Neg(%x) %o: f32[16] = onnx.Add(%n, %w)", "%w = %n", "%w is live when %n is computed"),
        ("%n: f32[16] = onnx.Neg(%x)", "%w = %n, %v = %n", "%n and %v are bound to different memory"),
    ],
)
def test_what_cannot_lie_there_is_copied_and_forbidden(nodes: str, updates: str, why: str) -> None:
    graph = updating(nodes, updates)
    move, *_ = plan_memory(graph).moves
    assert (str(move.edge), move.nbytes) == ("update", 64)
    with pytest.raises(PlanError, match=rf"update: 64 bytes from %\w to %\w: {why}"):
        plan_memory(graph, FORBID)


def test_without_sharing_all_is_copied() -> None:
    moves = plan_memory(STEP, Options(strategy="no_reuse", share=False)).moves
    assert [(str(m.edge), m.source, m.destination, m.why) for m in moves] == [
        ("update", "w2", "w", "sharing is off (share=False)"),
        ("update", "m2", "m", "sharing is off (share=False)"),
    ]


def test_a_loop_works_in_the_memory_of_what_it_starts_from() -> None:
    loop = """%f: f32[16] = while(%i: i64[]; %p: f32[16] = %w; ) @turn body @body {
        %c: bool[] = onnx.Any(%p)
        continue if %c
        %q: f32[16] = onnx.Sub(%p, %x)
        next %q;
      }"""
    plan = plan_memory(updating(loop, "%w = %f"), FORBID)
    assert {region(plan, name) for name in "fpqw"} == {Region("%w", 0, 64)}


def test_the_storage_of_an_updated_value_is_free_between_its_lives() -> None:
    nodes = "%a: f32[16] = onnx.Neg(%w) %b: f32[16] = onnx.Softmax(%a) %n: f32[16] = onnx.Softmax(%b)"
    plan = plan_memory(updating(nodes, "%w = %n"))
    assert region(plan, "a") == region(plan, "n") == Region("%w", 0, 64)
    assert plan.moves == ()


def test_weights_that_stay_are_read_only() -> None:
    graph = updating("%a: f32[16] = onnx.Neg(%v) %n: f32[16] = onnx.Sub(%a, %w)", "%w = %n")
    plan = plan_memory(graph)
    home = Region(bound_storage_name("v"), 0, 64)
    wrong = replace(plan, placements=tuple(replace(p, region=home) if p.value == "a" else p for p in plan.placements))
    assert "read-only-written" in rules(graph, wrong)


def placed(plan: MemoryPlan, value: str, where: Region) -> MemoryPlan:
    return replace(plan, placements=tuple(replace(p, region=where) if p.value == value else p for p in plan.placements))


def test_the_checker_finds_what_an_update_breaks() -> None:
    early = updating("%n: f32[16] = onnx.Neg(%x) %o: f32[16] = onnx.Add(%n, %w)", "%w = %n", "%o")
    assert "clobbered" in rules(early, placed(plan_memory(early), "n", Region("%w", 0, 64)))
    old = updating("%o: f32[16] = onnx.Identity(%w)", "%w = %x", "%o")
    assert "output-lost" in rules(old, placed(plan_memory(old), "o", Region("%w", 0, 64)))
    late = updating("%n: f32[16] = onnx.Neg(%w) %o: f32[16] = onnx.Neg(%x)", "%w = %n", "%o")
    assert "clobbered" in rules(late, placed(plan_memory(late), "o", Region("%w", 0, 64)))
    plan = plan_memory(late)
    assert rules(late, replace(plan, updated=())) == {"updates-untold"}
    assert rules(replace(late, updates=()), replace(plan, updated=())) >= {"read-only-written"}


def test_streams_that_do_not_wait_keep_apart() -> None:
    """The reader of the old content and the maker of the new one are in two streams."""
    graph = updating("%o: f32[16] = onnx.Exp(%w) @read %n: f32[16] = onnx.Neg(%x) @make", "%w = %n", "%o")
    unordered = Schedule((ScheduleStep("read", 0, ()), ScheduleStep("make", 1, ())))
    ordered = Schedule((ScheduleStep("read", 0, ()), ScheduleStep("make", 1, ("read",))))
    assert [str(move.edge) for move in plan_memory(graph, schedule=unordered).moves] == ["update"]
    assert plan_memory(graph, schedule=ordered).moves == ()


def test_the_update_reads_what_a_pointer_stands_for_before_it_writes() -> None:
    """Where no round is made %last is %a, which is updated at the same time."""
    graph = parse("""
    graph @net(%a: u8[16], %seed: u8[4]) {
      weights %w: u8[16]
      %new: u8[16] = test.matmul(%a, %w)
      %last: u8[16] = while(%i: i64[]; %x: u8[16] = %a; ) @loop body @body {
        %go: bool[] = test.below(%i, %seed)
        continue if %go
        %y: u8[16] = test.matmul(%x, %seed)
        next %y;
      }
      %z: u8[16] = test.matmul(%seed)
      update %a = %new, %w = %last
      return %z
    }
    """)
    plan = plan_memory(graph, Options(alignment=1))
    assert results_match(graph, plan.schedule, plan, random.Random(1), 20)

"""Plans of other tools, judged: by replay against a model, or by the lifetimes that they tell."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from sublet.base.errors import PlanError
from sublet.checker import judge
from sublet.checker.external import (
    Evidence,
    ForeignOutcome,
    ForeignPlan,
    PlacedTensor,
    judge_by_lifetimes,
    judge_by_replay,
)
from sublet.checker.external.external_plan import peak_bytes_in_use, plan_from_json
from sublet.ir.model import Model
from sublet.ir.text import parse
from tests.checker.external.mutated import of_lifetimes, of_programs, placed_program
from tests.support.programs import program

CHAIN = parse(
    """graph @chain(%x: f32[4]) {
  %a: f32[4] = onnx.Relu(%x)
  %b: f32[4] = onnx.Softmax(%a)
  %c: f32[4] = onnx.Add(%a, %b)
  %d: f32[4] = onnx.Relu(%c)
  return %d
}
"""
)


def placed(**offsets: int) -> ForeignPlan:
    return ForeignPlan(tuple(PlacedTensor(name, offset) for name, offset in offsets.items()), "a tool")


RIGHT = placed(x=0, a=0, b=16, c=0, d=16)


def rules(plan: ForeignPlan) -> list[str]:
    return [finding.rule for finding in judge_by_replay(Model(CHAIN), plan).findings]


def test_a_right_plan_is_right() -> None:
    found = judge_by_replay(Model(CHAIN), RIGHT)
    assert (found.outcome, found.evidence) == (ForeignOutcome.RIGHT, Evidence.REPLAY)
    assert found.judged == ("x", "a", "b", "c", "d")
    assert [(region.name, region.nbytes, region.lower_bound_bytes) for region in found.regions] == [("arena", 32, 32)]


@pytest.mark.parametrize(
    ("plan", "rule", "told"),
    [
        (placed(x=0, a=16, b=16, c=0, d=16), "clobbered", "reads %a at arena[16, 32), but bytes [16, 32) hold"),
        (placed(x=0, a=0, b=16, c=32, d=16), None, ""),
        (placed(x=0, a=16, b=32, c=8, d=40), "input-overwritten", "%c at arena[8, 24)"),
        (replace(RIGHT, regions={"arena": 31}), "out-of-storage", "%b: lies at arena[16, 32), but arena has 31 bytes"),
        (placed(x=0, a=0, b=-16, c=0, d=16), "out-of-storage", "%b: lies at arena[-16, 0)"),
        (placed(x=0, a=0, b=17, c=0, d=17), "misaligned", "its elements are 4 bytes wide"),
        (replace(RIGHT, alignment=32), "misaligned", "which is no multiple of the alignment 32"),
        (
            replace(RIGHT, tensors=(PlacedTensor("b", 16, nbytes=15),)),
            "wrong-size",
            "has a region of 15 bytes, but needs 16",
        ),
    ],
)
def test_each_broken_rule_is_told(plan: ForeignPlan, rule: str | None, told: str) -> None:
    found = judge_by_replay(Model(CHAIN), plan)
    if rule is None:
        assert found.outcome is ForeignOutcome.RIGHT
    else:
        assert any(finding.rule == rule and told in str(finding) for finding in found.findings), found.findings


def test_a_value_overwritten_before_its_last_read_names_both_and_when() -> None:
    late = parse(
        """graph @late(%x: f32[4]) {
  %a: f32[4] = onnx.Relu(%x)
  %b: f32[4] = onnx.Softmax(%a)
  %c: f32[4] = onnx.Add(%x, %b)
  return %c
}
"""
    )
    (finding,) = judge_by_replay(Model(late), placed(x=0, a=16, b=0, c=0)).findings
    assert finding.rule == "clobbered"
    told = str(finding)
    assert "reads %x" in told
    assert "hold bytes [0, 16) of %b, written by node" in told


def test_all_violations_are_told_not_the_first() -> None:
    found = rules(replace(placed(x=0, a=2, b=2, c=2, d=200), regions={"arena": 64}))
    assert {"misaligned", "input-overwritten", "out-of-storage"} <= set(found)


def test_what_is_left_out_is_told_and_the_rest_judged() -> None:
    part = replace(RIGHT, tensors=RIGHT.tensors[:2], left_out=("b", "c"))
    found = judge_by_replay(Model(CHAIN), part)
    assert (found.outcome, set(found.not_judged), found.judged) == (ForeignOutcome.PARTLY, {"b", "c"}, ("x", "a"))
    assert judge_by_replay(Model(CHAIN), replace(part, tensors=(PlacedTensor("a", 1),))).outcome is ForeignOutcome.WRONG
    unknown = judge_by_replay(Model(CHAIN), replace(RIGHT, tensors=(*RIGHT.tensors, PlacedTensor("folded", 0))))
    assert unknown.not_judged == {"folded": "the imported model has no tensor of this name"}


def test_inputs_and_outputs_without_a_place_are_the_callers() -> None:
    found = judge_by_replay(Model(CHAIN), placed(a=0, b=16, c=0))
    assert (found.outcome, found.nbytes) == (ForeignOutcome.RIGHT, 32)


def test_several_regions() -> None:
    two = [replace(t, region="tcm", offset=0) if t.name == "b" else replace(t, region="dram") for t in RIGHT.tensors]
    found = judge_by_replay(Model(CHAIN), replace(RIGHT, tensors=tuple(two), regions={"tcm": 16}))
    assert [(r.name, r.nbytes) for r in found.regions] == [("tcm", 16), ("dram", 32)]
    assert found.outcome is ForeignOutcome.RIGHT


def test_a_plan_of_another_model_is_bad_input() -> None:
    with pytest.raises(PlanError, match="belongs to another model: none of its 1 tensors, such as 'q'"):
        judge_by_replay(Model(CHAIN), placed(q=0))


@pytest.mark.parametrize(
    "plan", ["placed(a=1 << 62)", "replace(RIGHT, alignment=0)", "replace(RIGHT, left_out=('a',))",
             "ForeignPlan((PlacedTensor('a', 0, '%a'),))"]
)  # fmt: skip
def test_senseless_plans_are_bad_input(plan: str) -> None:
    with pytest.raises(PlanError):
        eval(plan)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_drawn_of_a_right_plan_is_true(seed: int) -> None:
    """Lives, buffers, sums and copies are found as the checker finds them: as a plan of Sublet's it says no lie."""
    rng = random.Random(seed)
    graph = program(rng, 8)
    told = placed_program(rng, graph)
    plan = judge_by_replay(Model(graph), told).plan
    assert plan is not None
    if any(storage.kind == "left out" for storage in plan.storages):
        return
    findings = judge(graph, plan.schedule, replace(plan, bound="search")).findings
    assert [finding for finding in findings if finding.rule != "false-bound"] == []


def test_the_bound_counts_what_is_shared_once() -> None:
    assert peak_bytes_in_use([(0, 4, ((0, 3),)), (0, 4, ((1, 2),)), (8, 10, ((1, 2),)), (0, 99, ((4, 4),))]) == 6
    assert peak_bytes_in_use([(0, 4, ((0, 1),)), (4, 9, ((1, 2),))]) == 5
    assert peak_bytes_in_use([]) == 0


def lives(*tensors: PlacedTensor, **fields: object) -> ForeignPlan:
    return ForeignPlan(tensors, **fields)  # type: ignore[arg-type]


def test_lifetimes_are_judged_without_a_model() -> None:
    a, b = PlacedTensor("a", 0, nbytes=8, lifetimes=((0, 2),)), PlacedTensor("b", 4, nbytes=8, lifetimes=((1, 3),))
    found = judge_by_lifetimes(lives(a, b, steps=("conv", "relu")))
    assert found.outcome is ForeignOutcome.WRONG
    assert str(found.findings[0]) == (
        "buffer a: bytes 0-8 overlap buffer b at 4-12 while both are alive, at 1 (relu) (move one of them) [overlap]"
    )
    assert judge_by_lifetimes(lives(a, replace(b, shares="a"))).outcome is ForeignOutcome.RIGHT
    assert judge_by_lifetimes(lives(a, replace(b, lifetimes=((2, 3),)))).nbytes == 12
    part = judge_by_lifetimes(lives(a, replace(b, offset=8), left_out=("c",)))
    assert (part.outcome, part.lower_bound_bytes) == (ForeignOutcome.PARTLY, 16)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (PlacedTensor("a", 0, lifetimes=((0, 1),)), "has no bytes for 'a'"),
        (PlacedTensor("a", 0, nbytes=1), "has no lifetimes for 'a'"),
        (PlacedTensor("a", 0, nbytes=1, lifetimes=((3, 3),)), "'a' lives from 3 until before 3"),
        (
            PlacedTensor("a", 0, nbytes=1, lifetimes=((0, 1),), shares="z"),
            "shares bytes of 'z', which the plan does not list",
        ),
        (PlacedTensor("a", 0, nbytes=1, lifetimes=((0, 1),), shares="a"), "which forms a cycle"),
    ],
)
def test_lifetimes_that_make_no_sense_are_bad_input(tensor: PlacedTensor, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        judge_by_lifetimes(lives(tensor))


DOCUMENT = {"format": "sublet-placed", "version": 1, "tensors": [{"name": "a", "offset": 0}]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "other"}, "format must be 'sublet-placed', version 1"),
        ({"version": 2}, ", version 1"),
        ({"extra": 1}, "has the unknown field 'extra'"),
        ({"tensors": {}}, "tensors must be a list"),
        ({"tensors": [{"name": "a"}]}, r"tensors\[0\] lacks 'offset'"),
        ({"tensors": [{"name": "", "offset": 0}]}, r"tensors\[0\].name must be a string"),
        ({"tensors": [{"name": "a", "offset": 1.5}]}, r"tensors\[0\].offset must be an integer"),
        ({"tensors": [{"name": "a", "offset": True}]}, "must be an integer"),
        ({"tensors": [{"name": "a", "offset": 1 << 70}]}, "must be an integer from"),
        ({"tensors": [{"name": "a", "offset": 0}] * 2}, "lists 'a' twice"),
        ({"tensors": [{"name": "a", "offset": 0, "bytes": -1}]}, "bytes must be an integer from 0"),
        ({"tensors": [{"name": "a", "offset": 0, "lifetimes": [[3, 3]]}]}, "must begin before it ends"),
        ({"tensors": [{"name": "a", "offset": 0, "lifetimes": [[3]]}]}, "must be a pair"),
        ({"regions": [1]}, "regions must be an object"),
        ({"regions": {"": 1}}, "is not a region name"),
        ({"alignment": 0}, "alignment must be an integer from 1"),
        ({"steps": [1]}, r"steps\[0\] must be a string"),
    ],
)
def test_json_that_is_wrong_is_told_where(change: dict[str, object], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        plan_from_json(json.dumps({**DOCUMENT, **change}), "plan.json")


def test_json_nested_without_end_is_bad_input() -> None:
    with pytest.raises(PlanError, match="not valid JSON"):
        plan_from_json("[" * 100_000, "plan.json")


def test_none_of_the_mutants_that_run_wrong_is_accepted() -> None:
    seen = Counter((one.outcome, one.right) for seed in range(5) for one in of_programs(seed, 8))
    seen.update((one.outcome, one.right) for seed in range(40) for one in of_lifetimes(seed))
    assert seen[ForeignOutcome.RIGHT, False] == seen[ForeignOutcome.PARTLY, False] == 0
    assert (
        min(seen[ForeignOutcome.WRONG, False], seen[ForeignOutcome.RIGHT, True], seen[ForeignOutcome.PARTLY, True]) > 10
    )

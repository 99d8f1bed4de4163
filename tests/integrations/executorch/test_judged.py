"""Plans in ExecuTorch's files are judged by their instructions: wrong ones are refused, by the tensors they harm."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.checker.external import Evidence, ForeignOutcome
from sublet.integrations.executorch.instructions import ExecutorchMethod
from sublet.integrations.executorch.plan_reader import judge_pte, methods_of
from sublet.integrations.executorch.replay import replay
from tests.integrations.executorch.executed import Executed
from tests.integrations.executorch.hostile import FILES, with_places
from tests.integrations.onnx.damage import judge_many

PROGRAMS = Path(__file__).with_name("programs")
WRONG = {
    "two_conds": [("overwritten", "value 7 returned by a branch", "value 42 of aten::mul.out")],
    "nested": [
        ("overwritten", "value 19 returned by a branch", "value 49 of aten::mul.out"),
        ("overwritten", "value 7 returned by a branch", "value 76 of aten::mul.out"),
    ],
    "view_of_cond": [("overwritten", "value 28", "value 9 returned by a branch")],
    "view_in_map": [("unwritten", "value 14")],
}
"""What ExecuTorch 1.5.1 plans by default, so that its runtime computes it wrongly: the rule, who is harmed, by whom."""
RIGHT = [path.stem for path in sorted(PROGRAMS.glob("*.pte")) if path.stem not in WRONG]
PATHS = 6


def method(name: str) -> ExecutorchMethod:
    path = PROGRAMS / f"{name}.pte"
    (only,) = methods_of(path.read_bytes(), path.name)
    return only


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_computes_wrongly_is_refused_by_name(name: str) -> None:
    found = judge_pte(PROGRAMS / f"{name}.pte")
    assert found.outcome is ForeignOutcome.WRONG
    assert [(finding.rule, *finding.names) for finding in found.findings] == WRONG[name]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plan_is_accepted_and_held_against_a_bound(name: str) -> None:
    found = judge_pte(PROGRAMS / f"{name}.pte")
    assert (found.outcome, found.evidence) == (ForeignOutcome.RIGHT, Evidence.INSTRUCTIONS)
    assert 0 < found.lower_bound_bytes <= found.nbytes


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_the_judge_says_what_a_run_over_real_bytes_shows(name: str) -> None:
    wrong = [words for seed in range(PATHS) if (words := Executed(method(name), seed).run())]
    assert bool(wrong) == (name in WRONG)


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_what_is_accepted_of_changed_plans_runs_right(name: str) -> None:
    whole, draw, accepted = method(name), random.Random(name), 0
    for seed in range(60):
        changed = with_places(whole, draw)
        if not replay(changed.as_steps()):
            accepted += 1
            assert Executed(changed, seed).run() == ""
    assert accepted < 60


@pytest.mark.parametrize("seed", [1921, 5998])
def test_a_shape_of_many_or_huge_extents_is_refused_in_few_words(seed: int) -> None:
    assert judge_many(FILES, 1, seed=seed)["refused"] == 1


def test_no_damaged_file_breaks_the_reader() -> None:
    """10,000 of them: `python -m tests.integrations.executorch.hostile`."""
    tally = judge_many(FILES, 300)
    assert tally.total() == 300
    assert min(tally["refused"], tally["judged"]) > 20


def test_an_input_given_after_another_over_the_same_bytes_is_refused() -> None:
    whole = method("two_maps")
    first, second = whole.inputs
    values = list(whole.values)
    place = values[first].place
    assert place is not None
    values[second] = replace(values[second], place=replace(place, end=place.begin + (values[second].nbytes or 0)))
    findings = replay(replace(whole, values=values).as_steps())
    assert {finding.rule for finding in findings} >= {"written-while-read"}


def test_out_of_a_memory_or_off_an_element_is_refused() -> None:
    whole = method("scan")
    values = [
        value if value.place is None else replace(value, place=replace(value.place, begin=value.place.begin + 2))
        for value in whole.values
    ]
    rules = {finding.rule for finding in replay(replace(whole, values=values).as_steps())}
    assert "misaligned" in rules
    assert "outside" in {finding.rule for finding in replay(replace(whole, memories={0: 0, 1: 64}).as_steps())}


def test_the_command_refuses_and_accepts() -> None:
    def run(name: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "sublet", "check", str(PROGRAMS / f"{name}.pte")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    status, said = run("two_conds")
    assert status == 1
    assert "value 7 returned by a branch" in said
    assert "value 42 of aten::mul.out overwrote the bytes" in " ".join(said.split())
    status, said = run("two_conds.planned")
    assert status == 0
    assert "right" in said

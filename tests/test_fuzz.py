"""A few seconds of the fuzz in every test run; `make fuzz` goes on for longer."""

from __future__ import annotations

import random

import pytest

from sublet.planning.options import Options
from sublet.planning.pipeline import plan_memory
from tests.fuzz import Tally, one_program
from tests.generate import program
from tests.onnx_check import check_onnx


@pytest.mark.parametrize("seed", range(22))
def test_generated_program(seed: int) -> None:
    tally = Tally()
    one_program(seed, tally)
    assert tally.unfollowed == []


def test_rows_that_are_carried_are_generated() -> None:
    """Pointers stand for rows in many plans of the programs that are drawn for that."""
    found = 0
    for seed in range(20):
        graph = program(random.Random(seed), 8, recurrent=True)
        plan = plan_memory(graph, Options(strategy="best_fit_by_size", alignment=1, in_place_from=0))
        rows = {placement.value for placement in plan.placements if placement.how == "row"}
        found += any(not rows.isdisjoint(p.stands_for) for p in plan.placements if p.how == "pointer")
    assert found >= 5


def test_mutants_are_refused() -> None:
    """The kinds of mutant that can hardly be right by luck are refused nearly always."""
    tally = Tally()
    for seed in range(1000, 1018):
        one_program(seed, tally, ("auto",))
    assert tally.mutants.total() > 100
    assert tally.accepted["shrunk arena"] == 0
    assert tally.accepted["swapped offsets"] < tally.mutants["swapped offsets"] / 4


def test_generated_onnx_models_run_as_in_onnx_runtime() -> None:
    outcomes = [check_onnx(seed) for seed in range(100)]
    assert [outcome.wrong for outcome in outcomes if outcome.wrong] == []
    assert not any(outcome.unfollowed for outcome in outcomes)
    assert sum(bool(outcome.refused) for outcome in outcomes) < 10

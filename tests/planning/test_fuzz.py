"""A few seconds of the fuzz in every test run; `make fuzz` goes on for longer."""

from __future__ import annotations

import random
from itertools import cycle

import pytest

pytest.importorskip("onnxruntime")

from sublet.analysis.options import Options
from sublet.packing import STRATEGIES
from sublet.planning.pipeline import plan_memory
from tests.fuzz import Tally, one_program
from tests.support.onnx.planned_runs import check_onnx
from tests.support.programs import program


def test_generated_programs() -> None:
    """Each by a few strategies in turn. Mutants that can hardly be right by luck are refused nearly always."""
    tally, turn = Tally(), cycle(STRATEGIES)
    for seed in range(7):
        one_program(seed, tally, (next(turn), next(turn), "auto"))
    assert tally.unfollowed == []
    assert tally.mutants.total() > 60
    assert tally.accepted["shrunk arena"] == 0
    assert tally.accepted["swapped offsets"] < tally.mutants["swapped offsets"] / 4


def test_rows_that_are_carried_are_generated() -> None:
    """Pointers stand for rows in many plans of the programs that are drawn for that."""
    found = 0
    for seed in range(12):
        graph = program(random.Random(seed), 8, recurrent=True)
        plan = plan_memory(graph, Options(strategy="best_fit_by_size", alignment=1, in_place_from=0))
        rows = {placement.value for placement in plan.placements if placement.how == "row"}
        found += any(not rows.isdisjoint(p.stands_for) for p in plan.placements if p.how == "pointer")
    assert found >= 3


def test_generated_onnx_models_run_as_in_onnx_runtime() -> None:
    outcomes = [check_onnx(seed) for seed in range(20)]
    assert [outcome.wrong for outcome in outcomes if outcome.wrong] == []
    assert not any(outcome.unfollowed for outcome in outcomes)
    assert sum(bool(outcome.refused) for outcome in outcomes) < 3

"""A budget below what one node needs: nodes are done in pieces, which a plan records and its words tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sublet
from sublet import nn
from sublet.cli.app import app
from sublet.ir.model import Model
from sublet.passes.recompute.memory_bound import memory_bound_of
from sublet.passes.splitting.propose_splits import SHARES as CUT_SHARES
from sublet.passes.splitting.propose_splits import propose_splits
from sublet.passes.splitting.split_nodes import split_nodes
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch

SHARES = (60, 40)
"""Of the plain arena, in percent; one node alone needs 65."""


def tied(budget: int | None = None) -> Model:
    """Words, a table that is looked up and multiplied by at the end: its gradient and the scores are the largest."""
    g = sublet.Graph("tied")
    table = g.parameter("table", (403, 16), initial=0.1, dtype="f64")
    hidden = nn.embedding(table, g.input("words", (8, 8), "i64"))
    for i in range(2):
        hidden = nn.gelu(nn.linear(hidden, g.parameter(f"w{i}", (16, 16), initial=0.1, dtype="f64")))
    logits = nn.linear(hidden, table).reshape(64, 403)
    loss = nn.softmax_cross_entropy(logits, g.input("labels", (64,), "i64"))[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1, momentum=0.9), budget=budget)


@pytest.fixture(scope="module")
def plain() -> sublet.Executable:
    return sublet.compile(tied())


def feeds() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"words": random.integers(0, 403, (8, 8)), "labels": random.integers(0, 403, 64)}


@pytest.mark.parametrize("percent", SHARES)
def test_a_step_in_pieces_takes_the_same_steps(percent: int, plain: sublet.Executable) -> None:
    budget = plain.arena_bytes * percent // 100
    less = sublet.compile(tied(), budget=budget)
    assert less.arena_bytes <= budget
    assert less.plan.recipe.split
    for name in plain.updated:
        less.set_state(name, plain.state(name))
    for _ in range(3):
        assert np.isclose(less(feeds())["loss"], plain(feeds())["loss"], rtol=1e-12)
    for name in plain.updated:
        np.testing.assert_allclose(less.state(name), plain.state(name), rtol=1e-9, atol=1e-15)


def test_a_written_step_is_in_pieces_too(plain: sublet.Executable) -> None:
    budget = plain.arena_bytes * SHARES[0] // 100
    model = tied(budget=budget)
    assert any(".1of" in node.name for node in model.graph.nodes)
    assert sublet.compile(model).arena_bytes <= budget


def test_a_plan_of_pieces_is_written_again_from_the_file(tmp_path: Path) -> None:
    path, plan_path = tmp_path / "tied.sublet", tmp_path / "plan.json"
    model = tied()
    path.write_text(sublet.to_text(model.graph))
    budgets = BudgetSearch(model)
    budget = budgets.plain.nbytes * SHARES[1] // 100
    done = CliRunner().invoke(app, ["plan", str(path), "--budget", str(budget), "--recompute", "--out", str(plan_path)])
    assert done.exit_code == 0, done.output
    assert "pieces by rows of the batch" in done.output
    assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
    told = json.loads(plan_path.read_text())
    for entry in ([], *told["recipe"]["split"][:1]):
        changed = {**told, "recipe": {**told["recipe"], "split": [entry] if entry else []}}
        plan_path.write_text(json.dumps(changed))
        refused = CliRunner().invoke(app, ["check", str(path), str(plan_path)])
        assert refused.exit_code == 2, refused.output
        assert "Traceback" not in refused.output


def test_updates_run_earlier_where_their_gradients_wait_for_one_another() -> None:
    g = sublet.Graph("chain")
    h = g.input("x", (64, 32))
    for i in range(8):
        h = nn.gelu(h @ g.parameter(f"w{i}", (32, 32), initial=0.1))
    step = sublet.train_step(nn.square(h).mean(), g.parameters, sublet.SGD(0.1))
    plain = sublet.compile(step)
    budgets = BudgetSearch(step, effort=200)
    answer = budgets.best_within(budgets.plain.nbytes * 30 // 100)
    assert answer.outcome is SearchOutcome.FITS
    assert {kind for _, kind, _ in answer.program.model.recipe.split} == {"early"}
    assert "as early as possible" in answer.words
    less = sublet.compile(answer.program.model)
    x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    for _ in range(2):
        assert np.array_equal(less({"x": x})["loss"], plain({"x": x})["loss"])


def test_a_momentum_takes_up_what_every_step_of_a_recurrent_network_adds() -> None:
    g = sublet.Graph("recurrent")
    w = g.parameter("w", (64, 64), initial=0.01)
    h = g.input("x", (8, 64))
    for _ in range(12):
        h = nn.tanh(h @ w)
    step = sublet.train_step(nn.square(h).mean(), g.parameters, sublet.SGD(0.1, momentum=0.9))
    plain = sublet.compile(step)
    budgets = BudgetSearch(step, sublet.Options(io="bound", weights="bound"), effort=200)
    answer = budgets.best_within(64 * 64 * 4)  # the gradient alone takes as much
    assert answer.outcome is SearchOutcome.FITS
    assert {kind for _, kind, _ in answer.program.model.recipe.split} == {"momentum"}
    assert "momentum accumulates the gradient term by term" in answer.words
    less = sublet.compile(answer.program.model)
    x = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
    for _ in range(3):
        np.testing.assert_allclose(less({"x": x})["loss"], plain({"x": x})["loss"], rtol=1e-5)
    found = budgets.split_searches[answer.program.model.recipe.split]
    assert found.search.solutions[0].peak == found.plain.nbytes, (
        "the estimate knows that a sum in its home has no bytes"
    )


def test_pieces_take_the_seconds_of_what_they_are_pieces_of() -> None:
    """A joined whole bears the name of the node that made it, but not its seconds."""
    step = tied()
    budgets = BudgetSearch(step, effort=50, seconds={node.name: 1.0 for node in step.graph.nodes})
    budgets.best_within(budgets.plain.nbytes * SHARES[1] // 100)
    for finer in budgets.split_searches.values():
        ops = {node.name: node.op for node in finer.model.graph.nodes}
        level = finer.search.level
        seconds = {
            op: [t for name, t in zip(level.names, level.seconds, strict=True) if ops[name] == op]
            for op in ops.values()
        }
        assert max(seconds.get("nn.concat", [0.0])) < 0.01
        assert sum(seconds["nn.linear"]) == pytest.approx(3.0), "two layers and the last one"
    assert any(kind == "batch" for splits in budgets.split_searches for _, kind, _ in splits)


def test_the_claim_is_of_what_was_split() -> None:
    budgets = BudgetSearch(tied(), effort=50)
    answer = budgets.best_within(4096)
    assert answer.outcome is SearchOutcome.IMPOSSIBLE
    assert answer.split_floor is not None
    assert 4096 < answer.split_floor.nbytes < answer.floor.nbytes
    assert "with nodes split in the tried ways" in answer.words
    assert answer.floor.description in answer.words
    equal = replace(answer, split_floor=answer.floor).words
    assert equal.count(answer.floor.description) == 1, "equal bounds are stated once"
    assert equal.endswith("; also with nodes split in the tried ways")


def test_of_all_ways_to_cut_the_cheapest_is_taken(plain: sublet.Executable) -> None:
    """Smaller pieces may cost less than larger ones that fit too."""
    model, budget = tied(), plain.arena_bytes * SHARES[1] // 100
    budgets = BudgetSearch(model, effort=50)
    answer = budgets.best_within(budget)
    ways = {splits for share in CUT_SHARES for splits in propose_splits(model.graph, budget, share)}
    assert len({max(count for _, _, count in splits) for splits in ways}) > 1
    floors = [
        memory_bound_of(split_nodes(model.graph, splits).graph, io_bound=False, weights_bound=False) for splits in ways
    ]
    assert len(budgets.split_searches) == sum(each.nbytes <= budget for each in floors)
    found = [
        point for each in budgets.split_searches.values() for point in each.programs.values() if point.nbytes <= budget
    ]
    assert answer.program.seconds == min(point.seconds for point in found)


def test_where_no_node_is_the_floor_nothing_is_split(plain: sublet.Executable) -> None:
    answer = BudgetSearch(tied()).best_within(plain.arena_bytes)
    assert answer.outcome is SearchOutcome.FITS
    assert not answer.program.split_count
    assert answer.split_floor is None


def test_a_frontier_with_pieces_is_monotone(plain: sublet.Executable) -> None:
    found = BudgetSearch(tied(), effort=200).frontier(
        [plain.arena_bytes * percent // 100 for percent in (90, 70, 50, 40)]
    )
    seconds = [answer.program.seconds for answer in found if answer.outcome is SearchOutcome.FITS]
    assert len(seconds) == 4
    assert seconds == sorted(seconds)

"""The size named by a refused budget is a promise: this budget, and each budget above, is met wherever it is passed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sublet
from benchmarks.networks import text, vision
from benchmarks.train_steps import Write, classifier
from sublet import layers, nn
from sublet.base.errors import CapacityError
from sublet.cli.app import app
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch
from sublet.training import step
from tests.fuzz_budget import drawn, recurrent
from tests.planning.budget.test_budgets import chain
from tests.planning.budget.test_in_pieces import tied

NAMED = re.compile(r"the smallest found needs ([0-9,]+) bytes")


def named_in(words: str) -> int:
    match = NAMED.search(words)
    assert match, words
    return int(match[1].replace(",", ""))


def small_gpt(g: sublet.Graph, batch: int) -> Tensor:
    logits = text.gpt2(g.input("tokens", (batch, 16), "i64"), width=16, heads=2, depth=1, vocabulary=40)
    return nn.softmax_cross_entropy(logits.reshape(batch * 16, -1), g.input("labels", (batch * 16,), "i64"))[0].mean()


def step_of(write: Write) -> Graph:
    g = sublet.Graph("network")
    return sublet.train_step(write(g, 2), g.parameters, sublet.SGD(0.1, momentum=0.9)).graph


def graphs() -> Iterator[tuple[str, Graph]]:
    """Networks, a step with a search that finds less than the search at the named size, a recurrent step, chains."""
    yield "ResNet", step_of(classifier(lambda x: vision.resnet(x, (1,)), 32))
    yield "GPT", step_of(small_gpt)
    yield "step 7", drawn(7)[1].graph
    yield "recurrent 1", recurrent(random.Random(1), 1).graph
    yield from ((f"chain {seed}", chain(seed)) for seed in range(25))


def test_graphs_fit_the_size_that_a_refusal_names() -> None:
    refused = searched_below = 0
    for name, graph in graphs():
        first = BudgetSearch(Model(graph), effort=50)
        floor, plain = first.floor.nbytes, first.plain.nbytes
        for budget in {min(first._floors()), floor, floor + (plain - floor) // 20}:
            answer = BudgetSearch(Model(graph), effort=50, planned=first.planned).best_within(budget)
            if answer.outcome is not SearchOutcome.NOT_FOUND:
                continue
            refused += 1
            least = named_in(answer.words)
            for more in (0, 1, (plain - least) // 3):
                search = BudgetSearch(Model(graph), effort=50, planned=first.planned)
                assert search.best_within(least + more).outcome is SearchOutcome.FITS, (name, budget, least + more)
                searched_below += search._floor_search is not None
    assert refused >= 20
    assert searched_below >= 1, "no graph needs the search at the floors: the test shows nothing"


def rounds(budget: int | None = None) -> Model:
    """A recurrent step, its three rounds written one after another."""
    g = sublet.Graph("rounds")
    xs = g.input("xs", (3, 2, 3))
    u, w = (g.parameter(name, shape, initial=layers.normal(0.3)) for name, shape in (("u", (4, 4)), ("w", (4, 3))))
    h = nn.tanh(nn.linear(xs[0], w))
    for t in (1, 2):
        h = nn.tanh(nn.linear(xs[t], w) + nn.linear(h, u))
    return sublet.train_step(nn.square(h).mean(), g.parameters, sublet.SGD(0.1), budget=budget)


def test_a_size_named_once_is_met_wherever_it_is_passed(tmp_path: Path) -> None:
    model, path = rounds(), tmp_path / "step.sublet"
    path.write_text(sublet.to_text(model.graph))

    def plan(budget: int) -> int:
        done = CliRunner().invoke(app, ["plan", str(path), "--budget", str(budget), "--recompute"])
        if done.exit_code:
            raise CapacityError(" ".join(done.output.split()))
        return budget

    passes: dict[str, Callable[[int], int]] = {
        "sublet plan": plan,
        "sublet.compile": lambda budget: sublet.compile(model, budget=budget).arena_bytes,
        "train_step": lambda budget: sublet.compile(rounds(budget)).arena_bytes,
    }
    below = BudgetSearch(model).floor.nbytes
    for passed, fit in passes.items():
        with pytest.raises(CapacityError) as refused:
            fit(below)
        least = named_in(str(refused.value))
        for budget in (least, least + 1):
            assert fit(budget) <= budget, (passed, budget)


def test_the_size_of_a_program_in_pieces_is_a_promise_too() -> None:
    first = BudgetSearch(tied(), effort=50)
    lowest = min(first._floors())
    assert lowest < first.floor.nbytes
    answer = BudgetSearch(tied(), effort=50, planned=first.planned).best_within(lowest)
    least = named_in(answer.words)
    assert least < first.floor.nbytes
    again = BudgetSearch(tied(), effort=50, planned=first.planned).best_within(least)
    assert again.outcome is SearchOutcome.FITS
    assert again.program.split_count


def test_a_step_is_called_impossible_only_if_every_variant_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant with the smallest program is impossible, another was only not found."""
    search = BudgetSearch(rounds(), effort=50)
    other = search.best_within(search.floor.nbytes)
    smallest = replace(other, outcome=SearchOutcome.IMPOSSIBLE, program=search.plain, plain=search.plain)
    larger = replace(search.plain, plan=replace(search.plain.plan, arena_bytes=1 << 20))
    answers = {"small": smallest, "large": replace(other, program=larger)}
    monkeypatch.setattr(step, "_search_budget", lambda name, budget: (answers[name], name))
    with pytest.raises(CapacityError, match=r"no program within .* \(large, the smallest of 2 variants of the step\)"):
        step.cheapest_fitting_step({"small": lambda: "small", "large": lambda: "large"}, 1)  # type: ignore[dict-item, return-value]
    with pytest.raises(CapacityError, match="is impossible"):
        step.cheapest_fitting_step({"small": lambda: "small"}, 1)  # type: ignore[dict-item, return-value]

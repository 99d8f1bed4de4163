"""Budgets: what fits is planned and runs the same, what is impossible is so, what was not found is not called so."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.api.advising import measure_node_seconds
from sublet.api.sources import model_of_plan
from sublet.base.errors import CapacityError, PlanError
from sublet.base.tensor import DType, TensorSpec
from sublet.cli.app import app
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.model import Model
from sublet.ops.emitter import Emitter
from sublet.packing import MemoryRegion
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch
from sublet.planning.pipeline import plan_memory
from tests.fuzz_budget import check_budgets
from tests.planning.budget.brute_force import fewest_bytes


def step(budget: int | str | None = None) -> Model:
    g = sublet.Graph("small")
    x, labels = g.input("x", (4, 3, 8, 8)), g.input("labels", (4,), "i64")
    y = x
    for _ in range(3):
        y = layers.dropout(nn.relu(layers.batch_norm(layers.conv(y, 8, 3, bias=False))), 0.2)
    loss = nn.softmax_cross_entropy(layers.dense(y.mean(2, 3), 10), labels)[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.05, momentum=0.9), budget=budget)


FEEDS = {
    "x": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype("float32"),
    "labels": np.arange(4),
}


@pytest.mark.parametrize("seed", [1, 7])
def test_generated_steps_at_random_budgets(seed: int) -> None:
    check_budgets(seed, 2)


def test_a_step_within_half_its_memory_computes_the_same_bits() -> None:
    plain = sublet.compile(step(), backend="reference")
    half = plain.arena_bytes // 2
    budgeted = sublet.compile(step(), backend="reference", budget=half)
    assert budgeted.arena_bytes <= half
    assert budgeted.plan.recipe.again
    assert "recomputed or delayed" in budgeted.plan.recipe.description
    for _ in range(3):
        assert plain(FEEDS)["loss"] == budgeted(FEEDS)["loss"]
    for name in plain.updated:
        assert np.array_equal(plain.state(name), budgeted.state(name)), name


def test_a_step_is_written_for_a_budget() -> None:
    plan = plan_memory(step("36KiB"))
    assert plan.arena_bytes <= 36 << 10 < plan_memory(step()).arena_bytes
    with pytest.raises(CapacityError, match="impossible: any program of these nodes needs at least"):
        step(1000)
    with pytest.raises(PlanError, match="budget"):
        step(-1)


def wide(budget: int | str | None = None) -> Model:
    """Return a step of a chain whose loss has kernels with much scratch."""
    g = sublet.Graph("wide")
    h, labels = g.input("x", (256, 16)), g.input("labels", (256,), "i64")
    for i in range(6):
        h = nn.gelu(h @ g.parameter(f"w{i}", (16, 16), initial=layers.normal(0.3)))
    loss = nn.softmax_cross_entropy(h, labels)[0].mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.05), budget=budget)


WIDE_FEEDS = {
    "x": np.random.default_rng(0).normal(size=(256, 16)).astype("float32"),
    "labels": np.arange(256) % 16,
}


@pytest.mark.parametrize("first", [90, 70])
def test_a_step_written_for_a_budget_fits_a_smaller_one(first: int, tmp_path: Path) -> None:
    """Clones in a graph are nodes like any others: a further budget clones more, or does nodes in pieces."""
    plain = sublet.compile(wide())
    given = wide(plain.arena_bytes * first // 100)
    assert any(node.again for node in given.graph.nodes)
    path, plan_path = tmp_path / "step.sublet", tmp_path / "plan.json"
    path.write_text(sublet.to_text(given.graph))
    for percent in (60, 40):
        budget = plain.arena_bytes * percent // 100
        less = sublet.compile(given, budget=budget)
        assert less.arena_bytes <= budget
        sublet.save(less.plan, plan_path)
        assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
        for name in plain.updated:
            less.set_state(name, plain.state(name))
        for _ in range(2):
            np.testing.assert_allclose(less(WIDE_FEEDS)["loss"], plain(WIDE_FEEDS)["loss"], rtol=1e-5)
        asked = ["plan", str(path), "--budget", str(budget), "--recompute", "--out", str(plan_path)]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
    with pytest.raises(
        CapacityError, match=r"impossible|no program within 100 bytes was found; the smallest found needs"
    ):
        sublet.compile(given, budget=100)


def test_a_model_of_a_plan_with_clones_fits_a_smaller_budget() -> None:
    first = BudgetSearch(step()).best_within(plan_memory(step()).arena_bytes * 80 // 100).program.model
    assert first.recipe.again
    budget = plan_memory(first).arena_bytes * 80 // 100
    assert sublet.compile(first, backend="reference", budget=budget).arena_bytes <= budget


@pytest.mark.parametrize("percent", [85, 60])
def test_a_written_step_has_room_for_scratch_of_kernels(percent: int) -> None:
    """The budget of `train_step` is that of the arena that the step runs in."""
    plain = sublet.compile(wide())
    scratch = sum(nbytes for _, nbytes in plain.plan.recipe.scratch)
    assert scratch >= plain.arena_bytes // 50, "or the test shows nothing"
    budget = plain.arena_bytes * percent // 100
    assert sublet.compile(wide(budget)).arena_bytes <= budget


def test_the_recipe_of_a_plan_is_done_again_to_check_it(tmp_path: Path) -> None:
    path = tmp_path / "step.sublet"
    path.write_text(sublet.to_text(step().graph))
    plan_path = tmp_path / "plan.json"
    done = CliRunner().invoke(app, ["plan", str(path), "--budget", "36KiB", "--recompute", "--out", str(plan_path)])
    assert done.exit_code == 0, done.output
    plan = sublet.load(plan_path)
    assert plan.arena_bytes <= 36 << 10
    assert sum(node.again for node in model_of_plan(path, plan).graph.nodes) >= 1
    assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
    told = json.loads(plan_path.read_text())
    told["recipe"]["again"].pop()
    plan_path.write_text(json.dumps(told))
    assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 2


SLOW = (MemoryRegion("near", 30 << 10), MemoryRegion("far", 1 << 20, rate=10**12))


def test_a_step_runs_in_less_than_it_needs_where_values_are_brought_away() -> None:
    plain = sublet.compile(step(), backend="torch")
    small = sublet.compile(step(), backend="torch", options=Options(regions=SLOW), budget="1MiB")
    near, far = small.plan.arenas
    assert near.nbytes <= 30 << 10 < plain.arena_bytes
    assert far.nbytes > 0
    assert "reloaded from slow memory" in small.plan.recipe.description
    for _ in range(3):
        assert plain(FEEDS)["loss"] == small(FEEDS)["loss"]


def test_in_a_memory_for_transfers_lies_nothing_else(tmp_path: Path) -> None:
    path, plan_path = tmp_path / "step.sublet", tmp_path / "plan.json"
    path.write_text(sublet.to_text(step().graph))
    memories = ["--region", "near=30KiB", "--region", "far=1MiB@10GB/s"]
    asked = ["plan", str(path), *memories, "--recompute", "--out", str(plan_path)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "at 10 GB/s" in done.output
    assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
    told = json.loads(plan_path.read_text())
    near, far = told["storages"][:2]
    near["rate"], far["rate"] = far["rate"], near["rate"]
    plan_path.write_text(json.dumps(told))
    done = CliRunner().invoke(app, ["check", str(path), str(plan_path)])
    assert done.exit_code == 1
    assert "out-of-reach" in done.output
    refused = CliRunner().invoke(app, ["plan", str(path), *memories])
    assert refused.exit_code == 1
    assert "far holds only offloaded values" in refused.output
    shown = CliRunner().invoke(app, ["plan", str(path), *memories, "--frontier", "--json"])
    points = json.loads(shown.output)["points"]
    assert max(point["brought_back"] for point in points) > 0
    assert points[-1]["away_bytes"] <= 1 << 20


@pytest.mark.parametrize(
    "regions",
    [SLOW[::-1], (SLOW[0], replace(SLOW[1], rate=0)), (*SLOW, MemoryRegion("more", 1))],
    ids=["slow first", "no rate", "three"],
)
def test_values_are_brought_to_one_memory_with_a_rate(regions: tuple[MemoryRegion, ...]) -> None:
    with pytest.raises(PlanError, match="or a second memory with bytes a second"):
        BudgetSearch(step(), Options(regions=regions))


def test_what_cannot_fit_is_refused_with_the_argument(tmp_path: Path) -> None:
    path = tmp_path / "step.sublet"
    path.write_text(sublet.to_text(step().graph))
    done = CliRunner().invoke(app, ["plan", str(path), "--budget", "1KiB", "--recompute"])
    assert done.exit_code == 1
    assert "impossible" in done.output
    assert CliRunner().invoke(app, ["plan", str(path), "--recompute"]).exit_code == 2


def test_the_frontier_falls_and_says_how_time_was_told(tmp_path: Path) -> None:
    path = tmp_path / "step.sublet"
    path.write_text(sublet.to_text(step().graph))
    page = tmp_path / "curve.html"
    done = CliRunner().invoke(app, ["plan", str(path), "--frontier", "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert "not measured" in told["costs"]
    fitting = [point for point in told["points"] if point["outcome"] == "fits"]
    assert len(fitting) >= 5
    assert all(point["arena_bytes"] <= point["budget"] for point in fitting)
    assert [point["seconds"] for point in fitting] == sorted(point["seconds"] for point in fitting)
    assert told["floor"]["bytes"] <= fitting[-1]["arena_bytes"]
    assert page.read_text().count('<script type="text/plain" id="model') == len(
        {p["arena_bytes"] for p in told["points"]}
    )
    assert CliRunner().invoke(app, ["plan", str(path), "--frontier", "--out", str(page)]).exit_code == 2


def test_between_the_floor_and_what_was_found_nothing_is_claimed() -> None:
    budgets = BudgetSearch(step(), effort=50)
    answer = budgets.best_within(budgets.floor.nbytes)
    assert answer.outcome is SearchOutcome.NOT_FOUND
    assert answer.program.plan.arena_bytes > budgets.floor.nbytes
    assert "was found" in answer.words


def test_more_than_one_stream_is_refused() -> None:
    with pytest.raises(PlanError, match="one stream"):
        BudgetSearch(step(), Options(streams=2))


def chain(seed: int) -> Graph:
    """A few element-wise nodes and products, several with readers far away."""
    rng = random.Random(seed)
    spec = [TensorSpec(DType.F32, (4, width)) for width in (1, 2, 4, 8)]
    inputs = (Value("a", rng.choice(spec)), Value("b", rng.choice(spec)))
    emit = Emitter.from_graph(Graph("chain", inputs, (), (), ()))
    values = list(inputs)
    for i in range(rng.randint(3, 6)):
        operands = tuple(rng.choice(values[-4:]) for _ in range(rng.choice((1, 1, 2))))
        like = [value for value in operands if value.spec == operands[0].spec]
        if len(like) == len(operands) and rng.random() < 0.6:
            values.append(emit("nn.exp" if len(operands) == 1 else "nn.add", *operands))
        else:
            made = Value(f"m{i}", rng.choice(spec))
            emit.nodes.append(Node(made.name, "onnx.NoSuch", operands, (made,)))
            values.append(made)
    return Graph("chain", inputs, tuple(emit.nodes), tuple({values[-1]: 0, rng.choice(values[2:]): 0}))


def test_no_order_and_no_recomputation_goes_below_the_floor() -> None:
    """And nothing that was found goes below the best there is."""
    tight = 0
    for seed in range(40):
        graph = chain(seed)
        budgets = BudgetSearch(Model(graph), Options(alignment=1), effort=50)
        least = fewest_bytes(graph)
        assert budgets.floor.nbytes <= least <= budgets.plain.plan.arena_bytes, seed
        answer = budgets.best_within(least)
        assert answer.outcome is not SearchOutcome.IMPOSSIBLE, seed
        assert answer.program.plan.arena_bytes >= least, seed
        tight += budgets.floor.nbytes == least
    assert tight >= 12


def test_seconds_are_measured_once() -> None:
    model = step()
    seconds, words = measure_node_seconds(model, "reference")
    assert seconds == measure_node_seconds(model, "reference")[0]
    assert len(seconds) > len(model.graph.nodes) // 2
    assert all(each > 0 for each in seconds.values())
    assert f"{len(seconds)} of {len(model.graph.nodes)} nodes measured" in words
    assert measure_node_seconds(model, "reference", workspace=1)[0] == {}


SKIPS = """
<ir_version: 8, opset_import: ["" : 17]>
skips (float[1,8,16,16] x, float[8,8,3,3] w, float[16,8,3,3] v) => (float[1,8,16,16] y) {
  a = Relu(x)
  b = Sigmoid(a)
  c = Conv <pads=[1,1,1,1]> (b, w)
  d = Conv <pads=[1,1,1,1]> (c, v)
  e = ReduceMean <axes=[1], keepdims=1> (d)
  f = Mul(e, b)
  y = Add(f, a)
}
"""


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_an_onnx_model_is_computed_in_less(backend: str) -> None:
    model = onnx.parser.parse_model(SKIPS)
    random_numbers = np.random.default_rng(0)
    feeds = {
        "x": random_numbers.normal(size=(1, 8, 16, 16)).astype("float32"),
        "w": random_numbers.normal(size=(8, 8, 3, 3)).astype("float32"),
        "v": random_numbers.normal(size=(16, 8, 3, 3)).astype("float32"),
    }
    plain = sublet.compile(model, backend=backend, optimize="none")
    budget = plain.arena_bytes - 8 * 16 * 16 * 4
    less = sublet.compile(model, backend=backend, optimize="none", budget=budget)
    assert less.arena_bytes <= budget
    assert less.plan.recipe.again
    assert np.array_equal(plain(feeds)["y"], less(feeds)["y"])
    again = sublet.with_plan(model, less.plan, backend=backend)
    assert np.array_equal(plain(feeds)["y"], again(feeds)["y"])
    with pytest.raises(CapacityError, match="impossible"):
        sublet.compile(model, backend=backend, optimize="none", budget="4KiB")


def test_a_plan_with_nodes_computed_again_is_written_into_no_model(tmp_path: Path) -> None:
    """The file has none of these nodes."""
    path, plan_path = tmp_path / "skips.onnx", tmp_path / "plan.json"
    onnx.save(onnx.parser.parse_model(SKIPS), path)
    plain = plan_memory(sublet.read_model(path)).arena_bytes
    wanted = ["plan", str(path), "--budget", str(plain - 8192), "--recompute", "--out", str(plan_path)]
    assert CliRunner().invoke(app, wanted).exit_code == 0
    assert CliRunner().invoke(app, ["check", str(path), str(plan_path)]).exit_code == 0
    out = ["export", str(path), "--plan", str(plan_path), "--to", "onnx", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, out)
    assert done.exit_code == 2
    assert "recomputed or delayed" in done.output
    told = CliRunner().invoke(app, ["plan", str(path), "--budget", str(plain - 8192)])
    assert told.exit_code == 1
    assert "--recompute" in told.output

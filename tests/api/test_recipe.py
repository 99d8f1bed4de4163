"""The graph that runs is the graph that is planned, and what a plan is for can be made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import sublet
from benchmarks.models.architectures import SMALL
from benchmarks.models.convolutional import MOBILENET_STAGES
from benchmarks.models.quantized import qdq_mobilenet_v2
from benchmarks.models.wheels import light_models
from sublet import Options
from sublet.api.sources import model_of_plan, why_graph_differs
from sublet.base.errors import PlanError, ProblemError
from sublet.ir.recipe import PLAIN
from sublet.plan.file import load, save, to_json
from tests.support.command_line import Cli

pytest.importorskip("onnxruntime")


def quantized() -> onnx.ModelProto:
    """A small network whose dequantised weights stand before its layers."""
    return qdq_mobilenet_v2(32, 8, 10, MOBILENET_STAGES[:3])


UNLIKE = ("bert", "lstm_loop", "mobilenet_v2")
"""Of the small networks those that have little in common."""
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {**{name: SMALL[name] for name in UNLIKE}, "qdq": quantized}
ONNX = {model.name: model.path for model in light_models()}
TEXT = """
graph @net(%x: f32[4]) {
  %wide: f32[1024] = onnx.Grow(%x)
  %other: f32[1024] = onnx.Grow(%x)
  %a: f32[4] = onnx.Shrink(%wide)
  %b: f32[4] = onnx.Shrink(%other)
  return %a, %b
}
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(monkeypatch, capsys)


@pytest.fixture(scope="module", params=[*MODELS, "light_squeezenet"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param in ONNX:
        return ONNX[request.param]
    path = tmp_path_factory.mktemp("models") / f"{request.param}.onnx"
    path.write_bytes(MODELS[request.param]().SerializeToString())
    return path


@pytest.mark.parametrize(("optimize", "order"), [("none", "less"), ("onnxruntime", "given")])
def test_what_runs_is_what_is_planned(model: Path, optimize: str, order: str, tmp_path: Path) -> None:
    options = Options(order=order, strategy="best_fit_by_size")  # type: ignore[arg-type]
    runs = sublet.compile(model, optimize=optimize, options=options).plan  # type: ignore[arg-type]
    planned = sublet.plan_memory(sublet.read_model(model, optimize=optimize), options)
    assert to_json(runs) == to_json(planned)
    assert runs.recipe.optimize == optimize
    save(runs, tmp_path / "plan.json")
    plan = load(tmp_path / "plan.json")
    assert sublet.check(model_of_plan(model, plan).graph, plan.schedule, plan) == ()
    assert sublet.compile(model, plan=plan).plan == plan


def test_the_commands_agree(cli: Cli, tmp_path: Path) -> None:
    model, plan = tmp_path / "qdq.onnx", tmp_path / "plan.json"
    model.write_bytes(MODELS["qdq"]().SerializeToString())
    status, out, err = cli("run", model, "--random", 1, "--save-plan", plan, "--budget", "1MiB", "--json")
    runs = json.loads(out)
    assert (status, err, runs["fits"]) == (0, "", True)
    planned = json.loads(cli("plan", model, "--optimize", "auto", "--json")[1])
    assert planned["arena_bytes"] == runs["arena_bytes"]
    assert planned["recipe"] == runs["recipe"]
    assert planned["recipe"]["optimize"] == "onnxruntime"
    assert cli("check", model, plan)[0] == 0
    assert cli("run", model, "--random", 1, "--plan", plan, "--compare", "--poison")[0] == 0
    plain = json.loads(cli("plan", model, "--json")[1])
    assert plain["recipe"]["words"] == "as in the file, in its own order"
    assert plain["arena_bytes"] > planned["arena_bytes"]
    assert "--optimize auto" in cli("plan", model)[1]
    status, _, err = cli("run", model, "--random", 1, "--plan", plan, "--optimize", "none")
    assert status == 2
    assert "contradicts the plan" in err
    status, out, _ = cli("run", model, "--random", 1, "--budget", "1KiB")
    assert status == 1
    assert "Cannot fit the budget" in out


def test_dequantised_weights_run_on_demand() -> None:
    model = sublet.Model(sublet.integrations.onnx.reader.model.from_proto(quantized()).graph)
    names = [node.name for node in model.graph.nodes]
    early = sublet.plan_memory(model, schedule=sublet.plan.schedule.serial_schedule(model.graph))
    plan = sublet.plan_memory(model)
    assert plan.arena_bytes < early.arena_bytes / 2
    assert [step.node for step in plan.schedule.steps] != names
    assert sorted(step.node for step in plan.schedule.steps) == sorted(names)


def test_another_order_is_told_with_what_planning_it_gives(cli: Cli, tmp_path: Path) -> None:
    path, plan = tmp_path / "net.sublet", tmp_path / "plan.json"
    path.write_text(TEXT)
    given = json.loads(cli("plan", path, "--json")[1])
    less = json.loads(cli("plan", path, "--order", "less", "--out", plan, "--json")[1])
    assert given["other_order"]["arena_bytes"] == less["arena_bytes"] < given["arena_bytes"]
    assert less["recipe"]["order"] == "less"
    assert "--order less" in cli("plan", path)[1]
    assert cli("check", path, plan)[0] == 0
    save(replace(load(plan), recipe=replace(load(plan).recipe, order="given")), plan)
    status, _, err = cli("check", path, plan)
    assert (status, "has another order" in err) == (2, True)
    limited = json.loads(cli("plan", path, "--timeout", "5", "--json")[1])
    assert limited["other_order"]["arena_bytes"] is None
    assert "were not tried" in limited["other_order"]["words"]


def test_an_optimiser_of_another_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SMALL["googlenet"]().SerializeToString())
    plan = sublet.plan_memory(sublet.read_model(path, optimize="onnxruntime"))
    recipe = replace(plan.recipe, by="onnxruntime 0.1, abacus")
    assert model_of_plan(path, replace(plan, recipe=recipe)).graph  # the graph is what counts
    other = replace(plan, recipe=recipe, fingerprint="0" * 64)
    with pytest.raises(PlanError, match=r"rewritten by onnxruntime 0\.1, abacus; here onnxruntime"):
        model_of_plan(path, other)
    for wrong in ({"optimize": "magic"}, {"changed": "magic"}, {"scratch": (("nowhere", 4),)}):
        with pytest.raises(sublet.SubletError):
            model_of_plan(path, replace(plan, recipe=replace(plan.recipe, **wrong), fingerprint="0" * 64))


def test_less_memory_of_a_file_can_be_checked(cli: Cli, tmp_path: Path) -> None:
    path, plan = tmp_path / "model.onnx", tmp_path / "plan.json"
    path.write_bytes(SMALL["unet"]().SerializeToString())
    save(sublet.plan_memory(sublet.less_memory(sublet.read_model(path))), plan)
    status, _, err = cli("check", path, plan)
    assert (status, err) == (0, "")
    assert sublet.compile(path, plan=load(plan)).arena_bytes == load(plan).arena_bytes


def test_graphs_and_models_in_python_are_planned_alike() -> None:
    g = sublet.Graph()
    x = g.input("x", (8, 8))
    g.output("y", sublet.nn.exp(sublet.nn.relu(x)))
    plans = [sublet.plan_memory(network) for network in (g, g.model(), g.model().graph)]
    assert plans[0] == plans[1] == plans[2]
    changed = [sublet.less_memory(network) for network in (g, g.model(), g.model().graph)]
    assert changed[0].graph == changed[1].graph == changed[2].graph
    for wrong in (None, "model.onnx", plans[0]):
        with pytest.raises(ProblemError, match="is no network"):
            sublet.plan_memory(wrong)  # type: ignore[arg-type]


def test_a_plan_without_the_scratch_memory_of_its_kernels_is_refused() -> None:
    pytest.importorskip("torch")
    g = sublet.Graph()
    x = g.input("x", (4, 4, 8, 8))
    g.output("y", sublet.layers.batch_norm(sublet.layers.conv(x, 8, 3)).mean(2, 3))
    model = g.model()
    made = sublet.compile(model, backend=("torch", "reference"))
    if not made.plan.recipe.scratch:
        pytest.fail("no kernel of this network asks for scratch memory")
    assert sublet.compile(model, backend=("torch", "reference"), plan=made.plan).plan == made.plan
    assert "scratch memory" in made.plan.recipe.description
    with pytest.raises(PlanError, match="need scratch memory"):
        sublet.compile(model, backend=("torch", "reference"), plan=sublet.plan_memory(model))


def test_a_plan_rewritten_elsewhere_is_told_apart_whatever_its_text_says() -> None:
    planned, here = (replace(PLAIN, optimize="onnxruntime", by=by) for by in ("another tool 1.0", "onnxruntime 1.0"))
    assert why_graph_differs(here, planned).startswith(
        "the plan is for a graph rewritten by another tool 1.0; here onnx"
    )

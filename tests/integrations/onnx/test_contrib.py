"""Types of ONNX Runtime's own operators, compared with real runs, and types that only its shape inference tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
from onnx import helper
from typer.testing import CliRunner

import sublet
from sublet.base.errors import RunError
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.cli.app import app
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.runtime_optimizer import load_optimized_proto
from sublet.ir.graph import Value
from sublet.plan.verdict import BudgetOutcome, verdict
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx import contrib_cases
from tests.integrations.onnx.contrib_cases import DOMAIN, Case, f32, model_of
from tests.integrations.onnx.shape_cases import ran

CASES = [pytest.param(make, id=make.__name__) for make in contrib_cases.CASES]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")


def _is_type_of(value: Value, array: Any) -> bool:
    spec = value.spec
    return isinstance(spec, TensorSpec) and array.shape == spec.shape and array.dtype == NUMPY[spec.dtype]


@pytest.mark.parametrize("make", CASES)
def test_planned_types_are_those_of_a_run(make: Any) -> None:
    runs = 0
    for seed in range(12):
        case = make(np.random.default_rng(seed))
        model, feeds = model_of(case)
        results = ran(model, feeds)
        if isinstance(results, str):
            continue
        runs += 1
        outputs = from_proto(model).graph.outputs
        assert isinstance(outputs[0].spec, TensorSpec), f"{case}: nothing is known of the first output"
        for value in outputs:
            if isinstance(value.spec, TensorSpec):
                found = results[value.name]
                assert _is_type_of(value, found), f"{case}: {value} comes out as {found.dtype}{list(found.shape)}"
    assert runs >= 6


@pytest.mark.parametrize("make", CASES)
def test_an_optimised_model_gives_what_onnx_runtime_gives(make: Any) -> None:
    for seed in range(3):
        model, feeds = model_of(make(np.random.default_rng(seed)))
        results = ran(model, feeds)
        if not isinstance(results, str):
            outcome = sublet.compile(model)(feeds)
            for name, array in outcome.items():
                assert np.asarray(array).shape == results[name].shape


def test_a_classical_operator_without_a_rule_has_the_declared_shape_as_an_assumption() -> None:
    """The onnx package gives no shape, and no data decides the shape."""
    text = """<ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
    g (float[4, 3] x) => (int64[4] label, float[4, 2] scores) { label, scores = ai.onnx.ml.SVMClassifier (x) }"""
    model = onnx.parser.parse_model(text)
    read = from_proto(model)
    assert [str(value.spec) for value in read.graph.outputs] == ["i64[4]", "f32[4,2]"]
    assert read.recipe.declared == (("label", "i64[4]"), ("scores", "f32[4,2]"))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    for value in from_proto(model).graph.outputs:
        assert "no shape rule for the operator ai.onnx.ml.SVMClassifier" in value.spec.reason


# ---- a cache of keys and values whose rows the caller tells in a run ----


def _cached(rows: int, constant: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A node that appends one row to a past of six rows, or writes the row into the past."""
    cache, now = f32(1, 2, 6, 8), f32(1, 1, 16)
    inputs = [f32(1, 1, 32), now, now, cache, cache, np.array([rows - 1], np.int32), np.array(rows, np.int32)]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    return model_of(Case("GroupQueryAttention", inputs, 3, heads, frozenset({6} if constant else ())))


@pytest.mark.parametrize("optimize", ["none", "auto"])
@pytest.mark.parametrize("rows", [6, 7])
def test_rows_that_depend_on_data_are_open(optimize: str, rows: int) -> None:
    """The shape inference of ONNX Runtime 1.31 says that a present cache has as many rows as the past."""
    model, feeds = _cached(rows, constant=False)
    executable = sublet.compile(model, optimize=optimize)
    decision = verdict(executable.plan, 1 << 20)
    assert (decision.outcome, decision.is_proven, executable.plan.gap) == (BudgetOutcome.UNKNOWN, False, None)
    assert [value.dims for value in executable.plan.not_counted] == [(1, 2, -1, 8)] * 2
    assert np.asarray(executable(feeds)["y1"]).shape == (1, 2, rows, 8)


@pytest.mark.parametrize("optimize", ["none", "auto"])
@pytest.mark.parametrize("rows", [6, 7])
def test_rows_that_a_constant_tells_are_planned(optimize: str, rows: int) -> None:
    model, feeds = _cached(rows, constant=True)
    executable = sublet.compile(model, optimize=optimize)
    assert (executable.plan.outside, executable.plan.assumed_types) == ((), ())
    assert np.asarray(executable(feeds)["y1"]).shape == (1, 2, rows, 8)


def test_a_claim_about_an_operator_of_onnx_runtime_is_no_contradiction() -> None:
    model, _ = _cached(7, constant=True)
    model.graph.output[1].CopyFrom(helper.make_tensor_value_info("y1", 1, [1, 2, 6, 8]))
    imported = from_proto(model)
    assert str(imported.graph.outputs[1].spec) == "f32[1,2,7,8]"
    assert [finding.rule for finding in imported.warnings] == ["declared-shape"]


# ---- types that only ONNX Runtime's shape inference tells ----


def _unruled() -> onnx.ModelProto:
    """A model with an operator that Sublet has no rule for."""
    nodes = [helper.make_node("Trilu", ["x"], ["t"], domain=DOMAIN), helper.make_node("Neg", ["t"], ["y"])]
    inputs, outputs = [helper.make_tensor_value_info("x", 1, [4, 4])], [helper.make_empty_tensor_value_info("y")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def test_a_type_that_only_onnx_runtime_infers_is_assumed(tmp_path: Path) -> None:
    imported = load_optimized_proto(_unruled())
    plan = plan_memory(imported)
    assert [type for _, type in plan.assumed_types] == ["f32[4,4]"]
    for budget, outcome in ((1 << 20, BudgetOutcome.FITS), (0, BudgetOutcome.DOES_NOT_FIT)):
        decision = verdict(plan, budget)
        assert (decision.outcome, decision.is_proven, decision.assumed) == (outcome, False, plan.assumed_types)
    onnx.save(_unruled(), tmp_path / "m.onnx")
    words = ["plan", str(tmp_path / "m.onnx"), "--optimize", "auto", "--budget", "1MB"]
    told = CliRunner().invoke(app, words).stdout
    assert "f32[4,4], as ONNX Runtime infers" in told.splitlines()[0]
    assert "optimal for these buffers in this order if the assumed types are true" in told
    content = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (content["proven"], content["assumed"]) == (False, dict(plan.assumed_types))


def test_a_plan_file_keeps_what_onnx_runtime_infers(tmp_path: Path) -> None:
    onnx.save(_unruled(), tmp_path / "m.onnx")
    words = ["plan", str(tmp_path / "m.onnx"), "--optimize", "auto", "--out", str(tmp_path / "plan.json")]
    assert CliRunner().invoke(app, words).exit_code == 0
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "m.onnx"), str(tmp_path / "plan.json")])
    assert checked.exit_code == 0
    assert "as ONNX Runtime infers" in checked.stdout


def test_a_run_refuses_a_shape_that_was_assumed_wrong() -> None:
    model = _unruled()
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, [2, 8]))
    with pytest.raises(RunError):
        sublet.compile(model, optimize="none")(x=np.ones((4, 4), np.float32))

"""Shapes are verified per operator: what contradicts itself is refused, what nobody knows lies outside the plan."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import sublet
from sublet.base.errors import ModelError, RunError
from sublet.base.tensor import Unplannable
from sublet.cli.app import app
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.runtime_optimizer import load_optimized_proto
from tests.integrations.onnx import shape_cases, unknown_models
from tests.integrations.onnx.models import ARMS, parsed


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "0")


@pytest.mark.parametrize("seed", range(4))
def test_what_onnx_runtime_refuses_is_refused_and_the_rest_has_its_shapes(seed: int) -> None:
    """A sample of operators; `python -m tests.fuzz --kind shapes` takes all of them."""
    assert shape_cases.check(seed, 40, shape_cases.SAMPLE) == 40


def test_scales_need_not_be_a_vector_where_onnx_runtime_takes_them() -> None:
    """Seeds 76 and 133 once drew scales of shape [1,4], which were refused."""
    for seed in range(10):
        assert shape_cases.check(seed, 40, ("Resize", "Upsample"))


def test_a_scalar_is_refused_where_onnx_runtime_refuses_it() -> None:
    found = {(seed.name, what) for seed, arrays in shape_cases.with_scalars(shape_cases.OF_RANK)
             for what in shape_cases.judged(seed, arrays)}  # fmt: skip
    assert not found


def test_models_of_unknown_shapes_are_planned_as_they_come_out() -> None:
    fates = {unknown_models.check(seed) for seed in range(30)}
    assert fates == {"ran", "refused", "believed"}


# ---- extents that are written in the file ----


def test_a_baked_in_length_is_told_with_the_axis_that_does_not_follow() -> None:
    text = "g (float[seq, 64] x) => (y) <int64[2] s = {128, 64}> { y = Reshape (x, s) }"
    assert str(from_proto(parsed(text), {"seq": 128}).graph.outputs[0].spec) == "f32[128,64]"
    with pytest.raises(ModelError) as caught:
        from_proto(parsed(text), {"seq": 7})
    for part in ("Reshape 'y'", "f32[7,64]", "'s' = [128, 64]", "expected 7", "--dim seq=7"):
        assert part in str(caught.value)


def test_a_baked_in_operand_is_told() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "position"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["seq", 8])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.zeros((16, 8), np.float32), "position")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ModelError, match=r"7 and 16; it reads 'x' f32\[7,8\], 'position' f32\[16,8\]\. .* --dim seq=7"):
        from_proto(model, {"seq": 7})


def test_extents_that_an_encoder_and_decoder_cannot_take_are_not_called_fixed() -> None:
    """Halved and doubled again, an odd extent differs from itself: no constant of the file is at fault."""
    text = """g (float[1, 1, h, 4] x) => (y) <float[4] twice = {1.0, 1.0, 2.0, 2.0}> {
        half = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)
        whole = Resize <mode = "nearest"> (half, , twice)
        y = Add (x, whole)
    }"""
    assert str(from_proto(parsed(text), {"h": 6}).graph.outputs[0].spec) == "f32[1,1,6,4]"
    with pytest.raises(ModelError, match=r"5 and 6; .* With --dim h=5: the network may take only some extents"):
        from_proto(parsed(text), {"h": 5})


# ---- operators that ONNX does not have ----


@pytest.mark.parametrize(
    ("op", "said"), [("Frobnicate", "has no operator Frobnicate"), ("Gelu", "added in version 20")]
)
def test_an_operator_that_onnx_does_not_have_is_an_error(op: str, said: str) -> None:
    with pytest.raises(ModelError, match=f"{op} 'y': version 17 of the operator set ai.onnx.*{said}"):
        from_proto(parsed(f"g (float[2] x) => (y) {{ y = {op} (x) }}"))


# ---- what a file declares ----


@pytest.mark.parametrize("claim", ["float[3]", "float[2, 1]", "int64[2]"])
def test_an_output_that_contradicts_its_operator_is_an_error(claim: str) -> None:
    with pytest.raises(ModelError, match=r"Neg 'y': 'y' is f32\[2\] by its operator; the file declares"):
        from_proto(parsed(f"g (float[2] x) => ({claim} y) {{ y = Neg (x) }}"))


def test_a_claim_that_a_bound_dimension_outdates_is_a_warning() -> None:
    imported = from_proto(parsed("g (float[n] x) => (float[4] y) { y = Neg (x) }"), {"n": 2})
    assert str(imported.graph.outputs[0].spec) == "f32[2]"
    assert [finding.rule for finding in imported.warnings] == ["declared-shape"]


def test_a_shape_that_only_the_file_knows_is_assumed() -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "my" : 1]>\n'
    imported = from_proto(parsed("g (float[2] x) => (float[4] y) { y = my.Op (x) }", header))
    assert str(imported.graph.outputs[0].spec) == "f32[4]"
    assert (imported.recipe.declared, imported.warnings) == ((("y", "f32[4]"),), ())
    assert (
        load_optimized_proto(parsed("g (float[2] x) => (float[4] y) { y = my.Op (x) }", header)).recipe
        == imported.recipe
    )


@pytest.mark.parametrize(("stride", "extent"), [(1, None), (2, None), (3, 1)])
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_a_window_may_lack_less_than_a_stride(op: str, stride: int, extent: int | None) -> None:
    """ONNX and its implementations round the count of steps towards zero."""
    model = parsed(f"g (float[1, 1, 3] x) => (y) {{ y = {op} <kernel_shape = [5], strides = [{stride}]> (x) }}")
    if extent is None:
        with pytest.raises(ModelError, match="a window of 5 is larger than 3"):
            from_proto(model)
    else:
        x = np.arange(3, dtype=np.float32).reshape(1, 1, 3)
        assert sublet.compile(model, optimize="none")(x=x)["y"].shape == (1, 1, extent)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_kernel_has_room(stride: int) -> None:
    """Found by the fuzz beside ONNX Runtime, which refuses at any stride what would come out with an extent of 0."""
    header = f"y = Conv <strides = [{stride}]> (x, w)"
    with pytest.raises(ModelError, match="a window of 4 is larger than 3"):
        from_proto(parsed(f"g (float[1, 1, 3] x, float[1, 1, 4] w) => (y) {{ {header} }}"))
    imported = from_proto(parsed(f"g (float[1, 1, 4] x, float[1, 1, 4] w) => (y) {{ {header} }}"))
    assert str(imported.graph.outputs[0].spec) == "f32[1,1,1]"


# ---- what may never run ----


def test_a_contradiction_in_an_arm_is_a_warning_and_the_arm_lies_outside() -> None:
    imported = from_proto(parsed(ARMS))
    assert [finding.rule for finding in imported.warnings] == ["contradiction"]
    assert "expected 7" in str(imported.warnings[0])
    assert [value.name for value in imported.graph.unplannable_values] == ["a"]


@pytest.mark.parametrize(("trip", "refused"), [("{3}", True), ("{0}", False)])
def test_a_contradiction_in_a_loop_is_an_error_if_it_has_a_round(trip: str, refused: bool) -> None:
    text = """g (float[7, 64] x) => (y) <int64 n = TRIP> {
      y = Loop (n, , x) <body = body (int64 i, bool go, float[7, 64] z) => (go2, w) {
        go2 = Identity (go) s = Constant <value_ints = [128, 64]> () t = Reshape (z, s) w = Neg (z) u = Neg (t)
      }>
    }""".replace("TRIP", trip)
    if refused:
        with pytest.raises(ModelError, match="Reshape 't'"):
            from_proto(parsed(text))
    else:
        assert [finding.rule for finding in from_proto(parsed(text)).warnings] == ["contradiction"]


def test_a_shape_that_is_disputed_lies_outside() -> None:
    """ONNX takes the largest integer for a place after the end, ONNX Runtime, going backwards, for the beginning."""
    weights = "<int64[1] a = {-1}, int64[1] b = {9223372036854775807}, int64[1] c = {0}, int64[1] d = {-1}>"
    graph = from_proto(parsed(f"g (float[4] x) => (y) {weights} {{ y = Slice (x, a, b, c, d) }}")).graph
    assert isinstance(graph.outputs[0].spec, Unplannable)
    assert "disagree" in graph.outputs[0].spec.reason


def test_what_only_the_file_declares_is_told_recorded_and_checked(tmp_path: Path) -> None:
    path, plan = write(tmp_path, "g (float[2] x) => (float[4] y) { y = my.Op (x) }"), tmp_path / "plan.json"
    words = "y is f32[4], as the file declares"
    told = cli("plan", path, "--budget", "1K", "--out", plan)
    assert f"Fits the budget of 1 KiB if {words}" in told
    assert "warning" not in told
    assert words in cli("show", plan)
    assert words in cli("check", path, plan)
    assert "optimal" not in cli("check", path, plan)
    assert json.loads(cli("plan", path, "--json"))["recipe"]["declared"] == {"y": "f32[4]"}
    content = json.loads(plan.read_text())
    content["recipe"]["declared"] = []
    plan.write_text(json.dumps(content))
    assert "assumes other types than" in " ".join(cli("check", path, plan, status=2).split())


def test_a_run_holds_a_declared_shape_of_which_only_a_constant_is_left() -> None:
    """Shape of the claim is folded, and the value that it is of is computed all the same."""
    text = """g (float[2, 3] x) => (z) <int32[1] a = {0}, float[2, 3] CLAIM> {
      c = com.microsoft.ExpandDims (x, a) s = Shape (c) z = ConstantOfShape (s)
    }"""
    header = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
    for claim, right in (("float[1, 2, 3] c", True), ("float[4] c", False)):
        made = parsed(text.replace("float[2, 3] CLAIM", claim), header)
        run = sublet.compile(made, optimize="none")
        assert [name for name, _ in run.plan.assumed_types] == ["c"]
        if right:
            assert run(x=np.zeros((2, 3), np.float32))["z"].shape == (1, 2, 3)
        else:
            with pytest.raises(RunError):
                run(x=np.zeros((2, 3), np.float32))


def test_the_command_line_tells_what_a_model_is_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path, "g (float[n] x) => (float[4] y) { y = Neg (x) }")
    for command in (("plan",), ("run", "--random", "0")):
        words = (command[0], path, "--dim", "n=2", *command[1:])
        said = "'y' is f32[2] by its operator; the file declares f32[4]"
        assert cli(*words).count(said) == 1
        assert [said in text for text in json.loads(cli(*words, "--json"))["warnings"]] == [True]


def write(folder: Path, text: str) -> Path:
    """A model with an operator set of its own, in a file."""
    path = folder / "model.onnx"
    path.write_bytes(parsed(text, '<ir_version: 9, opset_import: ["" : 17, "my" : 1]>\n').SerializeToString())
    return path


def cli(*words: object, status: int = 0) -> str:
    """What a command says."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return result.output

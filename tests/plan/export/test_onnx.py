"""Plans in the metadata of ONNX files: written under onnxsim's keys, read back, and judged right."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sublet.analysis.options import Options
from sublet.api.plans import export_plan
from sublet.api.sources import read_source
from sublet.base.errors import PlanError, SubletError
from sublet.checker.external import ForeignOutcome
from sublet.checker.external.files import judge_embedded_plan
from sublet.integrations.onnx.plan_reader import plan_from_onnx
from sublet.plan.export import ExportContext
from sublet.planning.pipeline import plan_memory
from tests.support.onnx.planned_runs import options_of
from tests.support.onnx.several_outputs import onnx_program


def declared(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def branching() -> onnx.ModelProto:
    """A branch, whose arms both call a tensor "t"."""
    then = [helper.make_node("Relu", ["b"], ["t"]), helper.make_node("Neg", ["t"], ["only"])]
    other = [helper.make_node("Neg", ["b"], ["t"])]
    arms = {
        "then_branch": helper.make_graph(then, "then", [], [declared("only", [4, 4])]),
        "else_branch": helper.make_graph(other, "else", [], [declared("t", [4, 4])]),
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "a"], ["b"], name="second"),
        helper.make_node("If", ["flag"], ["y"], name="choose", **arms),
    ]
    inputs = [declared("x", [4, 4]), declared("flag", [], TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "branching", inputs, [declared("y", [4, 4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def planned(model: onnx.ModelProto, folder: Path, options: Options | None = None) -> Path:
    """The file that `sublet export --to onnx` writes."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    files = export_plan(plan_memory(read_source(path), options or Options()), "onnx", ExportContext(model=path))
    ((name, content),) = files.items()
    assert isinstance(content, bytes)
    (folder / name).write_bytes(content)
    return folder / name


def keys(holder: onnx.ModelProto | onnx.ValueInfoProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in holder.metadata_props}


def test_the_keys_are_those_of_onnxsim(tmp_path: Path) -> None:
    model = onnx.load(planned(branching(), tmp_path, Options(alignment=16)))
    onnx.checker.check_model(model)
    values = {value.name: keys(value) for value in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    assert values["x"].keys() == {"onnxsim.mem_offset", "onnxsim.mem_size"}
    assert all(found.get("onnxsim.mem_size", "64") == "64" for name, found in values.items() if name != "flag")
    told = keys(model)
    assert int(told["onnxsim.memory_plan_arena_bytes"]) >= 128
    assert told["onnxsim.memory_plan_alignment"] == "16"
    assert [node.name for node in model.graph.node] == ["first", "second", "choose"]


def test_a_view_of_a_weight_has_no_offset_and_is_counted(tmp_path: Path) -> None:
    """A transformer adds the first rows of its table of positions."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y)
    <int64[1] first = {0}, int64[1] last = {2}> { rows = Slice (table, first, last, first)  y = Add (x, rows) }"""
    model = onnx.parser.parse_model(text)
    table = np.ones((1 << 18, 4), np.float32)  # too large to be folded
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    path = planned(model, tmp_path)
    told = keys(onnx.load(path))
    assert told["onnxsim.memory_plan_unplanned"] == "rows"
    verdict = judge_embedded_plan(read_source(path), path)
    assert (verdict.outcome, list(verdict.not_judged)) == (ForeignOutcome.PARTLY, ["rows"])


def test_names_that_two_arms_have_get_no_offset(tmp_path: Path) -> None:
    path = planned(branching(), tmp_path)
    arms = [a.g for node in onnx.load(path).graph.node for a in node.attribute]
    told = {value.name: keys(value) for arm in arms for value in (*arm.output, *arm.value_info)}
    assert "onnxsim.mem_offset" not in told["t"]
    assert judge_embedded_plan(read_source(path), path).outcome is not ForeignOutcome.WRONG


def test_written_again_the_old_plan_is_gone(tmp_path: Path) -> None:
    once = planned(branching(), tmp_path, Options(alignment=64))
    (tmp_path / "again").mkdir()
    again = onnx.load(planned(onnx.load(once), tmp_path / "again", Options(alignment=1)))
    for value in (*again.graph.input, *again.graph.value_info):
        names = [entry.key for entry in value.metadata_props]
        assert len(names) == len(set(names))
    assert keys(again)["onnxsim.memory_plan_alignment"] == "1"


def test_an_offset_that_is_changed_is_found_out(tmp_path: Path) -> None:
    path = planned(branching(), tmp_path)
    model = onnx.load(path)
    offsets = {v.name: v for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    entry = next(e for e in offsets["b"].metadata_props if e.key.endswith("mem_offset"))
    entry.value = keys(offsets["a"])["onnxsim.mem_offset"]
    onnx.save(model, path)
    found = judge_embedded_plan(read_source(path), path)
    assert found.outcome is ForeignOutcome.WRONG
    assert any("over its own input %a" in str(finding) for finding in found.findings)
    entry.value = "12a"
    with pytest.raises(PlanError, match="the metadata of 'b' has '12a'; expected an integer"):
        plan_from_onnx(model, "model.onnx")


def test_memory_of_a_graph_of_its_own(tmp_path: Path) -> None:
    """onnxsim gives each branch an arena of its own, which begins at 0, and reserves room for it in the one around."""
    model = branching()
    for value, offset in ((model.graph.input[0], 0), (model.graph.output[0], 64)):
        value.metadata_props.add(key="onnxsim.mem_offset", value=str(offset))
    arm = model.graph.node[2].attribute[0].g
    arm.metadata_props.add(key="onnxsim.memory_plan_arena_bytes", value="64")
    for value in arm.output:
        value.metadata_props.add(key="onnxsim.mem_offset", value="0")
        value.name = value.name
    plan = plan_from_onnx(model, "model.onnx")
    assert {t.region for t in plan.tensors if t.name in ("x", "y")} == {"arena"}
    assert all(t.region.startswith("choose.") for t in plan.tensors if t.name == "only")
    assert set(plan.regions.values()) == {64}


def test_two_tools_in_one_file_are_bad_input() -> None:
    model = branching()
    with pytest.raises(PlanError, match="no plan in its metadata"):
        plan_from_onnx(model, "model.onnx")
    for prefix in ("one.", "two."):
        model.graph.input[0].metadata_props.add(key=f"{prefix}mem_offset", value="0")
    with pytest.raises(PlanError, match=r"plans of several tools: one\., two\."):
        plan_from_onnx(model, "model.onnx")


def test_constants_that_nodes_compute_are_written_when_they_run(tmp_path: Path) -> None:
    """A tool that counts the outputs of Constant nodes as tensors may reuse their bytes before and after."""
    constant = helper.make_tensor("c", TensorProto.FLOAT, [4], [1.0] * 4)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Constant", [], ["k"], value=constant),
        helper.make_node("Add", ["b", "k"], ["y"]),
    ]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [1.0] * 16)]
    graph = helper.make_graph(nodes, "g", [declared("x", [4])], [declared("y", [4])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = tmp_path / "model.onnx"

    def verdict(**offsets: int) -> ForeignOutcome:
        del model.graph.value_info[:]
        for name in "abk":
            model.graph.value_info.append(declared(name, [4]))
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            del value.metadata_props[:]
            value.metadata_props.add(key="onnxsim.mem_offset", value=str(offsets[value.name]))
        onnx.save(model, path)
        return judge_embedded_plan(read_source(path), path).outcome

    assert verdict(x=0, a=0, b=16, k=0, y=16) is ForeignOutcome.RIGHT, "k is written where a was"
    assert verdict(x=0, a=0, b=16, k=16, y=32) is ForeignOutcome.WRONG, "k is written over b"
    assert verdict(x=0, a=0, b=16, k=0, y=0) is ForeignOutcome.RIGHT, "nobody reads k at the end"


def test_random_models_are_read_back_and_are_right(tmp_path: Path) -> None:
    """Loops, branches and functions, all ways to plan: what is written is never wrong, and often whole."""
    seen: Counter[str] = Counter()
    for seed in range(25):
        program = onnx_program(seed)
        try:
            path = planned(program.model, tmp_path, options_of(random.Random(seed)))
        except SubletError as error:
            seen[type(error).__name__] += 1
            continue
        found = judge_embedded_plan(read_source(path), path)
        assert not found.findings, (seed, found.findings[:3])
        seen[found.outcome] += 1
    assert seen[ForeignOutcome.RIGHT] > 3
    assert seen[ForeignOutcome.PARTLY] > 0

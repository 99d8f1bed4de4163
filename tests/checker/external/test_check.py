"""`sublet check` on plans of other tools: words, JSON, exit statuses, pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from sublet.checker.external.external_plan import plan_from_json
from sublet.checker.external.files import embedded_options
from sublet.integrations.onnx.plan_reader import OPTIONS
from sublet.integrations.tflite.offline_plan import METADATA, encode_offsets
from sublet.packing import Packing, pack, write_csv
from sublet.packing.files import read_problem
from tests.integrations.tflite.written import G, O, T, tflite
from tests.plan.export.test_onnx import branching, planned
from tests.support.command_line import Cli

CHAIN = """graph @chain(%x: f32[4]) {
  %a: f32[4] = onnx.Relu(%x)
  %b: f32[4] = onnx.Softmax(%a)
  %c: f32[4] = onnx.Add(%a, %b)
  return %c
}
"""
HERE = Path(__file__).parent


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def told(folder: Path, **offsets: int | None) -> tuple[Path, Path]:
    """A model, and a plan of it as JSON."""
    model, plan = folder / "chain.sublet", folder / "placed.json"
    model.write_text(CHAIN)
    tensors = [{"name": name, "offset": offset} for name, offset in offsets.items()]
    plan.write_text(json.dumps({"format": "sublet-placed", "version": 1, "tool": "TVM", "tensors": tensors}))
    return model, plan


def test_the_examples_in_the_documentation(cli: Cli, tmp_path: Path) -> None:
    text = (HERE.parents[2] / "docs" / "foreign.md").read_text()
    of_model, of_lives = (match[1] for match in re.finditer(r"```json\n(.*?)```", text, re.DOTALL))
    assert [tensor.name for tensor in plan_from_json(of_model, "docs").tensors] == ["x", "conv1"]
    path = tmp_path / "lives.json"
    path.write_text(of_lives)
    assert cli("check", path)[0] == 0
    path.write_text(of_lives.replace(', "shares": "b"', ""))
    assert "at 2 (add)" in cli("check", path)[1]


def test_a_right_plan(cli: Cli, tmp_path: Path) -> None:
    model, plan = told(tmp_path, x=0, a=0, b=16, c=0)
    status, out, _ = cli("check", model, plan, "--html", tmp_path / "map.html")
    assert status == 0
    assert "right: 4 tensors of TVM, judged by the model, replayed byte by byte, in the order of the model" in out
    assert "arena: 32 bytes (32 B); no plan of these tensors that shares the same bytes takes less" in out
    assert (tmp_path / "map.html").read_text().startswith("<!")


def test_a_wrong_plan(cli: Cli, tmp_path: Path) -> None:
    model, plan = told(tmp_path, x=0, a=0, b=8, c=2)
    status, out, _ = cli("check", model, plan)
    assert status == 1
    assert "violation" in out
    assert "optimal" not in out
    found = json.loads(cli("check", model, plan, "--json")[1])
    assert (found["outcome"], found["right"], found["exit_status"]) == ("wrong", False, 1)
    assert {violation["rule"] for violation in found["violations"]} >= {"input-overwritten", "misaligned"}
    assert found["regions"] == [{"name": "arena", "bytes": 24, "lower_bound_bytes": None}]


def test_a_plan_of_a_part(cli: Cli, tmp_path: Path) -> None:
    model, plan = told(tmp_path, x=0, a=0, b=None, c=0)
    status, out, _ = cli("check", model, plan)
    assert status == 3
    assert "partly judged: right in 3 tensors of TVM" in out
    assert "1 more are not judged" in out
    assert "not judged: b: the plan has no place for the tensor" in out


def test_a_capacity_that_the_plan_does_not_tell(cli: Cli, tmp_path: Path) -> None:
    model, plan = told(tmp_path, x=0, a=0, b=16, c=0)
    assert cli("check", model, plan, "--capacity", "32")[0] == 0
    status, out, _ = cli("check", model, plan, "--capacity", "31")
    assert (status, "but arena has 31 bytes" in out) == (1, True)


def test_a_plan_in_an_onnx_file(cli: Cli, tmp_path: Path) -> None:
    path = planned(branching(), tmp_path)
    assert cli("check", path)[0] == 3, "names that both arms have are left out"
    status, _, err = cli("check", tmp_path / "model.onnx")
    assert (status, "no plan in its metadata" in err) == (2, True)


OPEN = """<ir_version: 10, opset_import: ["": 17]>
g (float[batch, 4] x, int64[2] shape, int64 n, bool more) => (float[a, b] z, float[rows, batch, 4] stacked) {
  y = Relu (x)
  r = Reshape (y, shape)
  z = Softmax (r)
  stacked = Loop (n, more) <body = step (int64 i, bool on) => (bool again, float[batch, 4] row) {
    again = Identity (on)
    row = Neg (y)
  }>
}"""
"""A model with an open dimension, a shape known at run time, and a loop without a maximum trip count."""
DECLARED = {"dims": {"batch": 3}, "max_trips": {"": 5}, "assume": {"r": "f32[4,3]"}}


def exported_open_model(cli: Cli, folder: Path) -> Path:
    """A file with a plan that needs a dimension, a trip count and a shape."""
    model, plan = folder / "open.onnx", folder / "plan.json"
    model.write_bytes(onnx.parser.parse_model(OPEN).SerializeToString())
    given = ("--dim", "batch=3", "--max-trips", 5, "--assume", "r=f32[4,3]")
    assert cli("plan", model, *given, "--out", plan)[0] == 0
    assert cli("export", model, "--plan", plan, "--to", "onnx", "--out", folder)[0] == 0
    return folder / "open_planned.onnx"


def test_a_planned_file_records_what_its_plan_was_told(cli: Cli, tmp_path: Path) -> None:
    path = exported_open_model(cli, tmp_path)
    assert embedded_options(path) == DECLARED
    content = json.loads(cli("check", path, "--json")[1])
    assert content["violations"] == []
    assert {"x", "r", "z", "stacked"} <= set(content["judged"])
    assert content["assumed"] == {"r": "f32[4,3]"}
    assert "; assumed: r is f32[4,3]" in " ".join(cli("check", path)[1].split())
    status, out, _ = cli("check", path, "--dim", "batch=4")
    assert status == 1, "an extent given wins over the recorded extent"
    assert "value %x: has a region of 48 bytes, but needs 64" in out


@pytest.mark.parametrize("record", ["[]", "{", '{"dims": 1}', '{"dims": {"batch": "3"}}', '{"other": {"a": 1}}', "1e9"])
def test_a_record_of_another_form_is_bad_input(cli: Cli, tmp_path: Path, record: str) -> None:
    path = exported_open_model(cli, tmp_path)
    model = onnx.load(path)
    (entry,) = (entry for entry in model.metadata_props if entry.key.endswith(OPTIONS))
    entry.value = record
    onnx.save(model, path)
    status, _, err = cli("check", path)
    assert (status, OPTIONS in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize(("name", "nbytes", "least"), [("straight", 4096, 4096), ("branch", 1536, 768)])
def test_plans_that_onnxsim_made(cli: Cli, tmp_path: Path, name: str, nbytes: int, least: int) -> None:
    """Files that onnxsim 0.8.1 has annotated. It counts constants as tensors, and reserves room for both arms."""
    path = HERE / "onnxsim" / f"{name}.onnx"
    found = json.loads(cli("check", path, "--json")[1])
    assert (found["outcome"], found["not_judged"]) == ("right", {})
    assert found["regions"] == [{"name": "arena", "bytes": nbytes, "lower_bound_bytes": least}]
    model = onnx.load(path)
    for value in (*model.graph.output, *model.graph.value_info):
        for entry in value.metadata_props:
            if entry.key.endswith("mem_offset") and value.name in ("p", "b"):
                entry.value = "16" if value.name == "p" else "1280"
    onnx.save(model, tmp_path / "wrong.onnx")
    assert cli("check", tmp_path / "wrong.onnx")[0] == 1


def test_a_plan_in_a_tflite_file(cli: Cli, tmp_path: Path) -> None:
    tensors = [T((4,), name="x"), T((4,), name="a"), T((4,), name="b"), T((4,), name="y")]
    operators = [O("RELU", [0], [1]), O("SOFTMAX", [1], [2]), O("ADD", [1, 2], [3])]
    path = tmp_path / "planned.tflite"

    def verdict(*offsets: int | None) -> tuple[int, str]:
        model = G(tensors, operators, [0], [3])
        path.write_bytes(tflite(model, metadata=[(METADATA, encode_offsets([offsets]))]))
        return cli("check", path)[:2]

    assert verdict(0, 16, 32, 0)[0] == 0
    assert verdict(0, 16, 32, 48)[0] == 0
    status, out = verdict(0, 16, 16, 32)
    assert (status, "violation" in out, "%a" in out, "%b" in out) == (1, True, True, True)
    assert verdict(0, 16, 36, 64)[0] == 1, "TFLM aligns to 16 bytes"
    status, out = verdict(0, 16, None, 32)
    assert (status, "not judged: b: the plan has no place for the tensor" in out) == (3, True)


def test_a_csv_with_offsets(cli: Cli, tmp_path: Path) -> None:
    problem = read_problem(HERE.parents[1] / "packing" / "problems" / "A.1048576.csv")
    packing = pack(problem, "best_fit_by_size").packing
    write_csv(problem, packing, tmp_path / "out.csv")
    status, out, _ = cli("check", tmp_path / "out.csv")
    assert status == 0
    assert "if these are the lifetimes of the program" in out
    offsets = list(packing.offsets)
    offsets[3] = offsets[7]
    write_csv(problem, Packing(tuple(offsets), packing.arena_bytes, ""), tmp_path / "wrong.csv")
    status, out, _ = cli("check", tmp_path / "wrong.csv")
    assert status == 1
    assert "while both are alive, at " in out
    write_csv(problem, None, tmp_path / "none.csv")
    status, _, err = cli("check", tmp_path / "none.csv")
    assert (status, "has no offsets to check" in err) == (2, True)


def test_a_csv_with_regions(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("id,lower,upper,size,offset,region\na,0,2,8,0,sram\nb,0,2,8,0,dram\nc,1,2,8,4,dram\n")
    status, out, _ = cli("check", path, "--json")
    found = json.loads(out)
    assert (status, [r["name"] for r in found["regions"]]) == (1, ["sram", "dram"])
    assert [v["where"] for v in found["violations"]] == ["buffer b in dram"]
    assert cli("check", path, "--capacity", "64")[0] == 2


def test_json_with_lifetimes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "lives.json"
    tensors = [
        {"name": "a", "offset": 0, "bytes": 8, "lifetimes": [[0, 2]]},
        {"name": "b", "offset": 8, "bytes": 8, "lifetimes": [[1, 3]]},
        {"name": "c", "offset": 0, "bytes": 8, "lifetimes": [[2, 3]], "region": "arena"},
    ]
    path.write_text(json.dumps({"format": "sublet-placed", "version": 1, "tensors": tensors}))
    assert cli("check", path, "--png", tmp_path / "map.svg")[0] == 0
    assert (tmp_path / "map.svg").exists()


@pytest.mark.parametrize("words", [("--search",), ("--capacity", "x")])
def test_options_that_do_not_go_together(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    model, plan = told(tmp_path, x=0)
    assert cli("check", model, plan, *words)[0] == 2


@pytest.mark.parametrize("field", ["format", "version"])
def test_places_without_a_format_are_recognised(cli: Cli, tmp_path: Path, field: str) -> None:
    for places, status in (({"x": 0, "a": 0, "b": 16, "c": 0}, 0), ({"x": 0, "a": 0, "b": 8, "c": 0}, 1)):
        model, plan = told(tmp_path, **places)
        content = json.loads(plan.read_text())
        plan.write_text(json.dumps({key: entry for key, entry in content.items() if key not in ("format", field)}))
        assert cli("check", model, plan)[0] == status
    lives = [{"name": "a", "offset": 0, "bytes": 8, "lifetimes": [[0, 2]]}]
    plan.write_text(json.dumps({"tensors": lives}))
    assert cli("check", plan)[0] == 0


@pytest.mark.parametrize(
    "content",
    [[], {}, {"x": 0}, {"buffers": [{"id": 1}]}, {"tensors": []}, {"tensors": [1]}, {"tensors": [{"name": "x"}]},
     {"format": "tvm", "tensors": [{"name": "x", "offset": 0}]}, {"format": "tvm", "version": 1}],
)  # fmt: skip
def test_json_in_no_known_form_is_told_the_known_forms(cli: Cli, tmp_path: Path, content: object) -> None:
    model, plan = told(tmp_path, x=0)
    plan.write_text(json.dumps(content))
    for words in ((model, plan), (plan,)):
        status, _, err = cli("check", *words)
        assert (status, "is no plan in a known form: found" in " ".join(err.split())) == (2, True)
        assert all(known in err for known in ("sublet-placed", ".csv", ".onnx", ".tflite", ".pte", ".pickle"))
    if isinstance(content, dict):
        assert all(repr(name) in err for name in content)


def test_a_model_without_a_plan(cli: Cli, tmp_path: Path) -> None:
    model, _ = told(tmp_path, x=0)
    status, _, err = cli("check", model)
    assert (status, "contains no plan" in err) == (2, True)

"""`.pt2` files: read without unpickling or evaluating anything, refused in words when they are not right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sublet
from sublet.base.errors import ModelError
from sublet.cli.app import app
from tests.integrations.onnx.damage import judge_many
from tests.support.audit_hook import MARK, require_known, watched

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integrations.torch import hostile  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    torch.manual_seed(0)
    module, x = hostile.Chosen().eval(), torch.randn(4, 6)
    path = tmp_path_factory.mktemp("pt2") / "chosen.pt2"
    path.write_bytes(hostile.saved(module, x))
    return path, module, x


def test_a_saved_program_is_planned_and_runs(saved: tuple[Path, Any, Any]) -> None:
    path, module, x = saved
    model = sublet.read_model(path)
    run = sublet.compile(model)
    (result,) = run({model.inputs[0]: x}).values()
    with torch.no_grad():
        np.testing.assert_allclose(result, module(x).numpy(), rtol=1e-6)
    shown = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["arena_bytes"] == run.arena_bytes


def test_the_writer_of_a_tensor_has_the_path_of_its_module(tmp_path: Path) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    path = tmp_path / "nested.pt2"
    path.write_bytes(hostile.saved(torch.nn.Sequential(inner, torch.nn.Linear(4, 2)).eval(), torch.randn(3, 4)))
    shown = CliRunner().invoke(app, ["explain", str(path), "linear"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"written by \w+ \(0\.0, linear\.py:\d+\)", " ".join(shown.stdout.split()))


def edited(name: str, old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(entry: str, content: bytes) -> bytes:
        if entry != name:
            return content
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return change


MODEL, WEIGHTS = hostile.MODEL, hostile.WEIGHTS
BAD = {
    "an operator that is none": (edited(MODEL, "torch.ops.aten.relu.default", "torch.hub.load.x"), "calls 'torch.hub"),
    "a pickle": (edited(WEIGHTS, '"use_pickle": false', '"use_pickle": true'), "stored as a pickle"),
    "a long tensor": (edited(WEIGHTS, '{"as_int": 16}', '{"as_int": 16000000}'), "longer than its"),
    "no program": (lambda entry, content: None if entry == MODEL else content, "has no models/model.json"),
    "no JSON": (lambda entry, content: b"{" if entry == MODEL else content, "is not valid JSON"),
    "deep JSON": (lambda entry, content: b"[" * 100000 if entry == MODEL else content, "is not valid JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_safe_is_refused(name: str, saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    change, words = BAD[name]
    path = tmp_path / "bad.pt2"
    path.write_bytes(hostile.changed(saved[0].read_bytes(), change))
    with pytest.raises(ModelError, match=words):
        sublet.read_model(path)


def test_an_expression_is_never_evaluated(saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    expression = {"as_expr": {"expr_str": "__import__('os').system('touch evaluated')", "hint": None}}

    def change(entry: str, content: bytes) -> bytes:
        if entry != MODEL:
            return content
        text = json.dumps(json.loads(content))
        assert '{"as_int": 4}' in text
        return text.replace('{"as_int": 4}', json.dumps(expression), 1).encode()

    path = tmp_path / "bad.pt2"
    path.write_bytes(hostile.changed(saved[0].read_bytes(), change))
    with pytest.raises(ModelError, match="is open"):
        sublet.read_model(path)
    assert not Path("evaluated").exists()


def test_damaged_files_are_one_error_each() -> None:
    assert judge_many(hostile.FILES, 30)["refused"] > 15


def test_programs_that_lie_are_one_error_each() -> None:
    assert set(hostile.judge_lies(16)) == {"read", "refused"}


def test_reading_resolves_no_string_of_a_file() -> None:
    """A payload in every seventh string, and in each string of JSON within the JSON."""
    tally = hostile.judge_payloads(step=7)
    assert tally["refused"] > 60
    assert tally["read"] > 10  # those in fields that nothing reads


def test_the_hook_sees_what_pytorch_resolves() -> None:
    spec = json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": []}])
    bad = json.dumps([1, {"type": "builtins.dict", "context": json.dumps(hostile.PAYLOADS[0]), "children_spec": []}])
    with watched() as honest:
        torch.utils._pytree.treespec_loads(spec)
    with watched() as events, pytest.raises(ModuleNotFoundError):
        torch.utils._pytree.treespec_loads(bad)
    with pytest.raises(AssertionError, match=MARK):
        require_known(events, honest, "a tree specification")


@pytest.mark.parametrize("begin", [b"\x7fELF" + bytes(60), b"#!/bin/sh\n", b"MZ"])
def test_a_zip_behind_something_else_is_refused(begin: bytes, saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(begin + saved[0].read_bytes())
    with pytest.raises(ModelError, match="begins with"):
        sublet.read_model(path)


def meta(graph: dict[str, Any], extents: list[int]) -> None:
    """Give every tensor of a graph these extents."""
    for each in graph["tensor_values"].values():
        each["sizes"] = [{"as_int": extent} for extent in extents]
        each["strides"] = [{"as_int": 1} for _ in extents]


def call(target: str, **arguments: Any) -> Callable[[dict[str, Any]], None]:
    """Put a call before the first node of a graph: of an operator on `x`, which gets 10^9 elements."""
    inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
    node = {"target": target, "inputs": inputs, "outputs": [], "metadata": {}, "name": "z"}

    def change(graph: dict[str, Any]) -> None:
        graph["tensor_values"]["x"] |= {"sizes": [{"as_int": 10**9}], "strides": [{"as_int": 1}]}
        graph["nodes"].insert(0, node)

    return change


X, MANY, FIRST = {"as_tensor": {"name": "x"}}, {"as_int": 10**9}, {"as_int": 0}
TOO_MUCH = {
    "65 axes": (lambda graph: meta(graph, [1] * 65), "at most 64 axes"),
    "2^62 elements": (lambda graph: meta(graph, [1 << 62]), "out of range"),
    "results": (call("torch.ops.aten.unbind.int", self=X, dim=FIRST), "returns more than"),
    "rows": (call("torch.ops.aten.split.Tensor", self=X, split_size={"as_int": 1}, dim=FIRST), "returns more than"),
    "sections": (call("torch.ops.aten.tensor_split.sections", self=X, sections=MANY, dim=FIRST), "sections"),
    "a file": (call("torch.ops.aten.from_file.default", filename={"as_string": "/etc/passwd"}), "is not planned"),
    "an attribute": (call("torch.ops.aten.__class__.__init__"), "is not planned"),
    "a module": (call("torch.ops.higher_order.__init__"), "is not planned"),
    "a name of no argument": (call("torch.ops.aten.relu.default", self=X, run=FIRST), "has no argument 'run'"),
    "an unknown field": (lambda graph: graph.update(custom={}), "the field 'custom'"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_program_that_asks_for_too_much_is_refused(name: str, saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    change, words = TOO_MUCH[name]

    def changed(entry: str, content: bytes) -> bytes:
        if entry != MODEL:
            return content
        record = json.loads(content)
        change(record["graph_module"]["graph"])
        return json.dumps(record).encode()

    path = tmp_path / "bad.pt2"
    path.write_bytes(hostile.changed(saved[0].read_bytes(), changed))
    with pytest.raises(ModelError, match=words):
        sublet.read_model(path)

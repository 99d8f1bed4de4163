"""`.pt2` files: read without unpickling or evaluating anything, refused in words when they are not right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sublet
from sublet.base.errors import ModelError
from sublet.cli.app import app
from tests.frontends.damage import judge_many

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.frontends.pytorch import hostile  # noqa: E402


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
    "no JSON": (lambda entry, content: b"{" if entry == MODEL else content, "no JSON"),
    "deep JSON": (lambda entry, content: b"[" * 100000 if entry == MODEL else content, "no JSON"),
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

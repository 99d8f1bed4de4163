"""`.pt2` files: read without unpickling or evaluating anything, refused in words when they are not right."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sublet
from sublet.cli.app import app
from sublet.errors import ModelError
from sublet.frontends.torch.exported import quietly

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x))
        return self.last(torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    torch.manual_seed(0)
    module, x = Chosen().eval(), torch.randn(4, 6)
    path = tmp_path_factory.mktemp("pt2") / "chosen.pt2"
    with quietly():
        torch.export.save(torch.export.export(module, (x,)), path)
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


def changed(path: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with other contents; None leaves an entry out."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            content = change(entry.filename.partition("/")[2], source.read(entry))
            if content is not None:
                target.writestr(entry.filename, content)
    return to


def edited(name: str, old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(entry: str, content: bytes) -> bytes:
        if entry != name:
            return content
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return change


MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
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
    with pytest.raises(ModelError, match=words):
        sublet.read_model(changed(saved[0], tmp_path / "bad.pt2", change))


def test_an_expression_is_never_evaluated(saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    expression = {"as_expr": {"expr_str": "__import__('os').system('touch evaluated')", "hint": None}}

    def change(entry: str, content: bytes) -> bytes:
        if entry != MODEL:
            return content
        text = json.dumps(json.loads(content))
        assert '{"as_int": 4}' in text
        return text.replace('{"as_int": 4}', json.dumps(expression), 1).encode()

    with pytest.raises(ModelError, match="is open"):
        sublet.read_model(changed(saved[0], tmp_path / "bad.pt2", change))
    assert not Path("evaluated").exists()


def test_damaged_files_are_one_error_each(saved: tuple[Path, Any, Any], tmp_path: Path) -> None:
    draw, content, read = random.Random(0), saved[0].read_bytes(), 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path = tmp_path / "damaged.pt2"
        path.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            sublet.read_model(path)
            read += 1
        except sublet.SubletError:
            continue
    assert read < 60

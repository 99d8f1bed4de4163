"""Plan files whose lists repeat: refused when the file is read, before the checker tells every entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sublet.base.errors import PlanError
from sublet.cli.app import app
from sublet.ir.text import parse
from sublet.plan.file import from_json, to_json
from sublet.planning.pipeline import plan_memory

onnx = pytest.importorskip("onnx")

TEXT = "graph @g(%x: f32[4]) {\n  %y: f32[4] = onnx.Neg(%x)\n  return %y\n}\n"


@pytest.mark.parametrize(("name", "times"), [("placements", 2), ("placements", 20_000), ("storages", 20_000)])
def test_a_list_that_repeats_is_refused(name: str, times: int) -> None:
    raw = json.loads(to_json(plan_memory(parse(TEXT))))
    assert from_json(json.dumps(raw)) == plan_memory(parse(TEXT))
    raw[name] *= times
    with pytest.raises(PlanError, match=rf"plan: {name}\[\d+\] is .* again, as {name}\[\d\] is\. Expected each once"):
        from_json(json.dumps(raw))


def test_the_command_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(TEXT)
    raw = json.loads(to_json(plan_memory(parse(TEXT))))
    raw["placements"] *= 20_000
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    told = CliRunner().invoke(app, ["check", str(tmp_path / "m.txt"), str(tmp_path / "plan.json")])
    assert told.exit_code == 2
    assert "is 'x' again" in told.stderr

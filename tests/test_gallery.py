"""The gallery has fifteen plans with three sentences each; `make docs` runs their commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.gallery import EXHIBITS, gallery_markdown, run_command
from docs.gallery_models import SNAPSHOT, snapshot_beside_plan, write_models, write_tflm_plan
from sublet.analysis.options import Options
from sublet.checker.external.files import judge_plan_file
from sublet.integrations.tflite.plan_offsets import offsets_of_plan, select_offsets
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import ALIGNMENT, from_program
from sublet.integrations.torch.snapshot import read_snapshot
from sublet.plan.file import load
from sublet.planning.pipeline import plan_memory
from tests.support.prose import measure_page


def test_every_exhibit_says_what_to_see() -> None:
    assert len({exhibit.name for exhibit in EXHIBITS}) == 15
    for exhibit in EXHIBITS:
        assert len(re.findall(r"[.!](?: |$)", exhibit.text)) == 3, exhibit.title
    page = measure_page(gallery_markdown())
    assert page.words_per_sentence <= 18
    assert page.pronouns_per_100 <= 6


def test_the_commands_have_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_models(tmp_path)
    commands = [command.split() for exhibit in EXHIBITS for command in exhibit.commands]
    made = {words[1] for words in commands if words[0] != "show"}
    assert made <= {path.name for path in tmp_path.iterdir()}
    assert run_command("plan nested.sublet --html page.html") == 0
    assert run_command("check nested.pte") == 1
    assert run_command("plan missing.onnx") == 2
    assert run_command("check translation.json") == 0
    assert run_command("check snapshot_beside_plan.json") == 0
    judged = judge_plan_file(tmp_path / "translation.json")
    before, after = (region.lower_bound_bytes for region in judged.regions)
    # tests/integrations/paddle/test_memory.py has Paddle's own figure; a running iteration counts with its most bytes.
    assert before == pytest.approx(49_167_894, rel=0.03)
    assert after < 0.25 * before


def test_the_plan_of_tflm_needs_the_bytes_of_tflm(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    write_tflm_plan(tmp_path)
    raw = (tmp_path / "network.tflite").read_bytes()
    program = decode(raw, "network")
    plan = plan_memory(from_program(program), Options(alignment=ALIGNMENT))
    choice = select_offsets(raw, program, offsets_of_plan(program, plan))
    assert load(tmp_path / "tflm.json").arena_bytes == choice.without_plan.head
    assert plan.arena_bytes < 0.61 * choice.without_plan.head


def test_a_snapshot_recorded_on_a_gpu_takes_less_in_one_arena() -> None:
    """Two steps of a transformer by PyTorch 2.11 on an H100, of 100 and of 120 tokens."""
    [device] = read_snapshot(SNAPSHOT)
    assert not device.findings
    assert (device.reserved_bytes, device.allocated_bytes) == (98_566_144, 78_956_560)
    content = json.loads(snapshot_beside_plan(SNAPSHOT))
    ends = {each["region"]: 0 for each in content["tensors"]}
    for each in content["tensors"]:
        ends[each["region"]] = max(ends[each["region"]], each["offset"] + each["bytes"])
    own, planned = ends.values()
    assert planned < 1.001 * device.allocated_bytes
    assert own > 1.1 * planned

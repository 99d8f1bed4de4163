"""Files of an NPU's compiler: scratch tensors that a custom operator reads and no operator writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sublet.analysis.options import Options
from sublet.base.errors import ModelError
from sublet.checker import check
from sublet.integrations.tflite.offline_plan import offline_plan
from sublet.integrations.tflite.plan_offsets import offsets_of_plan
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import from_program
from sublet.planning.pipeline import plan_memory
from tests.integrations.tflite.written import G, O, T, tflite
from tests.support.command_line import Cli

VELA = Path(__file__).parents[4] / "shared" / "programs" / "tflm" / "person_detect_vela.tflite"


def npu_model() -> bytes:
    """Return a model of two NPU operators with one scratch tensor each, and a third tensor read by both."""
    tensors = [T((64,), "i8"), T((16,), "i8"), T((4,), "i8"), T((256,), "u8"), T((128,), "u8"), T((32,), "u8")]
    operators = [
        O("ethos-u", (3, 5, 0), (1,)),
        O("ethos-u", (4, 5, 1), (2,)),
    ]
    return tflite(G(tensors, operators, [0], [2]))


def test_scratch_is_memory_alive_for_its_operator() -> None:
    model = from_program(decode(npu_model(), "npu.tflite"))
    plan = plan_memory(model, Options(alignment=16))
    assert not check(model.graph, plan.schedule, plan)
    assert plan.arena_bytes == plan.lower_bound_bytes
    assert plan.arena_bytes < 64 + 16 + 4 + 256 + 128 + 32, "the scratch tensors of both operators share bytes"
    assert plan.arena_bytes >= 256 + 32 + 64 + 16


def test_an_ordinary_operator_may_not_read_an_unwritten_tensor() -> None:
    unwritten = tflite(G([T((4,)), T((4,))], [O("RELU", (1,), (0,))], [], [0]))
    with pytest.raises(ModelError, match="is read before a write"):
        from_program(decode(unwritten, "relu.tflite"))


def test_a_plan_with_scratch_is_exported_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file, out = Cli(monkeypatch, capsys), tmp_path / "npu.tflite", tmp_path / "planned.tflite"
    file.write_bytes(npu_model())
    status, said, _ = run("export", file, "--to", "tflm", "--out", out)
    assert status == 0
    assert "has no kernel for a custom operator" in said or "Install 'sublet[tflm]'" in said
    assert offline_plan(decode(out.read_bytes(), "planned.tflite")) is not None
    assert run("check", out)[0] == 0


@pytest.mark.skipif(not VELA.exists(), reason="the file of Vela lies beside the repository")
def test_the_file_of_vela_is_planned_at_its_bound() -> None:
    program = decode(VELA.read_bytes(), VELA.name)
    model = from_program(program)
    plan = plan_memory(model, Options(alignment=16))
    assert plan.arena_bytes == plan.lower_bound_bytes == 2 * 74464 + 9216 + 2
    assert len(offsets_of_plan(program, plan)[0]) == 6

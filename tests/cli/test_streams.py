"""The command line where a standard stream is closed, full, or read by somebody who leaves early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
import onnx
from onnx import TensorProto, helper

READER_LEFT, BAD_INPUT = 141, 2
RUN = f'"{sys.executable}" -m sublet'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path_factory.mktemp("streams") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def status(words: str, around: str) -> int:
    """Run the command line in a shell, and return its exit status. Its errors must be messages."""
    script = around.replace("SUBLET", f"{RUN} {words}")
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "Exception" not in ended.stderr, ended.stderr
    return ended.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors in a shell")
@pytest.mark.parametrize(
    ("words", "expected"),
    [("plan MODEL", 0), ("plan MODEL --json --budget 1B", 1), ("plan none.onnx --json", BAD_INPUT)],
)
def test_a_closed_stream_discards_the_answer_and_keeps_the_status(model: Path, words: str, expected: int) -> None:
    for around in ("SUBLET >&-", "SUBLET <&- >&- 2>&-")[: 1 + (expected == 1)]:
        assert status(words.replace("MODEL", str(model)), around) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="has no pipes that end a writer")
@pytest.mark.parametrize("words", ["plan MODEL", "plan MODEL --json --budget 1B", "plan --help", "--version"])
def test_a_reader_that_leaves_early_is_told_by_the_status(model: Path, words: str) -> None:
    around = "SUBLET | head -0; exit ${PIPESTATUS[0]}"
    assert status(words.replace("MODEL", str(model)), around) == READER_LEFT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
@pytest.mark.parametrize("words", ["plan MODEL", "plan MODEL --json", "--version"])
def test_an_answer_that_cannot_be_written_is_an_error(model: Path, words: str) -> None:
    assert status(words.replace("MODEL", str(model)), "SUBLET >/dev/full") == BAD_INPUT

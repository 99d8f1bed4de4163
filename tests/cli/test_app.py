"""Options of all commands: `--quiet`, `--verbose`, and completion in a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUBLET = (sys.executable, "-m", "sublet")
SWAP = """graph @net(%a: f32[64], %b: f32[64], %n: i64[]) {
  %f: f32[64], %g: f32[64] = while(%i: i64[]; %p: f32[64] = %a, %q: f32[64] = %b; ) @loop body @turn {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    %x: f32[64] = onnx.Relu(%p)
    next %q, %x;
  }
  return %f, %g
}
"""


def test_quiet_prints_the_first_line(tmp_path: Path) -> None:
    model = tmp_path / "net.sublet"
    model.write_text("graph @net(%x: f32[1,64]) {\n  %y: f32[1,64] = nn.relu(%x)\n  return %y\n}\n", encoding="utf-8")
    whole = subprocess.run([*SUBLET, "plan", str(model)], capture_output=True, text=True, check=True).stdout
    first = subprocess.run([*SUBLET, "--quiet", "plan", str(model)], capture_output=True, text=True, check=True).stdout
    assert first == whole.partition("\n")[0] + "\n"
    assert len(whole.splitlines()) > 5
    asked = [*SUBLET, "--quiet", "plan", str(model), "--budget", "16", "--json"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["verdict"] == "does_not_fit"


def test_verbose_prints_the_stages_with_times_beside_the_same_answer(tmp_path: Path) -> None:
    model = tmp_path / "net.sublet"
    model.write_text(SWAP, encoding="utf-8")
    plain = subprocess.run([*SUBLET, "plan", str(model)], capture_output=True, text=True, check=True)
    done = subprocess.run([*SUBLET, "--verbose", "plan", str(model)], capture_output=True, text=True, check=True)
    assert (done.stdout, plain.stderr) == (plain.stdout, "")
    lines = [re.fullmatch(r" *(\d+) ms  (.*)", line) for line in done.stderr.splitlines()]
    assert all(lines), done.stderr
    times = [int(line[1]) for line in lines if line]
    assert times == sorted(times)
    stages = "\n".join(line[2] for line in lines if line)
    for stage in ("read the model", "plan net: ", "live ranges: ", "packing by ", "plan by ", "check: valid; lower"):
        assert stage in stages


@pytest.mark.parametrize(("words", "expected"), [("sublet pl", "plan"), ("sublet plan --bud", "--budget")])
def test_a_shell_completes_commands_and_options(words: str, expected: str) -> None:
    environment = {**os.environ, "_SUBLET_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split()) - 1)
    program = "import sys; sys.argv[0] = 'sublet'; from sublet.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert expected in done.stdout.split()

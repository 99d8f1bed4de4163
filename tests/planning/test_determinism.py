"""Same input, same bytes out, whatever the hash seed of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def test_plans_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    files = []
    for seed in ("1", "4242"):
        out = tmp_path / f"{seed}.json"
        words = [sys.executable, "-m", "sublet", "plan", LIGHT / "light_inception_v1.onnx", "--streams", "2"]
        subprocess.run(
            [*words, "--out", out], check=True, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True
        )
        files.append(out.read_bytes())
    assert files[0] == files[1]

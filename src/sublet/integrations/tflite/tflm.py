"""Measurement of models in TensorFlow Lite Micro, in a separate process: needed memory and computed outputs."""

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
from sublet.base.optional_imports import is_installed, version_of

PACKAGE, MODULE, EXTRA = "tflite-micro", "tflite_micro", "tflm"
SCRIPT = Path(__file__).with_name("interpreter.py")
TIMEOUT_SECONDS = 300
CRASHED = "the process ended"


@dataclass(frozen=True, slots=True)
class Trial:
    """A file to run with random inputs in each run; `smallest` requests the smallest sufficient arena."""

    raw: bytes
    inputs: int
    outputs: int
    runs: int = 2
    seed: int = 0
    smallest: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial.

    refused   the reason TFLM cannot run the model; "" on success
    outputs   a hash of the outputs of all runs
    head      bytes of tensors and scratch memory
    total     bytes of `head` and of TFLM's records
    smallest  bytes of the smallest sufficient arena; 0 if not requested
    """

    refused: str = ""
    outputs: str = ""
    head: int = 0
    total: int = 0
    smallest: int = 0


def is_available() -> bool:
    """True if TFLM's package is installed."""
    return is_installed(MODULE)


def version() -> str:
    """Return the version of TFLM's package; "" if not installed."""
    return version_of(PACKAGE)


def run_trials(trials: Sequence[Trial]) -> list[TrialResult]:
    """Run all trials and return the results. Raises MissingExtraError without TFLM's package."""
    if not is_available():
        raise MissingExtraError(f"this needs the package {PACKAGE!r}: pip install 'sublet[{EXTRA}]'")
    results: list[TrialResult] = []
    while len(results) < len(trials):
        answers = _results_before_crash(trials[len(results) :])
        results += answers
        if len(results) < len(trials):
            results.append(TrialResult(refused=CRASHED))
    return results


def _results_before_crash(trials: Sequence[Trial]) -> list[TrialResult]:
    """Return the results up to the first trial that crashes the process."""
    with tempfile.TemporaryDirectory() as folder:
        requests = []
        for i, trial in enumerate(trials):
            (Path(folder) / f"{i}.tflite").write_bytes(trial.raw)
            options = {name: getattr(trial, name) for name in ("inputs", "outputs", "runs", "seed", "smallest")}
            requests.append({"file": f"{i}.tflite", **options})
        (Path(folder) / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
        command = [sys.executable, str(SCRIPT), folder]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS, check=False
            )
        answers = Path(folder) / "answers.txt"
        lines = answers.read_text(encoding="utf-8").splitlines() if answers.exists() else []
    fields = TrialResult.__dataclass_fields__
    return [TrialResult(**{k: v for k, v in json.loads(line).items() if k in fields}) for line in lines]

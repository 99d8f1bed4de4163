"""Differential run: execute two programs in Paddle, in separate processes, and compare results and memory.

Sublet may run under a different Python. The Python with Paddle is an argument, else the environment variable
SUBLET_PADDLE_PYTHON, else the current Python if paddle is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from sublet.base.errors import MissingExtraError, RunError
from sublet.base.optional_imports import is_installed

PYTHON = "SUBLET_PADDLE_PYTHON"
RUNNER = Path(__file__).with_name("runner.py")
Feed = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Training:
    """A training run: startup program, feeds, fetched variables, and number of steps.

    feeds    the feeds of the steps in order; the list repeats
    lods     the offsets of sequences by name, for each step
    first    the number of the first step, for a restored training
    save     the prefix of a checkpoint for Paddle to write; "" for none
    restore  the prefix of a checkpoint for Paddle to read; "" for none
    flags    Paddle's own flags, as environment variables
    """

    startup: bytes | None
    feeds: Sequence[Feed]
    fetch: Sequence[str]
    steps: int = 3
    lods: Sequence[Mapping[str, Sequence[int]]] = ()
    first: int = 0
    save: str = ""
    restore: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Result of a training run.

    version  the version of Paddle
    fetched  the fetched numbers as hex floats, by [step][name]
    peaks    the peak bytes of Paddle's allocator in each step, above the bytes before; 0 if Paddle does not count
    state    the hashes of all persistable tensors at the end
    """

    version: str
    fetched: tuple[tuple[tuple[str, ...], ...], ...]
    peaks: tuple[int, ...]
    state: Mapping[str, str]

    @property
    def peak(self) -> int:
        """The median of the peaks: single steps vary, because Paddle frees on a separate thread."""
        return median_low(self.peaks) if self.peaks else 0


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """Comparison of two runs. `differences` describes each difference in words, and is empty if every bit is equal."""

    original: TrainingOutcome
    rewritten: TrainingOutcome
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True if every bit is equal."""
        return not self.differences


def find_paddle_python(python: str | None = None) -> str:
    """Return the path of the Python with Paddle. Raises MissingExtraError if unknown."""
    path = python or os.environ.get(PYTHON) or (sys.executable if is_installed("paddle") else "")
    if not path:
        raise MissingExtraError(
            f"this needs the package 'paddlepaddle': pip install paddlepaddle==3.0.0, here or in another environment "
            f"whose Python you name in {PYTHON}"
        )
    return path


def run_in_paddle(program: bytes, training: Training, python: str | None = None) -> TrainingOutcome:
    """Run a program in Paddle. Raises RunError with the last lines of Paddle's output if the run fails."""
    chosen = find_paddle_python(python)
    with TemporaryDirectory(prefix="sublet-paddle-") as folder:
        _write_request(Path(folder), program, training)
        environment = {**os.environ, "FLAGS_enable_pir_api": "0", "GLOG_minloglevel": "2", **training.flags}
        try:
            process = subprocess.run(
                [chosen, str(RUNNER), folder], env=environment, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise RunError(
                f"{PYTHON}: cannot start {chosen!r}: {error.strerror} (name a Python that has Paddle)"
            ) from error
        answer = Path(folder, "answer.json")
        if process.returncode or not answer.exists():
            stderr = "\n  ".join(process.stderr.strip().splitlines()[-8:]) or "nothing"
            raise RunError(
                f"{chosen}: the program did not run in Paddle (exit {process.returncode}); Paddle said:\n  {stderr}"
            )
        results = json.loads(answer.read_text(encoding="utf-8"))
    fetched = tuple(tuple(tuple(numbers) for numbers in step) for step in results["fetched"])
    return TrainingOutcome(results["version"], fetched, tuple(results["peaks"]), results["state"])


def compare_outcomes(original: TrainingOutcome, rewritten: TrainingOutcome, fetch: Sequence[str]) -> TrainingComparison:
    """Return the differences: fetched values by step, then the persistable tensors of the original at the end."""
    differences = []
    if len(original.fetched) != len(rewritten.fetched):
        differences.append(f"{len(original.fetched)} and {len(rewritten.fetched)} steps")
    for step, (before, after) in enumerate(zip(original.fetched, rewritten.fetched, strict=False)):
        for name, one, other in zip(fetch, before, after, strict=True):
            if one != other:
                at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
                difference = f"{len(one)} and {len(other)} numbers" if at is None else f"{one[at]} became {other[at]}"
                differences.append(f"step {step}, {name}: {difference}")
    for name in sorted(original.state):  # only names of the original: a lasting arena is persistable too
        if original.state[name] != rewritten.state.get(name):
            differences.append(f"{name} has other bytes at the end")
    return TrainingComparison(original, rewritten, tuple(differences))


def verify(original: bytes, rewritten: bytes, training: Training, given: str | None = None) -> TrainingComparison:
    """Run both programs in Paddle on the same feeds with the same seed, and compare every bit."""
    return compare_outcomes(
        run_in_paddle(original, training, given), run_in_paddle(rewritten, training, given), training.fetch
    )


def _write_request(folder: Path, program: bytes, training: Training) -> None:
    """Write the request and its files into the folder."""
    (folder / "program.pb").write_bytes(program)
    if training.startup is not None:
        (folder / "startup.pb").write_bytes(training.startup)
    arrays = {f"{name}.{run}": array for run, feed in enumerate(training.feeds) for name, array in feed.items()}
    arrays |= {
        f"{name}.{run}.lod": np.array(lod) for run, lods in enumerate(training.lods) for name, lod in lods.items()
    }
    savez: Any = np.savez  # the stub does not accept computed keyword names
    savez(folder / "feeds.npz", **arrays)
    request = {"fetch": [*training.fetch], "steps": training.steps, "first": training.first}
    request |= {"save": training.save, "restore": training.restore}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")

"""Runs programs in Paddle, in a process of its own, and compares what two of them compute and hold.

The Python that has Paddle need not be the one that runs Sublet: it is told by an argument, or by the environment
variable SUBLET_PADDLE_PYTHON, or it is this one where paddle is installed.
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
from sublet.base.extras import installed

PYTHON = "SUBLET_PADDLE_PYTHON"
RUNNER = Path(__file__).with_name("runner.py")
Feed = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Training:
    """What is run beside the program: its startup program, the feeds of one run after another (then again from the
    first), what is fetched, and how many steps.

    `lods` are the offsets of sequences, by name, for each run. `save` and `restore` are prefixes of checkpoints, which
    Paddle writes and reads; `first` is the step that a restored training goes on with. `flags` are Paddle's own.
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
class Outcome:
    """What a run gave.

    `fetched[step][name]` are the fetched numbers as hex floats, `peaks` the highest bytes that Paddle's allocator held
    in each step above those before it (none where that Paddle does not count), `state` the hashes of all persistable
    tensors at the end.
    """

    version: str
    fetched: tuple[tuple[tuple[str, ...], ...], ...]
    peaks: tuple[int, ...]
    state: Mapping[str, str]

    @property
    def peak(self) -> int:
        """The middle of all steps: Paddle frees on a thread of its own, so that single steps hold more or less."""
        return median_low(self.peaks) if self.peaks else 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other. `differences` says in words what is not the same; empty if every bit is."""

    original: Outcome
    rewritten: Outcome
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def python(given: str | None = None) -> str:
    """The Python that has Paddle. Raises MissingExtraError where there is none."""
    found = given or os.environ.get(PYTHON) or (sys.executable if installed("paddle") else "")
    if not found:
        raise MissingExtraError(
            f"this needs the package 'paddlepaddle': pip install paddlepaddle==3.0.0, here or in another environment "
            f"whose Python you name in {PYTHON}"
        )
    return found


def run(program: bytes, training: Training, given: str | None = None) -> Outcome:
    """Run a program in Paddle. Raises RunError with the end of what Paddle said where it fails."""
    chosen = python(given)
    with TemporaryDirectory(prefix="sublet-paddle-") as folder:
        _request(Path(folder), program, training)
        environment = {**os.environ, "FLAGS_enable_pir_api": "0", "GLOG_minloglevel": "2", **training.flags}
        try:
            done = subprocess.run(
                [chosen, str(RUNNER), folder], env=environment, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise RunError(
                f"{PYTHON}: cannot start {chosen!r}: {error.strerror} (name a Python that has Paddle)"
            ) from error
        answer = Path(folder, "answer.json")
        if done.returncode or not answer.exists():
            said = "\n  ".join(done.stderr.strip().splitlines()[-8:]) or "nothing"
            raise RunError(
                f"{chosen}: the program did not run in Paddle (exit {done.returncode}); Paddle said:\n  {said}"
            )
        told = json.loads(answer.read_text(encoding="utf-8"))
    fetched = tuple(tuple(tuple(numbers) for numbers in step) for step in told["fetched"])
    return Outcome(told["version"], fetched, tuple(told["peaks"]), told["state"])


def compare(original: Outcome, rewritten: Outcome, fetch: Sequence[str]) -> Comparison:
    """What differs: fetched values by step, then the original's persistable tensors at the end."""
    found = []
    if len(original.fetched) != len(rewritten.fetched):
        found.append(f"{len(original.fetched)} and {len(rewritten.fetched)} steps")
    for step, (before, after) in enumerate(zip(original.fetched, rewritten.fetched, strict=False)):
        for name, one, other in zip(fetch, before, after, strict=True):
            if one != other:
                at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
                seen = f"{len(one)} and {len(other)} numbers" if at is None else f"{one[at]} became {other[at]}"
                found.append(f"step {step}, {name}: {seen}")
    for name in sorted(original.state):  # a lasting arena persists too
        if original.state[name] != rewritten.state.get(name):
            found.append(f"{name} holds other bytes at the end")
    return Comparison(original, rewritten, tuple(found))


def verify(original: bytes, rewritten: bytes, training: Training, given: str | None = None) -> Comparison:
    """Run both programs in Paddle on the same feeds from the same seed, and compare every bit."""
    return compare(run(original, training, given), run(rewritten, training, given), training.fetch)


def _request(folder: Path, program: bytes, training: Training) -> None:
    (folder / "program.pb").write_bytes(program)
    if training.startup is not None:
        (folder / "startup.pb").write_bytes(training.startup)
    arrays = {f"{name}.{run}": array for run, feed in enumerate(training.feeds) for name, array in feed.items()}
    arrays |= {
        f"{name}.{run}.lod": np.array(lod) for run, lods in enumerate(training.lods) for name, lod in lods.items()
    }
    savez: Any = np.savez  # its stub takes no names that are not known beforehand
    savez(folder / "feeds.npz", **arrays)
    request = {"fetch": [*training.fetch], "steps": training.steps, "first": training.first}
    request |= {"save": training.save, "restore": training.restore}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")

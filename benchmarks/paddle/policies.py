"""Policies side by side on training programs that Paddle writes and runs: bytes predicted, bound, measured, and whether
every bit is the same.

    SUBLET_PADDLE_PYTHON=PATH make bench-paddle    (or: python -m benchmarks.paddle.policies [--only NAME] [--steps 5])

PATH is the Python of an environment with paddlepaddle 3.0.0 (2.6 can, too). Measured is what Paddle's allocator holds
above what is there before a step, at its highest: in the first step, which runs in the order of the program, and in
the middle of the others, which the executor orders as it likes. Feeds are in the first step's figure only.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

from sublet.errors import SubletError
from sublet.frontends.paddle.format.decoding import decode
from sublet.frontends.paddle.format.encoding import encode
from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.shapes import bound
from sublet.frontends.paddle.peaks.memory import Memory, SizesOfRenamed, memory, memory_of
from sublet.frontends.paddle.policies.levels import transpiled
from sublet.frontends.paddle.policies.ours import ours
from sublet.frontends.paddle.policies.seed import seed
from sublet.frontends.paddle.running.verify import Outcome, Training, compare, python, run

WRITER = Path(__file__).with_name("programs.py")
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "translation, 30 and 30 words": ("translation",),
    "translation, 40 and 50 words": ("translation", "--source", "40", "--target", "50"),
    "branch": ("branch", "--batch", "64", "--width", "256"),
    "transformer, 4 layers": ("transformer",),
    "ResNet-50, batch 4": ("resnet", "--batch", "4"),
}


@dataclass(frozen=True)
class Case:
    program: Program
    training: Training

    @property
    def keep(self) -> frozenset[Place]:
        return frozenset(Place(0, name) for name in self.training.fetch)


def written(arguments: tuple[str, ...], steps: int) -> Case:
    """A program that Paddle writes for these arguments, and how it is run."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [python(), str(WRITER), arguments[0], name, *arguments[1:]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        loss = json.loads((folder / "about.json").read_text())["loss"]
        feeds: dict[int, dict[str, np.ndarray]] = {}
        with np.load(folder / "feeds.npz") as arrays:
            for key in arrays.files:
                feed, _, step = key.rpartition(".")
                feeds.setdefault(int(step), {})[feed] = arrays[key]
        program = decode((folder / "program.pb").read_bytes(), arguments[0])
        startup = (folder / "startup.pb").read_bytes()
    return Case(program, Training(startup, [feeds[step] for step in sorted(feeds)], [loss], steps))


Made = tuple[Program, Memory]


def renamed(case: Case, changed: Program) -> Made:
    """A program in which names are exchanged, and what it holds: the same values in the same order."""
    return changed, memory_of(changed, SizesOfRenamed(bound(case.program), changed), case.keep)


def own(case: Case) -> Made:
    changed = ours(case.program, case.training.fetch)
    return changed, memory(bound(changed), case.keep)


POLICIES: Mapping[str, Callable[[Case], Made]] = {
    "as written": lambda case: (case.program, memory(bound(case.program), case.keep)),
    "seed": lambda case: renamed(case, seed(case.program, bound(case.program), case.keep).finished()),
    "level 0": lambda case: renamed(case, transpiled(case.program, 0, case.training.fetch).finished()),
    "level 1": lambda case: renamed(case, transpiled(case.program, 1, case.training.fetch).finished()),
    "Sublet": own,
}


def line(case: Case, policy: str, original: Outcome | None) -> tuple[list[str], Outcome | None]:
    """A line of the table, and what the program computed; a program that Paddle does not run has an empty one."""
    program, predicted = POLICIES[policy](case)
    held = [f"{predicted.collected.peak:,}", f"{predicted.bound:,}"]
    try:
        found = run(encode(program), case.training)
    except SubletError as error:
        return [policy, *held, "", "", f"does not run: {str(error).splitlines()[-1].strip()[:60]}"], None
    others = f"{median_low(found.peaks[1:]):,}" if found.peaks[1:] else ""
    told = "" if original is None else verdict(original, found, case)
    return [policy, *held, f"{found.peaks[0]:,}", others, told], found


def verdict(original: Outcome, found: Outcome, case: Case) -> str:
    differences = compare(original, found, case.training.fetch).differences
    return "every bit" if not differences else differences[0].partition(", ")[0] + " differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    console, paddle = Console(width=132), ""
    for name in (name for name in PROGRAMS if given.only in name):
        case, original = written(PROGRAMS[name], given.steps), None
        table = Table("policy", title=f"{name}: bytes beyond weights", title_justify="left")
        for head in ("predicted", "bound", "first step", "other steps"):
            table.add_column(head, justify="right")
        table.add_column("equal")
        for policy in POLICIES:
            cells, found = line(case, policy, original)
            original, paddle = original or found, found.version if found else paddle
            table.add_row(*cells)
        console.print(table)
    cores = f"{platform.machine()}, {platform.system()} {platform.release()}"
    console.print(f"paddlepaddle {paddle}, sublet {version('sublet')}, {cores}, {given.steps} steps each")


if __name__ == "__main__":
    main()

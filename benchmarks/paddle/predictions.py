"""Bytes predicted and bytes measured, with the scratch memory of kernels apart: five programs, in three forms each.

    SUBLET_PADDLE_PYTHON=PATH python -m benchmarks.paddle.predictions [--only NAME] [--steps 8]

PATH is the Python of an environment with paddlepaddle 3.0.0. Predicted is what Sublet says without Paddle. Scratch is
what kernels were seen to hold for themselves, each operator run alone (`scratch.py`): so much higher the prediction is
with it. Measured is the middle of all steps but the first, in the order of the program.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.paddle.policies import PROGRAMS, Case, written
from sublet.frontends.paddle.arena import arena
from sublet.frontends.paddle.format.encoding import encode
from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.operators.shapes import bound
from sublet.frontends.paddle.peaks.execution import Executed
from sublet.frontends.paddle.peaks.memory import SizesInArena, SizesOf, memory_of
from sublet.frontends.paddle.policies.ours import PASSES, ours
from sublet.frontends.paddle.running.verify import python, run
from sublet.frontends.paddle.transpile import SHARING

SCRATCH = Path(__file__).with_name("scratch.py")
IN_ORDER = {"FLAGS_new_executor_sequential_run": "1"}
Made = tuple[Program, SizesOf]


def as_written(case: Case) -> Made:
    return case.program, SizesOf(bound(case.program))


def own(case: Case) -> Made:
    changed = ours(case.program, case.training.fetch)
    return changed, SizesOf(bound(changed))


def in_arena(case: Case) -> Made:
    program = case.program
    for name, change in PASSES.items():
        program = program if name in SHARING else change(program, case.training.fetch)
    form = arena(program, bound(program), case.training.fetch)
    return form.program, SizesInArena(bound(form.program), frozenset(form.places))


FORMS: Mapping[str, Callable[[Case], Made]] = {"as written": as_written, "Sublet": own, "Sublet, arena": in_arena}


def scratch(program: bytes) -> dict[tuple[int, int], int]:
    """By (block, operator), the scratch memory that its kernel was seen to hold."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "program.pb")
        path.write_bytes(program)
        command = [python(), str(SCRATCH), str(path)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return {(block, op): nbytes for block, op, nbytes in json.loads(told.splitlines()[-1])}


def lines(case: Case) -> Iterator[tuple[str, Executed, int]]:
    """Each form: what is predicted, and the peak that was measured."""
    for form, make in FORMS.items():
        program, sizes = make(case)
        raw = encode(program)
        predicted = memory_of(program, sizes, case.keep, scratch=scratch(raw)).collected
        peaks = run(raw, replace(case.training, flags=IN_ORDER)).peaks
        yield form, predicted, median_low(peaks[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    console = Console(width=132)
    for name in (name for name in PROGRAMS if given.only in name):
        table = Table("form", title=name, title_justify="left")
        for head in ("predicted", "scratch", "both", "measured", "measured beyond both"):
            table.add_column(head, justify="right")
        for form, predicted, measured in lines(written(PROGRAMS[name], given.steps)):
            figures = predicted.peak, predicted.with_scratch - predicted.peak, predicted.with_scratch, measured
            off = 100 * (measured / predicted.with_scratch - 1)
            table.add_row(form, *(f"{figure:,}" for figure in figures), f"{off:+.2f} %")
        console.print(table)


if __name__ == "__main__":
    main()

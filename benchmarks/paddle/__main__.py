"""One table of policies for programs of Paddle's: bytes predicted, bound, measured, and whether every bit is the same.

    SUBLET_PADDLE_PYTHON=PATH make bench-paddle    (or: python -m benchmarks.paddle [--only NAME] [--steps 7])

PATH is the Python of an environment with paddlepaddle 3.0.0. All bytes are beyond weights and feeds, those of kernels'
scratch apart, which is what each operator was seen to hold for itself when it ran alone (`scratch.py`). Programs run
twice: in the order they are written (FLAGS_new_executor_sequential_run=1), as is predicted, and as the executor orders
operators by itself; arenas are for the former only. Measured is all steps but the first: in order the least of those
with the same feeds, for Paddle frees on a thread of its own, which comes late on a busy machine; else their middle. Of
several feeds (which choose arms of branches) it is those that need most.

Where SUBLET_PADDLE_1_PYTHON names a Python with 1.8.5, the program of Paddle's book is run in it (`book.py`). Last is a
predictor with and without an arena (`predictor.py`), where its model is there or can be downloaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from benchmarks.models.wheels import ModelsUnavailableError
from benchmarks.paddle import book, measured, predictor
from benchmarks.paddle.measured import Row
from benchmarks.paddle.policies import PROGRAMS, written

BOOK_PYTHON = "SUBLET_PADDLE_1_PYTHON"
PREDICTOR = "PP-OCRv4 detection, 1x3x640x640"


def programs(steps: int) -> Mapping[str, Callable[[], Iterator[Row]]]:
    """By name, how to find the rows of each program."""
    found: dict[str, Callable[[], Iterator[Row]]] = {
        name: lambda arguments=arguments: measured.rows(written(arguments, steps))  # type: ignore[misc]
        for name, arguments in PROGRAMS.items()
    }
    if os.environ.get(BOOK_PYTHON):
        found["book, translation (1.8.5)"] = lambda: book.rows(os.environ[BOOK_PYTHON], 2 * book.RUNS)
    return found


def table(steps: int, only: str) -> Table:
    made = Table("program", "policy", title="bytes beyond weights and feeds", title_justify="left")
    for head in ("predicted", "bound", "scratch", "in order", "beyond both", "any order", "equal"):
        made.add_column(head, justify="right")
    for name, rows in programs(steps).items():
        if only in name:
            for i, row in enumerate(rows()):
                print(name, *row.cells(), sep=" | ", file=sys.stderr)
                made.add_row("" if i else name, *row.cells())
            made.add_section()
    return made


def held(console: Console) -> None:
    """What a predictor holds between runs."""
    try:
        rows = list(predictor.rows())
    except ModelsUnavailableError as error:
        console.print(f"{PREDICTOR}: not run: {error}")
        return
    made = Table(PREDICTOR, title="bytes that a predictor holds between runs, weights among them", title_justify="left")
    for head in ("held", "arena", "bound", "outputs"):
        made.add_column(head, justify="right")
    for row in rows:
        made.add_row(*row)
    console.print(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--steps", type=int, default=7)
    given = parser.parse_args()
    console = Console(width=150)
    console.print(table(given.steps, given.only))
    if given.only in PREDICTOR:
        held(console)
    cores = f"{platform.machine()}, {platform.system()} {platform.release()}"
    console.print(f"sublet {version('sublet')}, {cores}, {given.steps} steps each")


if __name__ == "__main__":
    main()

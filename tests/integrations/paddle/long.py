"""Trainings of full size in Paddle, as written and as rewritten: every loss and, at the end, every weight, bit by bit.

    SUBLET_PADDLE_PYTHON=PATH python -m tests.integrations.paddle.long [--python PATH ...] [--only NAME]

For 50 steps each program runs with shared names, and in an arena that is full of NaN before every step; the translation
runs in every Python that is named beside, and for 500 steps with a checkpoint that Paddle saves and restores in the
middle. A few minutes each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.paddle.measured import IN_ORDER
from benchmarks.paddle.policies import PROGRAMS, Case, arena_form, written
from sublet.integrations.paddle.format.encoding import encode_program
from sublet.integrations.paddle.policies import apply_own_policy
from sublet.integrations.paddle.running.verify import TrainingComparison, compare_outcomes, run_in_paddle, verify

STEPS, LONG = 50, 500
TRANSLATION, *OTHERS = [name for name in PROGRAMS if "40" not in name]


def small(case: Case) -> bytes:
    return encode_program(apply_own_policy(case.program, case.training.fetch))


def shared(name: str, python: str | None = None) -> TrainingComparison:
    """With names that tensors share."""
    case = written(PROGRAMS[name], STEPS)
    return verify(encode_program(case.program), small(case), case.training, python)


def poisoned(name: str) -> TrainingComparison:
    """In an arena."""
    case = written(PROGRAMS[name], STEPS)
    form = arena_form(case, poisoned=True)
    return verify(encode_program(case.program), encode_program(form.program), replace(case.training, flags=IN_ORDER))


def resumed() -> TrainingComparison:
    """The whole training as written, beside two halves as rewritten with a checkpoint between them."""
    case = written(PROGRAMS[TRANSLATION], LONG)
    with TemporaryDirectory() as folder:
        middle = str(Path(folder, "middle"))
        halves = replace(case.training, steps=LONG // 2)
        first = run_in_paddle(small(case), replace(halves, save=middle))
        second = run_in_paddle(small(case), replace(halves, first=LONG // 2, restore=middle))
    whole = run_in_paddle(encode_program(case.program), case.training)
    both = replace(second, fetched=first.fetched + second.fetched, peaks=first.peaks + second.peaks)
    return compare_outcomes(whole, both, case.training.fetch)


def cases(pythons: list[str]) -> Iterator[tuple[str, Callable[[], TrainingComparison]]]:
    """By name, what is run."""
    for name in (TRANSLATION, *OTHERS):
        yield f"{name}, {STEPS} steps", lambda name=name: shared(name)  # type: ignore[misc]
        yield f"{name}, {STEPS} steps in an arena", lambda name=name: poisoned(name)  # type: ignore[misc]
    for python in pythons:
        yield f"{TRANSLATION}, {STEPS} steps, {python}", lambda python=python: shared(TRANSLATION, python)  # type: ignore[misc]
    yield f"{TRANSLATION}, {LONG} steps, a checkpoint in the middle", resumed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="another Python with Paddle")
    parser.add_argument("--only", default="", help="what has this in its name")
    given = parser.parse_args()
    wrong = 0
    for name, made in cases(given.python):
        if given.only not in name:
            continue
        found = made()
        wrong += not found.equal
        told = "equal" if found.equal else f"DIFFERS: {found.differences[0]}"
        steps, tensors = len(found.rewritten.fetched), len(found.rewritten.state)
        peaks = [f"{max(each.peaks):,}" if each.peaks else "?" for each in (found.original, found.rewritten)]
        print(f"{name} | Paddle {found.rewritten.version} | {steps} losses, {tensors} tensors | {told}", end=" | ")
        print(f"at most {' became '.join(peaks)} bytes", flush=True)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

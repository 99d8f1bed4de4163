"""What a program holds in Paddle under each policy, beside what was predicted: rows of a table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

from benchmarks.paddle.policies import ARENA, AS_WRITTEN, POLICIES, Case
from sublet.base.errors import SubletError
from sublet.integrations.paddle.format.encoding import encode_program
from sublet.integrations.paddle.peaks.memory import BytesOfRenamed, predict_memory_of
from sublet.integrations.paddle.running.verify import (
    TrainingOutcome,
    compare_outcomes,
    find_paddle_python,
    run_in_paddle,
)

SCRATCH = Path(__file__).with_name("scratch.py")
IN_ORDER = {"FLAGS_new_executor_sequential_run": "1"}


@dataclass(frozen=True)
class Row:
    """A policy: `with_scratch` is what is predicted when kernels hold what they were seen to hold for themselves."""

    policy: str
    predicted: int
    bound: int
    with_scratch: int
    in_order: int
    any_order: int | None
    told: str

    def cells(self) -> tuple[str, ...]:
        figures = (self.predicted, self.bound, self.with_scratch - self.predicted, self.in_order)
        beyond = f"{100 * (self.in_order / self.with_scratch - 1):+.2f} %" if self.in_order else ""
        orderless = "" if self.any_order is None else f"{self.any_order:,}"
        return (self.policy, *(f"{figure:,}" for figure in figures), beyond, orderless, self.told)


def rows(case: Case) -> Iterator[Row]:
    """A row for each policy, the program as it was written first."""
    ordered = replace(case, training=replace(case.training, flags=IN_ORDER))
    originals: list[TrainingOutcome] = []
    kernels, least = scratch(encode_program(case.program)), 0
    for policy, make in POLICIES.items():
        program, sizes = make(case)
        raw = encode_program(program)
        exchanged = policy == AS_WRITTEN or isinstance(sizes, BytesOfRenamed)  # then the operators are the same
        memory = predict_memory_of(program, sizes, case.keep, scratch=kernels if exchanged else scratch(raw))
        least = least if exchanged and policy != AS_WRITTEN else memory.bound
        figures = memory.collected.peak, least, memory.collected.with_scratch
        orders = [ordered] if policy == ARENA else [ordered, case]
        try:
            found = [run_in_paddle(raw, each.training) for each in orders]
        except SubletError as error:
            yield Row(policy, *figures, 0, None, f"does not run: {str(error).splitlines()[-1].strip()[:40]}")
            continue
        originals = originals or found
        several = len(case.training.feeds)
        peaks = [peak(each.peaks, several, of) for each, of in zip(found, (min, median_low), strict=False)]
        told = "" if policy == AS_WRITTEN else verdict(originals, found, case)
        yield Row(policy, *figures, peaks[0], peaks[1] if peaks[1:] else None, told)


def peak(peaks: Sequence[int], feeds: int, of: Callable[[Sequence[int]], int]) -> int:
    """What a program holds with those feeds with which it holds most, of all steps with them but the first.

    Feeds decide which arm of a branch is run, and what is predicted is of the arm that needs most.
    """
    return max(of(peaks[first::feeds]) for first in range(1, 1 + feeds))


def verdict(originals: list[TrainingOutcome], found: list[TrainingOutcome], case: Case) -> str:
    for original, other in zip(originals, found, strict=False):
        differences = compare_outcomes(original, other, case.training.fetch).differences
        if differences:
            return differences[0].partition(", ")[0] + " differs"
    return "every bit"


def scratch(program: bytes) -> dict[tuple[int, int], int]:
    """By (block, operator), the scratch memory that its kernel was seen to hold."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "program.pb")
        path.write_bytes(program)
        command = [find_paddle_python(), str(SCRATCH), str(path)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return {(block, op): nbytes for block, op, nbytes in json.loads(told.splitlines()[-1])}

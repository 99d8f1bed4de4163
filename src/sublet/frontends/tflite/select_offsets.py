"""Selection of the plan offsets to pass to TensorFlow Lite Micro (TFLM): the subset with the lowest measured need.

TFLM places the scratch memory of kernels around the passed offsets. Where a plan leaves no room for scratch memory,
fewer offsets may be better, or no offset. TFLM's interpreter measures each subset. The selected file needs no more
memory than TFLM's own plan, and computes the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.frontends.tflite.offline_plan import Offsets, encode_offsets
from sublet.frontends.tflite.program import TFLiteProgram
from sublet.frontends.tflite.tflm import Trial, TrialResult, run_trials
from sublet.frontends.tflite.write_metadata import with_offline_plan

RUNS_PER_TRIAL = 8
MAX_ROUNDS = 6
MAX_OFFSETS_TRIED = 64
"""The number of offsets tried for removal per round; offsets of most tensors first."""


@dataclass(frozen=True)
class OffsetSelection:
    """The selected file, and the measured memory with and without Sublet's plan.

    raw             the file to write
    offsets         the selected offsets; None for TFLM's own plan
    how             "all" offsets of the plan, "some" (without harmful offsets), or "none" (TFLM's own plan is no worse)
    without_plan    the measurement with TFLM's own plan
    with_plan       the measurement of the selected file
    """

    raw: bytes
    offsets: Offsets | None
    how: str
    without_plan: TrialResult
    with_plan: TrialResult


def select_offsets(raw: bytes, program: TFLiteProgram, offsets: Offsets) -> OffsetSelection:
    """Return the best subset of `offsets` for a file.

    Raises PlanError when TFLM cannot run the model, or computes different outputs with the plan.
    """
    main = program.subgraphs[0]
    bare = with_offline_plan(raw, program.where, None)

    def file_with(choice: Offsets) -> bytes:
        return with_offline_plan(raw, program.where, encode_offsets(choice))

    def measure(raws: Sequence[bytes], smallest: bool = False) -> list[TrialResult]:
        return run_trials(
            [Trial(raw, len(main.inputs), len(main.outputs), RUNS_PER_TRIAL, smallest=smallest) for raw in raws]
        )

    unplanned, planned = measure([bare, file_with(offsets)], smallest=True)
    if unplanned.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro cannot run this model: {unplanned.refused}")
    _require_same_outputs(program, unplanned, planned)
    best, how = offsets, "all"
    fewer = _drop_harmful_offsets(offsets, planned, lambda choices: measure([file_with(choice) for choice in choices]))
    if fewer != offsets:
        (other,) = measure([file_with(fewer)], smallest=True)
        _require_same_outputs(program, unplanned, other)
        if _bytes_needed(other) < _bytes_needed(planned):
            best, how, planned = fewer, "some", other
    if _is_no_better(planned, unplanned):
        return OffsetSelection(bare, None, "none", unplanned, unplanned)
    return OffsetSelection(file_with(best), best, how, unplanned, planned)


def _require_same_outputs(program: TFLiteProgram, unplanned: TrialResult, planned: TrialResult) -> None:
    """Raise PlanError if TFLM refuses the planned file or computes different outputs."""
    if planned.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro refuses the model with this plan: {planned.refused}")
    if planned.outputs != unplanned.outputs:
        raise PlanError(
            f"{program.where}: with this plan TensorFlow Lite Micro computes other outputs: no file is written"
        )


def _bytes_needed(measured: TrialResult) -> tuple[int, int]:
    """Return the bytes needed by a measured file: of the arena in total, and of the smallest arena."""
    return measured.total, measured.smallest


def _is_no_better(planned: TrialResult, unplanned: TrialResult) -> bool:
    """True if a plan needs more than TFLM's own plan, or equally much in both measures."""
    return (
        planned.total > unplanned.total
        or planned.smallest > unplanned.smallest
        or _bytes_needed(planned) == _bytes_needed(unplanned)
    )


def _drop_harmful_offsets(
    offsets: Offsets, current: TrialResult, measure: Callable[[Sequence[Offsets]], list[TrialResult]]
) -> Offsets:
    """Drop offsets greedily, at most `MAX_ROUNDS` times, while a drop reduces the total bytes of TFLM."""
    best, fewest_bytes = offsets, current.total
    for _ in range(MAX_ROUNDS):
        choices = [_without_offset(best, at) for at in _distinct_offsets(best)]
        if not choices:
            break
        needs = [
            result.total if not result.refused and result.outputs == current.outputs else fewest_bytes
            for result in measure(choices)
        ]
        at = min(range(len(needs)), key=lambda i: needs[i])
        if needs[at] >= fewest_bytes:
            break
        best, fewest_bytes = choices[at], needs[at]
    return best


def _distinct_offsets(offsets: Offsets) -> list[int]:
    """Return the distinct offsets passed to TFLM, most frequent first, at most `MAX_OFFSETS_TRIED`."""
    passed = [offset for subgraph in offsets for offset in subgraph if offset is not None]
    return sorted(set(passed), key=lambda offset: (-passed.count(offset), offset))[:MAX_OFFSETS_TRIED]


def _without_offset(offsets: Offsets, at: int) -> Offsets:
    """Return the offsets without the tensors at offset `at`."""
    return tuple(tuple(None if offset == at else offset for offset in subgraph) for subgraph in offsets)

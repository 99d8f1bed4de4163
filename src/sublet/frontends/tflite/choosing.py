"""Which offsets of a plan TensorFlow Lite Micro is told: as many as make it need least, by its own account.

TFLM places the scratch memory of its kernels around the offsets it is told. Where a plan leaves no room for it, fewer
offsets may be better, or none. Each choice is tried in its interpreter; what is handed out needs no more than TFLM's
own plan does, and computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.frontends.tflite.offline import Offsets, encoded
from sublet.frontends.tflite.patched import with_metadata
from sublet.frontends.tflite.program import Program
from sublet.frontends.tflite.tflm import Measured, Trial, tried

RUNS = 8
ROUNDS = 6
MOST_GROUPS = 64
"""Sets of tensors at one place that are left out in turn; the largest."""


@dataclass(frozen=True)
class Choice:
    """What is written, and what it needs beside TFLM's own plan.

    how   "all": every offset of the plan, "some": without those in the way, "none": TFLM's own plan is no worse
    """

    raw: bytes
    offsets: Offsets | None
    how: str
    own: Measured
    ours: Measured


def chosen(raw: bytes, program: Program, offsets: Offsets) -> Choice:
    """The best choice for a file. Raises PlanError when TFLM cannot run it, or computes something else then."""
    main = program.subgraphs[0]
    bare = with_metadata(raw, program.where, None)

    def planned(choice: Offsets) -> bytes:
        return with_metadata(raw, program.where, encoded(choice))

    def measure(raws: Sequence[bytes], smallest: bool = False) -> list[Measured]:
        return tried([Trial(each, len(main.inputs), len(main.outputs), RUNS, smallest=smallest) for each in raws])

    own, ours = measure([bare, planned(offsets)], smallest=True)
    if own.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro cannot run this model: {own.refused}")
    _require_same(program, own, ours)
    best, how = offsets, "all"
    fewer = _fewer(offsets, ours, lambda choices: measure([planned(choice) for choice in choices]))
    if fewer != offsets:
        (other,) = measure([planned(fewer)], smallest=True)
        _require_same(program, own, other)
        if _needs(other) < _needs(ours):
            best, how, ours = fewer, "some", other
    if _more(ours, own):
        return Choice(bare, None, "none", own, own)
    return Choice(planned(best), best, how, own, ours)


def _require_same(program: Program, own: Measured, ours: Measured) -> None:
    if ours.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro refuses the model with this plan: {ours.refused}")
    if ours.outputs != own.outputs:
        raise PlanError(
            f"{program.where}: with this plan TensorFlow Lite Micro computes something else: nothing is written"
        )


def _needs(measured: Measured) -> tuple[int, int]:
    return measured.total, measured.smallest


def _more(ours: Measured, own: Measured) -> bool:
    """Whether a plan needs more than TFLM's own, or as much all around."""
    return ours.total > own.total or ours.smallest > own.smallest or _needs(ours) == _needs(own)


def _fewer(offsets: Offsets, now: Measured, measure: Callable[[Sequence[Offsets]], list[Measured]]) -> Offsets:
    """The offsets without those whose lack makes TFLM need less, one set of tensors at one place after another."""
    best, least = offsets, now.total
    for _ in range(ROUNDS):
        choices = [_without(best, at) for at in _places(best)]
        if not choices:
            break
        needs = [each.total if not each.refused and each.outputs == now.outputs else least for each in measure(choices)]
        at = min(range(len(needs)), key=lambda i: needs[i])
        if needs[at] >= least:
            break
        best, least = choices[at], needs[at]
    return best


def _places(offsets: Offsets) -> list[int]:
    """The offsets that are told, those of most tensors first."""
    told = [offset for subgraph in offsets for offset in subgraph if offset is not None]
    return sorted(set(told), key=lambda offset: (-told.count(offset), offset))[:MOST_GROUPS]


def _without(offsets: Offsets, at: int) -> Offsets:
    return tuple(tuple(None if offset == at else offset for offset in subgraph) for subgraph in offsets)

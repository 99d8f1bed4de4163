"""Verdict on a plan by another tool: violations, tensors not judged, and the distance to a lower bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from sublet.base.errors import Finding
from sublet.base.ranges import Ranges
from sublet.packing.problem import Packing, Problem
from sublet.plan import MemoryPlan


class ForeignOutcome(StrEnum):
    """Kind of a verdict: right; wrong; or right in all judged tensors, with further tensors not judged."""

    RIGHT = "right"
    WRONG = "wrong"
    PARTLY = "partly judged"


class Evidence(StrEnum):
    """Evidence for a verdict: the source of the live ranges that the plan was checked against."""

    REPLAY = "the model, replayed byte by byte"
    LIFETIMES = "the lifetimes in the file"
    INSTRUCTIONS = "the instructions of the program, replayed"


@dataclass(frozen=True, slots=True)
class RegionVerdict:
    """Verdict on a memory of the plan: the size, and a lower bound for the same tensors with the same sharing."""

    name: str
    nbytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class ForeignVerdict:
    """Verdict on a plan by another tool.

    findings     every violated rule
    judged       the tensors checked against the rules
    not_judged   the reason for each remaining tensor
    plan         the plan to draw, for a plan of a model: live ranges and points come from the model
    drawn        the packing of each region to draw, for a plan with lifetimes
    """

    tool: str
    evidence: Evidence
    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    not_judged: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[RegionVerdict, ...] = ()
    plan: MemoryPlan | None = None
    drawn: tuple[tuple[Problem, Packing], ...] = ()

    @property
    def outcome(self) -> ForeignOutcome:
        """The kind of the verdict: wrong if any rule is violated, even if only some tensors were judged."""
        if self.findings:
            return ForeignOutcome.WRONG
        return ForeignOutcome.PARTLY if self.not_judged else ForeignOutcome.RIGHT

    @property
    def nbytes(self) -> int:
        """The size of all regions together, in bytes."""
        return sum(region.nbytes for region in self.regions)

    @property
    def lower_bound_bytes(self) -> int:
        """The sum of the regions' lower bounds, in bytes. The assignment of tensors to regions is fixed."""
        return sum(region.lower_bound_bytes for region in self.regions)


def peak_bytes_in_use(pieces: Iterable[tuple[int, int, Ranges]]) -> int:
    """Return the most bytes in use at any time; `pieces` are (begin, end, time ranges in use). A byte counts once.

    The result is a lower bound if the plan is right. Tensors needed at the same time then have different bytes, apart
    from tensors shared on purpose. So no plan with the same sharing uses fewer bytes.
    """
    held = [(begin, end, live) for begin, end, live in pieces if begin < end]
    edges = sorted({edge for begin, end, _ in held for edge in (begin, end)})
    rank = {edge: i for i, edge in enumerate(edges)}
    lengths = np.array([after - before for before, after in pairwise(edges)], dtype=np.int64)
    count = np.zeros(len(lengths), dtype=np.int64)
    events = sorted(
        (when, step, begin, end) for begin, end, live in held for a, b in live for when, step in ((a, 1), (b, -1))
    )
    peak = 0
    for i, (when, step, begin, end) in enumerate(events):
        count[rank[begin] : rank[end]] += step
        if step > 0 and (i + 1 == len(events) or events[i + 1][1] < 0 or events[i + 1][0] > when):
            peak = max(peak, int(lengths[count > 0].sum()))
    return peak

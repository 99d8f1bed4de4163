"""What is found of a plan that another tool made: what is wrong, what could not be judged, how far it is from best."""

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


class Outcome(StrEnum):
    """Right in all of its tensors; wrong; or right as far as it could be judged, which is not all."""

    RIGHT = "right"
    WRONG = "wrong"
    PARTLY = "partly judged"


class By(StrEnum):
    """What a plan was held against."""

    REPLAY = "the model, replayed byte by byte"
    LIFETIMES = "the lifetimes that the file tells"
    INSTRUCTIONS = "the instructions of the program, replayed"


@dataclass(frozen=True, slots=True)
class RegionJudged:
    """A memory of the plan: what it takes, and what no plan of the same tensors with the same sharing can do below."""

    name: str
    nbytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class Judgement:
    """What was found.

    findings     every rule that is broken
    judged       the tensors that were held against the rules
    not_judged   for each other tensor why not
    plan         what is drawn of a plan of a model: lives and points are of the model
    drawn        for each region the packing that is drawn of a plan that tells lifetimes
    """

    tool: str
    by: By
    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    not_judged: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[RegionJudged, ...] = ()
    plan: MemoryPlan | None = None
    drawn: tuple[tuple[Problem, Packing], ...] = ()

    @property
    def outcome(self) -> Outcome:
        """In one word; wrong also where only a part was judged."""
        if self.findings:
            return Outcome.WRONG
        return Outcome.PARTLY if self.not_judged else Outcome.RIGHT

    @property
    def nbytes(self) -> int:
        """What all regions take together."""
        return sum(region.nbytes for region in self.regions)

    @property
    def lower_bound_bytes(self) -> int:
        """What they take at least, each with the tensors that it has."""
        return sum(region.lower_bound_bytes for region in self.regions)


def most_held(pieces: Iterable[tuple[int, int, Ranges]]) -> int:
    """The most bytes that hold something at one time, of (begin, end, when it holds something); each counts once.

    Of a right plan that is a bound: tensors that are needed at one time are different bytes, but for those that the
    plan makes the same on purpose. So no plan that shares what this one shares has fewer.
    """
    held = [(begin, end, live) for begin, end, live in pieces if begin < end]
    edges = sorted({edge for begin, end, _ in held for edge in (begin, end)})
    rank = {edge: i for i, edge in enumerate(edges)}
    lengths = np.array([after - before for before, after in pairwise(edges)], dtype=np.int64)
    count = np.zeros(len(lengths), dtype=np.int64)
    events = sorted(
        (when, step, begin, end) for begin, end, live in held for a, b in live for when, step in ((a, 1), (b, -1))
    )
    most = 0
    for i, (when, step, begin, end) in enumerate(events):
        count[rank[begin] : rank[end]] += step
        if step > 0 and (i + 1 == len(events) or events[i + 1][1] < 0 or events[i + 1][0] > when):
            most = max(most, int(lengths[count > 0].sum()))
    return most

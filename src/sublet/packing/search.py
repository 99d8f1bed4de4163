"""The search for the smallest packing: exact, anytime, and reproducible when it is limited by steps.

The core reduces time to sections (maximal sets of buffers alive together), keeps for each a floor and
the bytes still to place, for each buffer the lowest offset it can have, and raises all of them to a
fixpoint. It branches on the buffer that fits the lowest place best, or postpones it; restarts, and
learns which sections and which states fail, and follows the best packings so far. Around that it narrows
the capacity between the bound and the best packing. Where no packing of a capacity exists, it proves
that, and the bound rises. A large packing is first improved where it is highest, a window at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from sublet.packing.bounds import Bound
from sublet.packing.greedy import packing_of
from sublet.packing.native import core_of
from sublet.packing.problem import Packing, Problem

EFFORT = 100_000_000
"""Steps (placements or postponements) times buffers after which a search ends: a few seconds, as a step
costs more the more buffers there are. One more piece of a life costs as much as `PIECE` buffers. Of `LARGE` problems a
quarter of that, and the less the larger they are, as a search from the ground up seldom ends there."""
PIECE = 16
MOST_STEPS = 1_000_000
DECISION_EFFORT = 10_000_000
"""The same when only a given capacity has to be reached, which mostly takes far less."""
LARGE = 2_000
"""From so many buffers on, packings are first repacked where they are highest."""
REPACK_EFFORT = 20_000_000
"""Steps of that when nobody limits them, at most one for each buffer, and such steps times buffers: seconds, however
large the problem."""
MOST_OVERLAPS = 5_000_000
"""The search stores every pair of buffers alive together; with more it would take gigabytes."""
SEARCH = "search"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to search: steps (None for the usual number), and a time of `time.monotonic()` if any.

    Without a deadline the result depends on the problem, the steps and the seed alone. Ctrl-C ends a
    search with the best so far.
    """

    effort: int | None = None
    seed: int = 0
    deadline: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Found:
    """The best packing, the best bound, the steps taken, and why the search ended early, if it did."""

    packing: Packing
    bound: Bound
    steps: int
    stopped: str


def usual_effort(problem: Problem) -> int:
    """The steps of a search that nobody limits."""
    buffers, gaps = len(problem.buffers), sum(len(buffer.gaps) for buffer in problem.buffers)
    effort = EFFORT if buffers < LARGE else EFFORT * LARGE // (4 * buffers)
    return min(MOST_STEPS, 1 + effort // max(1, buffers + PIECE * gaps))


def searchable(problem: Problem) -> bool:
    """Whether the search can hold the problem."""
    return problem.precedence is not None or core_of(problem).count_overlaps() <= MOST_OVERLAPS


def search(problem: Problem, bound: Bound, incumbent: Packing, limits: Limits = NO_LIMITS) -> Found:
    """The smallest packing between `bound` and `incumbent` that can be found within the limits.

    One that is not `searchable` is only repacked where it is highest.
    """
    found = _repacked(problem, bound, incumbent, limits)
    effort = (limits.effort or usual_effort(problem)) - found.steps
    if found.stopped or effort < 1 or found.packing.arena_bytes <= bound.bytes or not searchable(problem):
        return found
    stop = _Stop(limits.deadline)
    known = np.array(found.packing.offsets, dtype=np.int64)
    offsets, proved, steps, interrupted = core_of(problem).minimise(bound.bytes, known, limits.seed, effort, stop)
    packing = _smaller(found.packing, packing_of(problem, offsets, SEARCH))
    if proved > bound.bytes:
        bound = Bound(proved, SEARCH, ())
    return Found(packing, bound, found.steps + steps, "interrupt" if interrupted else stop.reason)


def reach(problem: Problem, capacity: int, bound: Bound, incumbent: Packing, limits: Limits = NO_LIMITS) -> Found:
    """Like `search`, but content with any packing of at most `capacity` bytes, or a proof that there is none."""
    found = _repacked(problem, bound, incumbent, limits)
    if found.stopped or found.packing.arena_bytes <= capacity or not searchable(problem):
        return found
    stop = _Stop(limits.deadline)
    effort = limits.effort or DECISION_EFFORT
    verdict, offsets, steps, interrupted = core_of(problem).solve(capacity, limits.seed, effort, stop)
    if verdict == "infeasible":
        bound = Bound(max(bound.bytes, capacity + 1), SEARCH, ())
    packing = packing_of(problem, offsets, SEARCH) if verdict == "feasible" else found.packing
    return Found(packing, bound, found.steps + steps, "interrupt" if interrupted else stop.reason)


def _repacked(problem: Problem, bound: Bound, incumbent: Packing, limits: Limits) -> Found:
    """The incumbent, improved where it is highest if it is large."""
    buffers = len(problem.buffers)
    if buffers < LARGE or problem.precedence is not None or problem.companions:
        return Found(incumbent, bound, 0, "")
    stop = _Stop(limits.deadline)
    known = np.array(incumbent.offsets, dtype=np.int64)
    effort = limits.effort or min(buffers, 1 + REPACK_EFFORT // buffers)
    offsets, steps, interrupted = core_of(problem).repack(bound.bytes, known, limits.seed, effort, stop)
    packing = _smaller(incumbent, packing_of(problem, offsets, SEARCH))
    return Found(packing, bound, steps, "interrupt" if interrupted else stop.reason)


def _smaller(one: Packing, other: Packing) -> Packing:
    return other if other.arena_bytes < one.arena_bytes else one


class _Stop:
    """Asked by the core now and then whether to stop; remembers why."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.reason = ""

    def __call__(self) -> bool:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.reason = "timeout"
        return bool(self.reason)

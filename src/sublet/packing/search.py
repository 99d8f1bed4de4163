"""Search for the smallest packing: exact, anytime, and reproducible when limited by steps.

The core reduces time to sections (maximal sets of buffers live together). Per section the core keeps a floor and
the bytes still to place, per buffer the lowest possible offset, and raises all of them to a fixpoint. The search
branches on the buffer with the best fit at the lowest place, or postpones the buffer. The search restarts, learns
failing sections and states, and follows the best packings so far. An outer loop narrows the capacity between the
bound and the best packing. A capacity proven infeasible raises the bound. A large packing is first improved where
it is highest, one window at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from sublet.packing.bounds import LowerBound
from sublet.packing.greedy import packing_of
from sublet.packing.normalize import core_of
from sublet.packing.problem import Packing, Problem

EFFORT = 100_000_000
"""Steps (placements or postponements) times buffers of one search: a few seconds, since the cost of a step grows with
the buffers. One more piece of a live range costs as much as `PIECE` buffers. `LARGE` problems get a quarter, and less
the larger they are, since a search from scratch seldom ends on a large problem."""
PIECE = 16
MOST_STEPS = 1_000_000
DECISION_EFFORT = 10_000_000
"""Steps of a decision search for a given capacity, which mostly needs far fewer."""
LARGE = 2_000
"""Number of buffers from which packings are first repacked where they are highest."""
REPACK_EFFORT = 20_000_000
"""Default steps times buffers of repacking, with at most one step per buffer: seconds, for any size of problem."""
MOST_OVERLAPS = 5_000_000
"""Most pairs of buffers live together: the search stores every pair, and more would take gigabytes."""
SEARCH = "search"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search: steps (None for the default), seed, and a deadline in `time.monotonic()` seconds.

    Without a deadline the result depends on the problem, the steps and the seed alone. Ctrl-C ends a
    search with the best packing so far.
    """

    effort: int | None = None
    seed: int = 0
    deadline: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class PackingSearchResult:
    """Result of a search: best packing, best bound, steps taken, and the reason for an early end ("" if complete)."""

    packing: Packing
    bound: LowerBound
    steps: int
    stopped: str


def default_effort(problem: Problem) -> int:
    """Return the steps of a search without a limit given by the caller."""
    buffers, gaps = len(problem.buffers), sum(len(buffer.gaps) for buffer in problem.buffers)
    effort = EFFORT if buffers < LARGE else EFFORT * LARGE // (4 * buffers)
    return min(MOST_STEPS, 1 + effort // max(1, buffers + PIECE * gaps))


def can_search(problem: Problem) -> bool:
    """True if the search can hold all pairs of buffers live together."""
    return problem.precedence is not None or core_of(problem).count_overlaps() <= MOST_OVERLAPS


def search(problem: Problem, bound: LowerBound, incumbent: Packing, limits: Limits = NO_LIMITS) -> PackingSearchResult:
    """Return the smallest packing between `bound` and `incumbent` found within the limits.

    A problem too large for the search is only repacked where the packing is highest.
    """
    result = _repack_highest(problem, bound, incumbent, limits)
    effort = (limits.effort or default_effort(problem)) - result.steps
    if result.stopped or effort < 1 or result.packing.arena_bytes <= bound.bytes or not can_search(problem):
        return result
    stop = _Stop(limits.deadline)
    known = np.array(result.packing.offsets, dtype=np.int64)
    offsets, proved, steps, interrupted = core_of(problem).minimise(bound.bytes, known, limits.seed, effort, stop)
    packing = _smaller_packing(result.packing, packing_of(problem, offsets, SEARCH))
    if proved > bound.bytes:
        bound = LowerBound(proved, SEARCH, ())
    return PackingSearchResult(packing, bound, result.steps + steps, "interrupt" if interrupted else stop.reason)


def decide_capacity(
    problem: Problem, capacity: int, bound: LowerBound, incumbent: Packing, limits: Limits = NO_LIMITS
) -> PackingSearchResult:
    """Return any packing of at most `capacity` bytes, or a proof that none exists.

    Otherwise like `search`; without either result the incumbent is returned.
    """
    result = _repack_highest(problem, bound, incumbent, limits)
    if result.stopped or result.packing.arena_bytes <= capacity or not can_search(problem):
        return result
    stop = _Stop(limits.deadline)
    effort = limits.effort or DECISION_EFFORT
    verdict, offsets, steps, interrupted = core_of(problem).solve(capacity, limits.seed, effort, stop)
    if verdict == "infeasible":
        bound = LowerBound(max(bound.bytes, capacity + 1), SEARCH, ())
    packing = packing_of(problem, offsets, SEARCH) if verdict == "feasible" else result.packing
    return PackingSearchResult(packing, bound, result.steps + steps, "interrupt" if interrupted else stop.reason)


def _repack_highest(problem: Problem, bound: LowerBound, incumbent: Packing, limits: Limits) -> PackingSearchResult:
    """Return the incumbent; a large one is first improved where it is highest."""
    buffers = len(problem.buffers)
    if buffers < LARGE or problem.precedence is not None or problem.companions:
        return PackingSearchResult(incumbent, bound, 0, "")
    stop = _Stop(limits.deadline)
    known = np.array(incumbent.offsets, dtype=np.int64)
    effort = limits.effort or min(buffers, 1 + REPACK_EFFORT // buffers)
    offsets, steps, interrupted = core_of(problem).repack(bound.bytes, known, limits.seed, effort, stop)
    packing = _smaller_packing(incumbent, packing_of(problem, offsets, SEARCH))
    return PackingSearchResult(packing, bound, steps, "interrupt" if interrupted else stop.reason)


def _smaller_packing(one: Packing, other: Packing) -> Packing:
    """Return the smaller of two packings, the first if equal."""
    return other if other.arena_bytes < one.arena_bytes else one


class _Stop:
    """Callback polled by the core to ask for a stop; records the reason."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.reason = ""

    def __call__(self) -> bool:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.reason = "timeout"
        return bool(self.reason)

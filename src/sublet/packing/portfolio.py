"""The entry point `pack`: one strategy by name, or the portfolio `auto`.

`auto` runs the strategies in the order of `STRATEGIES`, then the search, and keeps the smallest arena. `auto` skips
strategies too slow for the number of buffers, or of pairs of buffers live together, and stops once the arena
equals the lower bound. A time limit or Ctrl-C ends `auto` with the best packing so far; the first strategies always
run to their end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sublet.base.errors import ProblemError
from sublet.packing._core import Hole
from sublet.packing.bounds import LowerBound, lower_bound, peak_bound
from sublet.packing.conflicts import conflicts_of
from sublet.packing.normalize import NormalizedProblem, check_reach, core_of, core_with_shifts, normalize
from sublet.packing.problem import Packing, Problem, order_by_id, restore_order, select_buffers
from sublet.packing.search import SEARCH, Limits, can_search, decide_capacity, search
from sublet.packing.strategies import (
    STRATEGIES,
    OutOfTime,
    Strategy,
    can_pack,
    is_late,
    stop_when_late,
    strategy_named,
    time_limit,
)
from sublet.packing.validate import check_packing

# Local search by reinsertion, for packings with companions at distances.
#
# The normal form asks for unneeded bytes below some companions (see `normalize`). The local search places groups with
# exactly the bytes needed, starting in the offset order of each given packing. Each step moves one to three buffers at
# the top, or conflicting with the top, to a random place in the order, and keeps a result not larger than before.

SETTLED = "settled"
EFFORT = 250_000
"""Placements (steps times buffers) in all; at most MOST_ROUNDS steps, at least four per packing on large problems."""
MOST_ROUNDS = 2_000


def improve_by_reinsertion(form: NormalizedProblem, packings: Sequence[Packing], enough: int, seed: int = 0) -> Packing:
    """Return the smallest packing found from each of `packings`; the smallest of `packings` if none is smaller.

    Ends at `enough` bytes, when a time limit passes, or when the effort is spent.
    """
    starts = sorted({packing.offsets: packing for packing in packings}.values(), key=lambda each: each.arena_bytes)
    best = starts[0]
    buffers = form.with_pins.buffers
    if not buffers:
        return best
    core = core_with_shifts(form.with_pins, form.shifts)
    conflicts = conflicts_of(form.with_pins)
    sizes = np.array([buffer.size for buffer in buffers], dtype=np.int64)
    chance = random.Random(seed)
    for start in starts:
        trial = rank = np.argsort(np.argsort(start.offsets, kind="stable"), kind="stable").astype(np.float64)
        current = start.arena_bytes
        tops = np.flatnonzero((np.array(start.offsets) + sizes == current) & (sizes > 0))
        for _ in range(max(4, min(MOST_ROUNDS, EFFORT // len(buffers)) // len(starts))):
            if best.arena_bytes <= enough or is_late():
                return best
            hole = Hole.lowest if chance.random() < 0.75 else Hole.smallest
            offsets = core.greedy_in_order(np.argsort(trial, kind="stable").astype(np.int32), hole)
            ends = (offsets + sizes) * (sizes > 0)
            if ends.max() <= current:
                rank, current = trial, int(ends.max())
                tops = np.flatnonzero(ends == current)
                if current < best.arena_bytes:
                    best = replace(start, offsets=tuple(offsets.tolist()), arena_bytes=current, strategy=SETTLED)
            trial = rank.copy()
            for _ in range(chance.randint(1, 3)):
                mover = int(tops[chance.randrange(len(tops))])
                if chance.random() < 1 / 3:
                    near = np.flatnonzero(conflicts.row(mover))
                    mover = int(near[chance.randrange(len(near))]) if len(near) else mover
                trial[mover] = chance.random() * len(buffers)
    return best


AUTO = "auto"
ALWAYS = ("no_reuse", "first_fit", "first_fit_by_tightness")
# Limits on the number of buffers: beyond the limit the strategy takes minutes for little gain.
MOST_BUFFERS = {
    "no_reuse": 50_000,
    "first_fit": 50_000,
    "best_fit_by_size": 50_000,
    "best_fit_by_lifetime": 50_000,
    "best_fit_by_area": 50_000,
    "best_fit_by_interference": 50_000,
    "allocation_graph": 4_000,
    "allocation_graph_by_interference": 2_000,
}

DENSE_PAIRS = 100_000_000
"""Pairs of buffers live together above which an order over all pairs takes seconds: then `SPARING` only."""
DENSE_STRATEGIES = ("sweep", "first_fit_by_tightness", SEARCH)
"""Strategies for a dense problem, in order; the second visits all pairs, once."""

UNLIMITED_STEPS = 1 << 62
"""Step limit of a search ended by a time limit."""

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class PackingReport:
    """A checked packing, the lower bound on its arena, and the strategies tried.

    tried    (strategy, arena bytes, seconds), in order
    steps    taken by the search
    stopped  "timeout" or "interrupt" when `auto` was cut short, else ""
    """

    packing: Packing
    bound: LowerBound
    tried: tuple[tuple[str, int, float], ...]
    seconds: float
    steps: int = 0
    stopped: str = ""

    @property
    def gap(self) -> float:
        """The excess of the arena over the lower bound, relative to the bound; 0.0 proves the packing optimal."""
        return (self.packing.arena_bytes - self.bound.bytes) / self.bound.bytes if self.bound.bytes else 0.0


def pack(
    problem: Problem,
    strategy: str | Strategy = AUTO,
    timeout: float | None = None,
    progress: Progress | None = None,
    *,
    capacity: int | None = None,
    effort: int | None = None,
    seed: int = 0,
    useful: int | None = None,
) -> PackingReport:
    """Pack with a strategy, by name or as a function of a Problem; by default the best of all.

    `effort` limits the search in steps, which is reproducible; with a `timeout` (seconds) the search runs until the
    timeout instead, and the result depends on the machine. A single strategy runs to its end. With
    a `capacity` (bytes), `auto` and the search stop once the arena is no larger. `auto` also stops with the best
    packing so far once the bound exceeds `useful` (bytes).
    `progress` is called with every tried strategy and its arena size. Raises ProblemError for an unknown strategy,
    a strategy that returns no Packing, a problem without any packing or an invalid timeout, PackingError when the
    packing of a strategy is wrong.
    """
    if timeout is not None and not timeout >= 0:
        raise ProblemError(f"the timeout {timeout} must be a number of seconds, at least 0")
    order = order_by_id(problem)
    form = normalize(select_buffers(problem, order))
    check_reach(form.problem)
    attempt = _Portfolio(form, timeout, progress, capacity, effort, seed, useful)
    if strategy == AUTO:
        attempt.try_all()
    elif strategy == SEARCH and can_search(attempt.problem):
        attempt.try_strategy("first_fit")
        attempt.find_bound()
        attempt.search()
    else:
        attempt.try_strategy(strategy)
        attempt.find_bound()
    report = attempt.report()
    members = tuple(sorted(order[member] for member in report.bound.members))
    return replace(report, packing=restore_order(report.packing, order), bound=replace(report.bound, members=members))


@dataclass
class _Portfolio:
    """The state of one call of `pack`; its arguments are the arguments of `pack`."""

    normal_form: NormalizedProblem
    timeout: float | None
    progress: Progress | None
    capacity: int | None
    effort: int | None
    seed: int
    useful: int | None
    best: Packing | None = None
    packings: list[Packing] = field(default_factory=list)
    locally_improved: Packing | None = None
    bound: LowerBound | None = None
    tried: list[tuple[str, int, float]] = field(default_factory=list)
    steps: int = 0
    stopped: str = ""
    begin: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> Problem:
        """The normalized problem, as passed to strategies and search."""
        return self.normal_form.problem

    @property
    def deadline(self) -> float | None:
        """The end of the time limit in `time.monotonic()` seconds, None without a limit."""
        return None if self.timeout is None else self.begin + self.timeout

    def try_all(self) -> None:
        """Run the portfolio until the packing is good enough, the time is over, or the user interrupts."""
        try:
            for name in self._worth_trying():
                with time_limit(None if name in ALWAYS or self.best is None else self.deadline):
                    stop_when_late()
                    self.search() if name == SEARCH else self.try_strategy(name)
                if self.bound is None and name in (*ALWAYS[1:], DENSE_STRATEGIES[0]):
                    self.find_bound()
                if self._is_good_enough():
                    return
        except OutOfTime:
            self.stopped = "timeout"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.stopped = "interrupt"

    def _worth_trying(self) -> list[str]:
        """Return the strategies fast enough for the size of the problem."""
        if self.problem.precedence is None and core_of(self.problem).count_overlaps() > DENSE_PAIRS:
            return [*DENSE_STRATEGIES]
        count = len(self.problem.buffers)
        return [name for name in STRATEGIES if can_pack(name, self.problem) and count <= MOST_BUFFERS.get(name, count)]

    def try_strategy(self, strategy: str | Strategy) -> None:
        begin = time.monotonic()
        name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", repr(strategy))
        packing = (strategy_named(strategy) if isinstance(strategy, str) else strategy)(self.problem)
        if not isinstance(packing, Packing):
            remedy = "return sublet.packing.Packing(offsets, arena_bytes, name)"
            raise ProblemError(f"strategy {name} returned a {type(packing).__name__}, not a Packing: {remedy}")
        count, wanted = len(packing.offsets), len(self.problem.buffers)
        if count != wanted:
            raise ProblemError(f"strategy {name} returned {count} offsets for {wanted} buffers, not one for each")
        self._record(name, packing, begin)

    def _search_locally(self, bound: LowerBound) -> None:
        """Save the bytes required by the normal form only, by local search."""
        begin = time.monotonic()
        starts = [self.normal_form.original_packing(packing) for packing in self.packings]
        self.locally_improved = improve_by_reinsertion(
            self.normal_form, starts, max(bound.bytes, self.capacity or 0), self.seed
        )
        self.tried.append((SETTLED, self.locally_improved.arena_bytes, time.monotonic() - begin))

    def _is_good_enough(self) -> bool:
        """True if the best packing is proven smallest, fits the capacity, or the bound exceeds `useful`."""
        if self.best is None or self.bound is None:
            return False
        if self.useful is not None and self.bound.bytes > self.useful:
            return True
        return self._best_original_packing().arena_bytes <= max(self.bound.bytes, self.capacity or 0)

    def _best_original_packing(self) -> Packing:
        """Return the best packing as a packing of the original problem."""
        assert self.best is not None
        answer = self.normal_form.original_packing(self.best)
        return (
            self.locally_improved
            if self.locally_improved and self.locally_improved.arena_bytes < answer.arena_bytes
            else answer
        )

    def search(self) -> None:
        assert self.bound is not None
        assert self.best is not None
        if not self.normal_form.exact:
            self._search_locally(self.bound)
            if self._is_good_enough():
                return
        begin = time.monotonic()
        problem, bound, best = self.problem, self.bound, self.best
        limits = Limits(self.effort if self.deadline is None else UNLIMITED_STEPS, self.seed, self.deadline)
        if self.capacity is not None:
            result = decide_capacity(problem, self.capacity, bound, best, limits)
        else:
            result = search(problem, bound, best, limits)
        self.steps, self.stopped = result.steps, result.stopped
        if self.normal_form.exact:
            self.bound = result.bound
        self._record(SEARCH, result.packing, begin)

    def _record(self, name: str, packing: Packing, begin: float) -> None:
        self.tried.append((name, packing.arena_bytes, time.monotonic() - begin))
        if self.best is None or packing.arena_bytes < self.best.arena_bytes:
            self.best = packing
        self.packings.append(packing)
        if self.progress:
            self.progress(name, packing.arena_bytes)

    def find_bound(self) -> None:
        late = self.deadline is not None and time.monotonic() > self.deadline
        self.bound = peak_bound(self.normal_form.original) if late else lower_bound(self.normal_form.original)

    def report(self) -> PackingReport:
        packing = self._best_original_packing()
        check_packing(self.normal_form.original, packing)
        bound = self.bound or peak_bound(self.normal_form.original)
        seconds = time.monotonic() - self.begin
        return PackingReport(packing, bound, tuple(self.tried), seconds, self.steps, self.stopped)

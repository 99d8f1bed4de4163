"""`pack`: one strategy by name, or `auto`, which tries all, then searches, and keeps the smallest arena.

`auto` goes through the strategies in the order of `STRATEGIES`, leaves out those that would take too
long on so many buffers or pairs of them alive together, and stops as soon as the arena is as small as
the lower bound. A time limit or Ctrl-C ends it with the best packing so far; the first strategies always
run to their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sublet.base.errors import ProblemError
from sublet.packing.bounds import Bound, lower_bound, peak_bound
from sublet.packing.by_id import back_in_order, order_by_id, rearranged
from sublet.packing.deadline import OutOfTime, stop_when_late, time_limit
from sublet.packing.native import check_reach, core_of
from sublet.packing.plain import Plain, plain
from sublet.packing.problem import Packing, Problem
from sublet.packing.search import SEARCH, Limits, reach, search, searchable
from sublet.packing.settle import SETTLED, settled
from sublet.packing.strategies import STRATEGIES, can_pack, strategy_named
from sublet.packing.validate import check_packing

AUTO = "auto"
ALWAYS = ("no_reuse", "first_fit", "first_fit_by_tightness")
# More buffers than this, and the strategy takes long for the little it can gain.
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

DENSE = 100_000_000
"""Pairs of buffers alive together from which on an order that looks at all of them takes seconds: `SPARING` only."""
SPARING = ("sweep", "first_fit_by_tightness", SEARCH)
"""What is tried of a dense problem, in this order: the second looks at all pairs, once."""

ENDLESS = 1 << 62
"""Steps of a search that a time limit ends."""

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Report:
    """A checked packing, the lower bound it is held against, and what was tried for it.

    tried    (strategy, arena bytes, seconds), in order
    steps    taken by the search
    stopped  "timeout" or "interrupt" when `auto` was cut short, else ""
    """

    packing: Packing
    bound: Bound
    tried: tuple[tuple[str, int, float], ...]
    seconds: float
    steps: int = 0
    stopped: str = ""

    @property
    def gap(self) -> float:
        """How much larger the arena is than the lower bound; 0.0 is a proof that none is smaller."""
        return (self.packing.arena_bytes - self.bound.bytes) / self.bound.bytes if self.bound.bytes else 0.0


def pack(
    problem: Problem,
    strategy: str = AUTO,
    timeout: float | None = None,
    progress: Progress | None = None,
    *,
    capacity: int | None = None,
    effort: int | None = None,
    seed: int = 0,
    useful: int | None = None,
) -> Report:
    """Pack with a strategy, by default the best of all.

    `effort` limits the search in steps, which is reproducible; with a `timeout` (seconds) the search
    goes on until then instead, and so depends on the machine. A single strategy runs to its end. With
    a `capacity` (bytes), `auto` and the search stop as soon as the arena is no larger. Where the bound shows that none
    is as small as `useful` (bytes), `auto` stops with whatever it has.
    `progress` is told every tried strategy and its arena. Raises ProblemError for an unknown strategy or
    a problem without any packing or a timeout that is none, PackingError when a strategy's packing is wrong.
    """
    if timeout is not None and not timeout >= 0:
        raise ProblemError(f"the timeout {timeout} must be a number of seconds, at least 0")
    order = order_by_id(problem)
    form = plain(rearranged(problem, order))
    check_reach(form.problem)
    attempt = _Attempt(form, timeout, progress, capacity, effort, seed, useful)
    if strategy == AUTO:
        attempt.try_all()
    elif strategy == SEARCH and searchable(attempt.problem):
        attempt.try_strategy("first_fit")
        attempt.find_bound()
        attempt.search()
    else:
        attempt.try_strategy(strategy)
        attempt.find_bound()
    report = attempt.report()
    members = tuple(sorted(order[member] for member in report.bound.members))
    return replace(report, packing=back_in_order(report.packing, order), bound=replace(report.bound, members=members))


@dataclass
class _Attempt:
    """What `pack` knows so far; its arguments are those of `pack`."""

    form: Plain
    timeout: float | None
    progress: Progress | None
    capacity: int | None
    effort: int | None
    seed: int
    useful: int | None
    best: Packing | None = None
    packings: list[Packing] = field(default_factory=list)
    settled: Packing | None = None
    bound: Bound | None = None
    tried: list[tuple[str, int, float]] = field(default_factory=list)
    steps: int = 0
    stopped: str = ""
    begin: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> Problem:
        """The plain one, which strategies and search know."""
        return self.form.problem

    @property
    def deadline(self) -> float | None:
        """When the time is over, by `time.monotonic()`."""
        return None if self.timeout is None else self.begin + self.timeout

    def try_all(self) -> None:
        try:
            for name in self._worth_trying():
                with time_limit(None if name in ALWAYS or self.best is None else self.deadline):
                    stop_when_late()
                    self.search() if name == SEARCH else self.try_strategy(name)
                if self.bound is None and name in (*ALWAYS[1:], SPARING[0]):
                    self.find_bound()
                if self._content():
                    return
        except OutOfTime:
            self.stopped = "timeout"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.stopped = "interrupt"

    def _worth_trying(self) -> list[str]:
        """The strategies that take no longer than what they can gain is worth."""
        if self.problem.precedence is None and core_of(self.problem).count_overlaps() > DENSE:
            return [*SPARING]
        count = len(self.problem.buffers)
        return [name for name in STRATEGIES if can_pack(name, self.problem) and count <= MOST_BUFFERS.get(name, count)]

    def try_strategy(self, name: str) -> None:
        begin = time.monotonic()
        self._keep(name, strategy_named(name)(self.problem), begin)

    def _settle(self, bound: Bound) -> None:
        """Save the bytes that only the plain form asks for."""
        begin = time.monotonic()
        starts = [self.form.answer(packing) for packing in self.packings]
        self.settled = settled(self.form, starts, max(bound.bytes, self.capacity or 0), self.seed)
        self.tried.append((SETTLED, self.settled.arena_bytes, time.monotonic() - begin))

    def _content(self) -> bool:
        """Whether the best packing is known to be, or is small enough, or none is of use."""
        if self.best is None or self.bound is None:
            return False
        if self.useful is not None and self.bound.bytes > self.useful:
            return True
        return self._answer().arena_bytes <= max(self.bound.bytes, self.capacity or 0)

    def _answer(self) -> Packing:
        """The best packing in the terms of the question."""
        assert self.best is not None
        answer = self.form.answer(self.best)
        return self.settled if self.settled and self.settled.arena_bytes < answer.arena_bytes else answer

    def search(self) -> None:
        assert self.bound is not None
        assert self.best is not None
        if not self.form.exact:
            self._settle(self.bound)
            if self._content():
                return
        begin = time.monotonic()
        problem, bound, best = self.problem, self.bound, self.best
        limits = Limits(self.effort if self.deadline is None else ENDLESS, self.seed, self.deadline)
        if self.capacity is not None:
            found = reach(problem, self.capacity, bound, best, limits)
        else:
            found = search(problem, bound, best, limits)
        self.steps, self.stopped = found.steps, found.stopped
        if self.form.exact:
            self.bound = found.bound
        self._keep(SEARCH, found.packing, begin)

    def _keep(self, name: str, packing: Packing, begin: float) -> None:
        self.tried.append((name, packing.arena_bytes, time.monotonic() - begin))
        if self.best is None or packing.arena_bytes < self.best.arena_bytes:
            self.best = packing
        self.packings.append(packing)
        if self.progress:
            self.progress(name, packing.arena_bytes)

    def find_bound(self) -> None:
        late = self.deadline is not None and time.monotonic() > self.deadline
        self.bound = peak_bound(self.form.question) if late else lower_bound(self.form.question)

    def report(self) -> Report:
        packing = self._answer()
        check_packing(self.form.question, packing)
        bound = self.bound or peak_bound(self.form.question)
        seconds = time.monotonic() - self.begin
        return Report(packing, bound, tuple(self.tried), seconds, self.steps, self.stopped)

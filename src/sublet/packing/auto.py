"""`pack`: one strategy by name, or `auto`, which tries all and keeps the smallest arena.

`auto` goes through the strategies in the order of `STRATEGIES`, leaves out those that would take too
long on so many buffers, and stops as soon as the arena is as small as the lower bound. A time limit or
Ctrl-C ends it with the best packing so far; `no_reuse` and `first_fit` always run to their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sublet.packing.bounds import Bound, lower_bound, peak_bound
from sublet.packing.deadline import OutOfTime, time_limit
from sublet.packing.problem import Packing, Problem
from sublet.packing.strategies import STRATEGIES, strategy_named
from sublet.packing.validate import check_packing

AUTO = "auto"
ALWAYS = ("no_reuse", "first_fit")
# More buffers than this, and the strategy takes minutes instead of seconds.
MOST_BUFFERS = {"allocation_graph": 6_000, "allocation_graph_by_interference": 3_000}

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Report:
    """A checked packing, the lower bound it is held against, and what was tried for it.

    tried    (strategy, arena bytes, seconds), in order
    stopped  "timeout" or "interrupt" when `auto` was cut short, else ""
    """

    packing: Packing
    bound: Bound
    tried: tuple[tuple[str, int, float], ...]
    seconds: float
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
) -> Report:
    """Pack with a strategy, by default the best of all.

    `timeout` (seconds) limits `auto` only; a single strategy runs to its end. `progress` is told every
    tried strategy and its arena. Raises ProblemError for an unknown strategy or a problem without any
    packing, PackingError when a strategy's packing is wrong.
    """
    search = _Search(problem, timeout, progress)
    if strategy == AUTO:
        search.try_all()
    else:
        search.try_strategy(strategy)
        search.find_bound()
    return search.report()


class _Search:
    """What `pack` knows so far."""

    def __init__(self, problem: Problem, timeout: float | None, progress: Progress | None) -> None:
        self._problem = problem
        self._progress = progress
        self._begin = time.monotonic()
        self._deadline = None if timeout is None else self._begin + timeout
        self._best: Packing | None = None
        self._bound: Bound | None = None
        self._tried: list[tuple[str, int, float]] = []
        self._stopped = ""

    def try_all(self) -> None:
        try:
            for name in STRATEGIES:
                if len(self._problem.buffers) > MOST_BUFFERS.get(name, len(self._problem.buffers)):
                    continue
                with time_limit(None if name in ALWAYS else self._deadline):
                    self.try_strategy(name)
                if name == ALWAYS[-1]:
                    self.find_bound()
                if self._bound and self._best and self._best.arena_bytes == self._bound.bytes:
                    return
        except OutOfTime:
            self._stopped = "timeout"
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self._stopped = "interrupt"

    def try_strategy(self, name: str) -> None:
        begin = time.monotonic()
        packing = strategy_named(name)(self._problem)
        check_packing(self._problem, packing)
        self._tried.append((name, packing.arena_bytes, time.monotonic() - begin))
        if self._best is None or packing.arena_bytes < self._best.arena_bytes:
            self._best = packing
        if self._progress:
            self._progress(name, packing.arena_bytes)

    def find_bound(self) -> None:
        late = self._deadline is not None and time.monotonic() > self._deadline
        self._bound = peak_bound(self._problem) if late else lower_bound(self._problem)

    def report(self) -> Report:
        assert self._best is not None
        bound = self._bound or peak_bound(self._problem)
        return Report(self._best, bound, tuple(self._tried), time.monotonic() - self._begin, self._stopped)

"""Search for the cheapest rematerialization within a budget of live bytes.

From each start, the search adds clones until the budget holds, each time the clone freeing the most bytes above the
budget per second; then removes unnecessary clones. Ruin and recreate improves the two cheapest results, in parallel on
two cores. Starts are: no clones; checkpoints in 2, 3, 4, 6, ... segments; and results for other budgets. The limit
counts evaluations, so results do not depend on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from sublet.passes.recompute import _search
from sublet.passes.recompute.remat_problem import NO_CLONES, Clones, RematProblem

SEGMENT_COUNTS = (2, 3, 4, 6, 8, 11, 16, 23, 32)
LIKELY_STARTS = 3
"""Checkpoint solutions used as starts: the cheapest within the budget, or the closest to the budget."""

HALVINGS = 3
"""Maximum number of intermediate budgets for a budget not met, while the peak keeps falling."""

LOWER_TARGETS = (7 / 8, 3 / 4)
"""Shares of a budget not met, searched in turn: more points above a lower target lead the search to other clones."""

IMPROVED = 2
"""Number of the cheapest solutions within the budget to improve."""

CORES = 2
"""Number of starts searched in parallel."""

EFFORT = 25_000
"""Evaluations for the improvement of each solution."""

NODES, MOST_TIMES = 1000, 4
"""A problem with fewer than NODES nodes has proportionally more evaluations, because each is faster, but at most
MOST_TIMES as many."""

Stop = Callable[[], bool]


@dataclass(frozen=True)
class RematSolution:
    """A set of clones, the estimated peak of live bytes, and the seconds of all nodes."""

    clones: Clones
    peak: int
    seconds: float


@dataclass
class RematSearch:
    """A search over one problem, remembering results: a larger budget never has a costlier answer than a smaller.

    should_stop  polled regularly; True ends the search with the best result so far
    interrupted  True if Ctrl-C ended the search
    """

    level: RematProblem
    effort: int = EFFORT
    should_stop: Stop = lambda: False
    solutions: list[RematSolution] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._core = compiled_problem(self.level)
        self.solutions.append(self._evaluate(NO_CLONES))
        self._segments = [frozenset(self._core.segments(count)) for count in SEGMENT_COUNTS]

    def solve_roughly(self, budget: int) -> RematSolution | None:
        """Return the cheapest solution within the budget, from the plain program alone and without improvement."""
        if self.solutions[0].peak > budget:
            self._descend_from_each([NO_CLONES], budget, 0)
        return min(self._solutions_within(budget), key=_cost_key, default=None)

    def solve(self, budget: int) -> RematSolution | None:
        """Return the cheapest solution found with at most `budget` live bytes; None if none was found."""
        if self.solutions[0].peak > budget and not self.is_over():
            self._search_budget(budget)
        for _ in range(HALVINGS):  # a budget far below the best peak stops early: try one halfway first
            least = self.lowest_peak_solution().peak
            if self._solutions_within(budget) or self.is_over():
                break
            self._search_budget((budget + least) // 2)
            self._search_budget(budget)
            if self.lowest_peak_solution().peak == least:
                break
        for share in LOWER_TARGETS:
            if self._solutions_within(budget) or self.is_over():
                break
            self._search_budget(int(budget * share))
            if self._solutions_within(budget):
                self._search_budget(budget)  # from the solution found, without its needless clones
        return min(self._solutions_within(budget), key=_cost_key, default=None)

    def _solutions_within(self, budget: int) -> list[RematSolution]:
        """Return the solutions within the budget."""
        return [found for found in self.solutions if found.peak <= budget]

    def _search_budget(self, budget: int) -> None:
        """Search from all starts, then improve the cheapest solutions."""
        times = min(MOST_TIMES, max(1, NODES // max(1, len(self.level.names))))
        brought = dict.fromkeys(self._descend_from_each([*self._start_clones(budget)], budget, 0))
        best = sorted((found for found in brought if found.peak <= budget), key=_cost_key)[:IMPROVED]
        self._descend_from_each([found.clones for found in best], budget, self.effort * times)

    def _descend_from_each(self, starts: Sequence[Clones], budget: int, effort: int) -> list[RematSolution]:
        """Search from each start in parallel with `effort` evaluations of improvement; return the new solutions."""
        with ThreadPoolExecutor(CORES) as cores:
            running = [cores.submit(self._descend_from, clones, budget, effort) for clones in starts]
            with self._interruptible():
                wait(running)
        before = len(self.solutions)
        for each in running:
            with self._interruptible():
                self.solutions.append(each.result())
        return self.solutions[before:]

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Turn Ctrl-C into the end of the search instead of the program."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def is_over(self) -> bool:
        """True if the search was ended early."""
        return self.interrupted or self.should_stop()

    def lowest_peak_solution(self) -> RematSolution:
        """Return the solution with the lowest peak."""
        return min(self.solutions, key=lambda found: (found.peak, found.seconds))

    def checkpoint_solutions(self) -> list[RematSolution]:
        """Return the solutions with checkpoints alone, one for each number of segments."""
        return [self._evaluate(clones) for clones in self._segments]

    def _start_clones(self, budget: int) -> Iterable[Clones]:
        """Yield the clones to start from: none, the best known solutions, and the likeliest checkpoints."""
        yield NO_CLONES
        fitting = self._solutions_within(budget)
        above = [each for each in self.solutions if each.peak > budget]
        if fitting:
            yield min(fitting, key=_cost_key).clones
        if above:
            yield min(above, key=lambda found: (found.peak, found.seconds)).clones
        ranked = sorted(self.checkpoint_solutions(), key=lambda found: (max(found.peak, budget), found.seconds))
        yield from (found.clones for found in ranked[:LIKELY_STARTS])

    def _descend_from(self, start: Clones, budget: int, effort: int) -> RematSolution:
        """Return the solution reached from one start."""
        if self.is_over():
            return self._evaluate(start)
        pairs, _ = self._core.within(budget, sorted(start), 0, effort, self.is_over)
        return self._evaluate(frozenset(pairs))

    def _evaluate(self, clones: Clones) -> RematSolution:
        """Return the clones with peak and seconds."""
        peak, nanoseconds = self._core.figures(sorted(clones))
        return RematSolution(clones, peak, nanoseconds * 1e-9)


def _cost_key(solution: RematSolution) -> tuple[float, int]:
    """Return the sort key of a solution: seconds, then peak."""
    return solution.seconds, solution.peak


def compiled_problem(level: RematProblem) -> _search.Level:
    """Return the problem in the form of the compiled search."""
    blocks = level.blocks
    return _search.level(
        blocks.nbytes,
        [b in blocks.kept for b in range(len(blocks.nbytes))],
        blocks.read,
        level.cloned,
        blocks.born,
        level.renewed,
        [_flatten_pairs(pairs) for pairs in blocks.inplace],
        [_flatten_pairs(pairs) for pairs in blocks.update_in_place],
        blocks.extra,
        level.wasted,
        [round(seconds * 1e9) for seconds in level.seconds],
        level.latest,
        level.away,
        level.steady + sum(blocks.nbytes[b] for b in blocks.live_in),
    )


def _flatten_pairs(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the pairs as a flat list."""
    return [b for pair in pairs for b in pair]

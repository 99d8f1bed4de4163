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
from sublet.passes.recompute.level import NONE, Clones, Level

STRETCHES = (2, 3, 4, 6, 8, 11, 16, 23, 32)
LIKELY = 3
"""Checkpoint solutions used as starts: the cheapest within the budget, or the closest to the budget."""

HALVINGS = 3
"""Maximum number of intermediate budgets for a budget not met, while the peak keeps falling."""

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
class Found:
    """A set of clones, the estimated peak of live bytes, and the seconds of all nodes."""

    clones: Clones
    peak: int
    seconds: float


@dataclass
class Search:
    """A search over one problem, remembering results: a larger budget never has a costlier answer than a smaller.

    should_stop  polled regularly; True ends the search with the best result so far
    interrupted  True if Ctrl-C ended the search
    """

    level: Level
    effort: int = EFFORT
    stopped: Stop = lambda: False
    found: list[Found] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._core = core_of(self.level)
        self.found.append(self._figures(NONE))
        self._segments = [frozenset(self._core.segments(count)) for count in STRETCHES]

    def roughly(self, budget: int) -> Found | None:
        """Return the cheapest solution within the budget, from the plain program alone and without improvement."""
        if self.found[0].peak > budget:
            self._from_each([NONE], budget, 0)
        return min(self._fitting(budget), key=_cheapest, default=None)

    def within(self, budget: int) -> Found | None:
        """Return the cheapest solution found with at most `budget` live bytes; None if none was found."""
        if self.found[0].peak > budget and not self.over():
            self._try(budget)
        for _ in range(HALVINGS):  # a budget far below the best peak stops early: try one halfway first
            least = self.lowest().peak
            if self._fitting(budget) or self.over():
                break
            self._try((budget + least) // 2)
            self._try(budget)
            if self.lowest().peak == least:
                break
        return min(self._fitting(budget), key=_cheapest, default=None)

    def _fitting(self, budget: int) -> list[Found]:
        """Return the solutions within the budget."""
        return [found for found in self.found if found.peak <= budget]

    def _try(self, budget: int) -> None:
        """Search from all starts, then improve the cheapest solutions."""
        times = min(MOST_TIMES, max(1, NODES // max(1, len(self.level.names))))
        brought = dict.fromkeys(self._from_each([*self._starts(budget)], budget, 0))
        best = sorted((found for found in brought if found.peak <= budget), key=_cheapest)[:IMPROVED]
        self._from_each([found.clones for found in best], budget, self.effort * times)

    def _from_each(self, starts: Sequence[Clones], budget: int, effort: int) -> list[Found]:
        """Search from each start in parallel with `effort` evaluations of improvement; return the new solutions."""
        with ThreadPoolExecutor(CORES) as cores:
            running = [cores.submit(self._from, clones, budget, effort) for clones in starts]
            with self._interruptible():
                wait(running)
        before = len(self.found)
        for each in running:
            with self._interruptible():
                self.found.append(each.result())
        return self.found[before:]

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Turn Ctrl-C into the end of the search instead of the program."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def over(self) -> bool:
        """True if the search was ended early."""
        return self.interrupted or self.stopped()

    def lowest(self) -> Found:
        """Return the solution with the lowest peak."""
        return min(self.found, key=lambda found: (found.peak, found.seconds))

    def segmented(self) -> list[Found]:
        """Return the solutions with checkpoints alone, one for each number of segments."""
        return [self._figures(clones) for clones in self._segments]

    def _starts(self, budget: int) -> Iterable[Clones]:
        """Yield the clones to start from: none, the best known solutions, and the likeliest checkpoints."""
        yield NONE
        fitting = self._fitting(budget)
        above = [each for each in self.found if each.peak > budget]
        if fitting:
            yield min(fitting, key=_cheapest).clones
        if above:
            yield min(above, key=lambda found: (found.peak, found.seconds)).clones
        ranked = sorted(self.segmented(), key=lambda found: (max(found.peak, budget), found.seconds))
        yield from (found.clones for found in ranked[:LIKELY])

    def _from(self, start: Clones, budget: int, effort: int) -> Found:
        """Return the solution reached from one start."""
        if self.over():
            return self._figures(start)
        pairs, _ = self._core.within(budget, sorted(start), 0, effort, self.over)
        return self._figures(frozenset(pairs))

    def _figures(self, clones: Clones) -> Found:
        """Return the clones with peak and seconds."""
        peak, nanoseconds = self._core.figures(sorted(clones))
        return Found(clones, peak, nanoseconds * 1e-9)


def _cheapest(found: Found) -> tuple[float, int]:
    """Return the sort key of a solution: seconds, then peak."""
    return found.seconds, found.peak


def core_of(level: Level) -> _search.Level:
    """Return the problem in the form of the compiled search."""
    blocks = level.blocks
    return _search.level(
        blocks.nbytes,
        [b in blocks.kept for b in range(len(blocks.nbytes))],
        blocks.read,
        level.cloned,
        blocks.born,
        level.renewed,
        [_flat(pairs) for pairs in blocks.over],
        [_flat(pairs) for pairs in blocks.at_home],
        blocks.extra,
        level.wasted,
        [round(seconds * 1e9) for seconds in level.seconds],
        level.latest,
        level.away,
        level.steady + sum(blocks.nbytes[b] for b in blocks.present),
    )


def _flat(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the pairs as a flat list."""
    return [b for pair in pairs for b in pair]

"""What to compute again so that no more than a number of bytes is alive: the cheapest found.

Each start is brought within the budget, step by step the clone that takes most off for its time, then freed of what
is not needed; the cheapest two are improved by ruin and recreate, both at once on two cores. Starts are nothing;
checkpoints in 2, 3, 4, 6, ... stretches; and what was found for other budgets. Evaluations are counted, so results do
not depend on the clock.
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
"""Starts by checkpoints that are followed for a budget: those that need least in it, or come nearest."""

HALVINGS = 3
"""Times that what was not met is approached, as long as that comes nearer."""

IMPROVED = 2
"""Of those that were brought within it the cheapest are improved."""

CORES = 2
"""Starts that are followed at once."""

EFFORT = 25_000
"""Evaluations for the improvement of each."""

NODES, MOST_TIMES = 1000, 4
"""A level of fewer nodes has as many times more evaluations, as each takes less time; no more often than that."""

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Found:
    """Clones, the bytes alive at the peak as estimated, and the seconds of all nodes."""

    clones: Clones
    peak: int
    seconds: float


@dataclass
class Search:
    """A search over one level. It remembers what it found: a budget is never answered worse than a smaller one was.

    stopped      asked once in a while; True ends the search with what it has
    interrupted  whether it was, by Ctrl-C; it then ends with what it has
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
        """As `within`, from the plain program alone, without any improvement."""
        if self.found[0].peak > budget:
            self._from_each([NONE], budget, 0)
        return min(self._fitting(budget), key=_cheapest, default=None)

    def within(self, budget: int) -> Found | None:
        """The cheapest found with no more than so many bytes alive; None where none was found."""
        if self.found[0].peak > budget and not self.over():
            self._try(budget)
        for _ in range(HALVINGS):  # what reaches for too little stops early: come nearer first
            least = self.lowest().peak
            if self._fitting(budget) or self.over():
                break
            self._try((budget + least) // 2)
            self._try(budget)
            if self.lowest().peak == least:
                break
        return min(self._fitting(budget), key=_cheapest, default=None)

    def _fitting(self, budget: int) -> list[Found]:
        return [found for found in self.found if found.peak <= budget]

    def _try(self, budget: int) -> None:
        times = min(MOST_TIMES, max(1, NODES // max(1, len(self.level.names))))
        brought = dict.fromkeys(self._from_each([*self._starts(budget)], budget, 0))
        best = sorted((found for found in brought if found.peak <= budget), key=_cheapest)[:IMPROVED]
        self._from_each([found.clones for found in best], budget, self.effort * times)

    def _from_each(self, starts: Sequence[Clones], budget: int, effort: int) -> list[Found]:
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
        """Ctrl-C ends the search, not the program."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def over(self) -> bool:
        """Whether the search was ended early."""
        return self.interrupted or self.stopped()

    def lowest(self) -> Found:
        """The one with the fewest bytes alive."""
        return min(self.found, key=lambda found: (found.peak, found.seconds))

    def segmented(self) -> list[Found]:
        """What checkpoints alone give, in each number of stretches."""
        return [self._figures(clones) for clones in self._segments]

    def _starts(self, budget: int) -> Iterable[Clones]:
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
        if self.over():
            return self._figures(start)
        pairs, _ = self._core.within(budget, sorted(start), 0, effort, self.over)
        return self._figures(frozenset(pairs))

    def _figures(self, clones: Clones) -> Found:
        peak, nanoseconds = self._core.figures(sorted(clones))
        return Found(clones, peak, nanoseconds * 1e-9)


def _cheapest(found: Found) -> tuple[float, int]:
    return found.seconds, found.peak


def core_of(level: Level) -> _search.Level:
    """The level in the form of the compiled search."""
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
    return [b for pair in pairs for b in pair]

"""A budget of bytes: what is computed again so that a plan fits it, and what that costs.

Nothing fits that was not planned and checked: what the search finds by estimate is planned for real, and where the
arena comes out larger, asked for again with as much less. Between the proven floor and the least that was found nothing
is known, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic

from sublet.analysis.options import Options
from sublet.base.bytesize import parse_bytes
from sublet.errors import PlanError
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ops.nn.conversion import RELOAD
from sublet.packing.problem import MAX_SIZE
from sublet.passes.recompute.clones import Again, read_by_somebody, recomputed
from sublet.passes.recompute.floor import Floor, floor
from sublet.passes.recompute.least_time import least_extra_seconds
from sublet.passes.recompute.level import Clones, level_of
from sublet.passes.recompute.offload import candidates, is_offload, with_offloads
from sublet.passes.recompute.search import EFFORT, Found, Search
from sublet.plan import MemoryPlan
from sublet.planning.budget.costs import MODELLED, modelled
from sublet.planning.pipeline import plan_memory

MOST_BOUNDED = 4000
"""Nodes of a level whose extra time is bounded below."""

TRIES = 4
"""Plans for one budget: the estimate is exact nearly always."""


LARGEST_BY = 256
"""How many times smaller than the largest value those may be that are brought to a slow memory."""


class Outcome(StrEnum):
    """What is known of a network and a number of bytes."""

    FITS = "fits"
    NOT_FOUND = "not_found"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Point:
    """A program that was planned and checked: with these nodes computed again, in so many bytes and seconds."""

    model: Model
    plan: MemoryPlan
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the arena that the network runs in."""
        return self.plan.arenas[0].nbytes

    @property
    def away(self) -> int:
        """The bytes of the slow memory."""
        return self.plan.arena_bytes - self.nbytes

    @property
    def brought_back(self) -> int:
        """How often a value is brought back from the slow memory."""
        return sum(node.op == RELOAD for node in self.model.graph.nodes)

    @property
    def again(self) -> int:
        """How many nodes are computed once more, or later."""
        return len(self.model.recipe.again) - self.brought_back


@dataclass(frozen=True)
class Answer:
    """What came of a budget: the cheapest point found within it, or the one that needs fewest bytes."""

    budget: int
    outcome: Outcome
    point: Point
    plain: Point
    floor: Floor
    costs: str
    least_seconds: float | None = None
    ended_early: bool = False

    @property
    def least_extra(self) -> float | None:
        """As `extra`, a bound: no program in this order, each node run where it stands, costs less. None: not known."""
        if self.least_seconds is None or not self.plain.seconds:
            return None
        return self.least_seconds / self.plain.seconds

    @property
    def extra(self) -> float:
        """The seconds more than those of the plain program, as a share of these."""
        return self.point.seconds / self.plain.seconds - 1 if self.plain.seconds else 0.0

    @property
    def words(self) -> str:
        """The answer, for people."""
        least = f"{self.point.nbytes:,} bytes"
        if self.outcome is Outcome.IMPOSSIBLE:
            return f"{self.budget:,} bytes are impossible: {self.floor.words}"
        if self.outcome is Outcome.NOT_FOUND:
            found = f"the least found needs {least}, with {self.extra:.1%} more time predicted ({self.costs})"
            ended = " before the search was ended" if self.ended_early else ""
            return f"no program within {self.budget:,} bytes was found{ended}; {found}; {self.floor.words}"
        if not self.point.model.recipe.again:
            return f"the arena fits: {least}, nothing is computed again"
        done = f"{self.point.again} nodes are computed once more, or later"
        if self.point.brought_back:
            done += f", {self.point.brought_back} values brought back from {self.point.away:,} bytes of slow memory"
        told = f"the arena fits: {least} instead of {self.plain.nbytes:,}; {done}"
        bound = "" if self.least_extra is None else f", no less than {self.least_extra:.1%} in this order"
        return f"{told}: {self.extra:.1%} more time predicted{bound} ({self.costs})"


def most(budget: int | str) -> int:
    """The bytes of a budget, which may be written as "400MiB". Raises SubletError for what is none."""
    nbytes = parse_bytes(budget) if isinstance(budget, str) else budget
    if type(nbytes) is not int or nbytes < 0:
        raise PlanError(f"budget={budget!r} must be a number of bytes, or text such as '400MiB'")
    return nbytes


Planned = Callable[[Again], tuple[Model, MemoryPlan]]
"""The model with these nodes computed again, and its plan."""


@dataclass
class Budgets:
    """Answers for one model and one way of planning. It keeps what it planned: a larger budget never costs more time.

    Of two memory regions the first is the one that the network runs in, which the budgets are for, and the second has
    a rate: values may be brought there and back, each transfer by itself, for its bytes at that rate.

    seconds  of each node of the root level by name; where nobody gives them, by the model of `costs`

    planned  makes the plan of what was found, where that takes more than planning
    """

    model: Model
    options: Options = field(default_factory=Options)
    seconds: Mapping[str, float] | None = None
    costs: str = MODELLED
    planned: Planned | None = None
    effort: int = EFFORT

    def __post_init__(self) -> None:
        regions = self.options.regions
        slow = regions[1] if len(regions) == 2 and regions[1].rate and not regions[0].rate else None
        if self.options.streams != 1 or (regions and slow is None):
            raise PlanError(
                "values are computed again for one stream and one memory, or one and a second with bytes a second "
                "(host=8GiB@10GB/s): drop streams and other regions"
            )
        if self.model.recipe.again:
            raise PlanError("this model computes values again already: give it as it was before")
        graph, bound = self.model.graph, {"io_bound": self.options.io == "bound"}
        bound["weights_bound"] = self.options.weights == "bound"
        wide = graph if slow is None else with_offloads(graph, candidates(graph, _least(graph)))
        transfers = {n.name: n.uses[0].nbytes / slow.rate for n in wide.nodes if is_offload(n)} if slow else {}
        seconds = {**modelled(wide), **(self.seconds or {}), **transfers}
        self.floor = floor(graph, **bound, offloading=slow is not None)
        end = None if self.options.timeout is None else monotonic() + self.options.timeout
        self.search = Search(
            level_of(wide, seconds, **bound), self.effort, lambda: end is not None and monotonic() > end
        )
        self.plain = self._point(self.search.found[0])
        self.points: dict[Clones, Point] = {frozenset(): self.plain}

    def within(self, budget: int) -> Answer:
        """The cheapest program found that fits so many bytes."""
        if budget < self.floor.nbytes and self.plain.nbytes > budget:
            lowest = min(self.points.values(), key=lambda point: (point.nbytes, point.seconds))
            return self._answer(budget, Outcome.IMPOSSIBLE, lowest)
        if not self._fitting(budget):
            self._search(budget)
        fitting = self._fitting(budget)
        if fitting:
            return self._answer(budget, Outcome.FITS, min(fitting, key=lambda p: (p.seconds, p.nbytes)))
        self._plan(self.search.lowest())
        lowest = min(self.points.values(), key=lambda point: (point.nbytes, point.seconds))
        return self._answer(budget, Outcome.NOT_FOUND, lowest)

    def frontier(self, budgets: Sequence[int], told: Callable[[int], None] = lambda budget: None) -> tuple[Answer, ...]:
        """The answers for several budgets, the largest first; each is asked for by itself, and the cheapest is taken.

        An interrupt or time limit ends the search; what was found until then is told.
        """
        wanted = sorted(set(budgets), reverse=True)
        for budget in wanted:
            told(budget)
            if self.plain.nbytes > budget >= self.floor.nbytes:
                self._search(budget)
        return tuple(self.within(budget) for budget in wanted)

    def _search(self, budget: int) -> None:
        """Plans what the search finds for so many bytes, and for as many less as the plan needs more."""
        target = budget
        for _ in range(TRIES):
            found = self.search.within(target)
            if found is None:
                return
            over = self._plan(found).nbytes - budget
            if over <= 0:
                return
            target = min(target, found.peak) - over

    def _plan(self, found: Found) -> Point:
        if found.clones not in self.points:
            self.points[found.clones] = self._point(found)
        return self.points[found.clones]

    def _point(self, found: Found) -> Point:
        make = self.planned or self._made
        again = tuple(read_by_somebody(self.model.graph, self.search.level.again(found.clones)))
        model, plan = make(again)
        return Point(model, plan, found.seconds)

    def _made(self, again: Again) -> tuple[Model, MemoryPlan]:
        model = with_again(self.model, again)
        return model, plan_memory(model, roomy(self.options))

    def _fitting(self, budget: int) -> list[Point]:
        return [point for point in self.points.values() if point.nbytes <= budget]

    def _answer(self, budget: int, outcome: Outcome, point: Point) -> Answer:
        bounded = outcome is Outcome.FITS and not self.options.regions and len(self.search.level.names) <= MOST_BOUNDED
        least = least_extra_seconds(self.search.level, budget) if bounded else None
        return Answer(budget, outcome, point, self.plain, self.floor, self.costs, least, self.search.over())


def roomy(options: Options) -> Options:
    """The options for plans that are held against a budget: a memory to offload to, and the one before it, are as large
    as may be."""
    if not any(region.rate for region in options.regions):
        return options
    return replace(options, regions=tuple(replace(region, capacity=MAX_SIZE) for region in options.regions))


def _least(graph: Graph) -> int:
    """The bytes from which on bringing a value away is tried: a small share of the largest."""
    return max((value.nbytes for value in graph.values() if value.plannable), default=0) // LARGEST_BY


def with_again(model: Model, again: Again) -> Model:
    """The model with these nodes computed again, and its recipe."""
    recipe = replace(model.recipe, again=tuple(again))
    return replace(model, graph=recomputed(model.graph, again), recipe=recipe)

"""A budget of bytes: what is computed again, and in pieces, so that a plan fits it, and what that costs.

Nothing fits that was not planned and checked: what the search finds by estimate is planned for real, and where the
arena comes out larger, asked for again with as much less. Between the proven floor and the least that was found nothing
is known, and nothing is claimed. Where one node alone takes most of the budget, nodes are done in pieces too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.packing import Region, slow_region
from sublet.packing.problem import MAX_SIZE
from sublet.passes.recompute.clones import Again, read_by_somebody, recomputed
from sublet.passes.recompute.floor import Floor, floor
from sublet.passes.recompute.least_time import least_extra_seconds
from sublet.passes.recompute.level import Clones, level_of
from sublet.passes.recompute.offload import candidates, is_offload, with_offloads
from sublet.passes.recompute.search import EFFORT, Found, Search
from sublet.passes.splitting.choose import SHARES, proposals
from sublet.passes.splitting.pieces import Splits, Splitted, splitted
from sublet.plan import MemoryPlan
from sublet.planning.budget.answers import Answer, Outcome, Point
from sublet.planning.budget.costs import MODELLED, modelled
from sublet.planning.pipeline import plan_memory

MOST_BOUNDED = 4000
"""Nodes of a level whose extra time is bounded below."""

TRIES = 4
"""Plans for one budget: the estimate is exact nearly always."""

LARGEST_BY = 256
"""How many times smaller than the largest value those may be that are brought to a slow memory."""

MOST_OF_IT = 0.75
"""Nodes are done in pieces where one alone takes more than this share of the budget."""

MOST_FINER = 2
"""Of the ways to do nodes in pieces so many are searched, and more where these do not fit."""

MOST_NODES = 1500
"""Nodes of a program in pieces, or twice as many as there are: more take long to search."""


ROUNDING = 1e-6
"""A bound on seconds that is above them by such a share is the same."""


@dataclass(frozen=True)
class Ways:
    """How a changed model is made ready to be planned.

    source  the model before that: what is changed
    ready   gives the model with what its kernels ask for
    """

    source: Model
    ready: Callable[[Model], Model] = lambda model: model


@dataclass
class Budgets:
    """Answers for one model and one way of planning. It keeps what it planned: a larger budget never costs more time.

    Of two memory regions the first is the one that the network runs in, which the budgets are for, and the second has
    a rate: values may be brought there and back, each transfer by itself, for its bytes at that rate. No node is done
    in pieces then.

    seconds  of each node of the root level by name; where nobody gives them, by the model of `costs`
    ways     how models with nodes computed again come about, where that takes more than writing their graph
    planned  the plan of the model as it is, where there is one
    until    when to end the search; None for the time limit of the options from now on
    """

    model: Model
    options: Options = field(default_factory=Options)
    seconds: Mapping[str, float] | None = None
    costs: str = MODELLED
    ways: Ways | None = None
    effort: int = EFFORT
    until: float | None = None
    planned: MemoryPlan | None = None

    def __post_init__(self) -> None:
        slow = _slow(self.options)
        if self.model.recipe.again:
            raise PlanError("this model computes values again already: give it as it was before")
        graph, bound = self.model.graph, self._bound
        wide = graph if slow is None else with_offloads(graph, candidates(graph, _least(graph)))
        transfers = {n.name: n.uses[0].nbytes / slow.rate for n in wide.nodes if is_offload(n)} if slow else {}
        seconds = {**modelled(wide), **(self.seconds or {}), **transfers}
        self.floor = floor(graph, **bound, offloading=slow is not None)
        if self.until is None and self.options.timeout is not None:
            self.until = monotonic() + self.options.timeout
        self.search = Search(level_of(wide, seconds, **bound), self.effort, self._late)
        self.plain = self._point(self.search.found[0])
        self.points: dict[Clones, Point] = {frozenset(): self.plain}
        self.finer: dict[Splits, Budgets] = {}
        """The same with some nodes in pieces, as far as that was tried."""
        self._floors: dict[Splits, Floor] = {}

    @property
    def _bound(self) -> dict[str, bool]:
        return {"io_bound": self.options.io == "bound", "weights_bound": self.options.weights == "bound"}

    def _late(self) -> bool:
        return self.until is not None and monotonic() > self.until

    def within(self, budget: int) -> Answer:
        """The cheapest program found that fits so many bytes."""
        self._look_for(budget)
        if not self._fitting(budget) or self._narrow(budget):
            self._look_finer(budget)
        return self._answer(budget)

    def frontier(self, budgets: Sequence[int], told: Callable[[int], None] = lambda budget: None) -> tuple[Answer, ...]:
        """The answers for several budgets, the largest first; each is asked for by itself, and the cheapest is taken.

        An interrupt or time limit ends the search; what was found until then is told.
        """
        wanted = sorted(set(budgets), reverse=True)
        for budget in wanted:
            told(budget)
            if self.plain.nbytes > budget:
                if budget >= self.floor.nbytes:
                    self._search(budget)
                if not self._fitting(budget) or self._narrow(budget):
                    self._look_finer(budget)
        return tuple(self._answer(budget) for budget in wanted)

    def over(self) -> bool:
        """Whether a search was ended early."""
        return self.search.over() or any(each.search.over() for each in self.finer.values())

    def _narrow(self, budget: int) -> bool:
        """Whether one node alone takes most of a budget that the plain plan does not fit."""
        return self.plain.nbytes > budget and self.floor.nbytes > MOST_OF_IT * budget

    def _look_for(self, budget: int) -> None:
        if budget >= self.floor.nbytes and not self._fitting(budget):
            self._search(budget)

    def _look_finer(self, budget: int) -> None:
        """Does nodes in pieces: first as for another budget, then as this one asks for."""
        if self.model.recipe.split or self.options.regions:
            return
        _look_for_in(list(self.finer.values()), budget)
        if any(each._fitting(budget) and not each._narrow(budget) for each in self.finer.values()):
            return
        more: list[Budgets] = []
        for share in SHARES:
            for splits in proposals(self._source.graph, budget, share):
                if splits not in self.finer and not self.over() and self._may_fit(splits, budget):
                    self.finer[splits] = self._in_pieces(splits)
                    more.append(self.finer[splits])
        _look_for_in(more, budget)

    def _may_fit(self, splits: Splits, budget: int) -> bool:
        if splits not in self._floors:
            self._floors[splits] = floor(splitted(self._source.graph, splits).graph, **self._bound)
        pieces = sum(count for _, _, count in splits)
        small = pieces <= max(MOST_NODES, len(self._source.graph.nodes))
        return small and self._floors[splits].nbytes <= budget

    def _in_pieces(self, splits: Splits) -> Budgets:
        made = splitted(self._source.graph, splits)
        recipe = replace(self._source.recipe, split=tuple(splits))
        source = replace(self._source, graph=made.graph, recipe=recipe)
        ready = self.ways.ready if self.ways else Ways(source).ready
        seconds = None if self.seconds is None else _of_pieces(self._source.graph, made, self.seconds)
        return Budgets(ready(source), self.options, seconds, self.costs, Ways(source, ready), self.effort, self.until)

    @property
    def _source(self) -> Model:
        return self.ways.source if self.ways else self.model

    def _search(self, budget: int) -> None:
        """Plans what the search finds for so many bytes, and for as many less as the plan needs more."""
        target = budget
        for _ in range(TRIES):
            found = self.search.within(target)
            if found is None:
                self._plan(self.search.lowest())
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
        again = tuple(read_by_somebody(self.model.graph, self.search.level.again(found.clones)))
        if not again:
            return Point(self.model, self.planned or plan_memory(self.model, roomy(self.options)), found.seconds)
        model = with_again(self._source, again)
        model = self.ways.ready(model) if self.ways else model
        return Point(model, plan_memory(model, roomy(self.options)), found.seconds)

    def _fitting(self, budget: int) -> list[Point]:
        return [point for point in self.points.values() if point.nbytes <= budget]

    def _answer(self, budget: int) -> Answer:
        """The cheapest of all that is known, or the one that needs fewest bytes."""
        every: list[Budgets] = [self, *self.finer.values()]
        fitting = [(point, each) for each in every for point in each._fitting(budget)]
        if fitting:
            point, found = min(fitting, key=lambda pair: (pair[0].seconds, pair[0].nbytes))
            least = found._least_seconds(budget)
            if least is not None:
                least = min(least, point.seconds) if least <= point.seconds * (1 + ROUNDING) else None
            return self._of(budget, Outcome.FITS, point, least)
        lowest = _lowest(point for each in every for point in each.points.values())
        may = budget >= self.floor.nbytes or any(budget >= each.nbytes for each in self._floors.values())
        return self._of(budget, Outcome.NOT_FOUND if may else Outcome.IMPOSSIBLE, lowest)

    def _least_seconds(self, budget: int) -> float | None:
        if self.options.regions or len(self.search.level.names) > MOST_BOUNDED:
            return None
        least = least_extra_seconds(self.search.level, budget)
        return None if least is None else self.plain.seconds + least

    def _of(self, budget: int, outcome: Outcome, point: Point, least: float | None = None) -> Answer:
        finer = min(self._floors.values(), key=lambda each: each.nbytes, default=None)
        return Answer(budget, outcome, point, self.plain, self.floor, self.costs, least, self.over(), finer)


def _look_for_in(ways: Sequence[Budgets], budget: int) -> None:
    """Searches the ways that are cheapest roughly, and where these do not fit, the others one by one."""
    able = [each for each in ways if budget >= each.floor.nbytes]
    rough = [each.search.roughly(budget) for each in able]
    ranked = sorted(zip(able, rough, strict=True), key=lambda pair: inf if pair[1] is None else pair[1].seconds)
    for i, (each, found) in enumerate(ranked):
        likely = i < MOST_FINER and found is not None
        if likely or not any(other._fitting(budget) for other in able):
            each._look_for(budget)


def _of_pieces(graph: Graph, made: Splitted, seconds: Mapping[str, float]) -> dict[str, float]:
    """The seconds of nodes that are as they were, and of pieces their shares; a new node may be called as one was."""
    before = {node.name: node.op for node in graph.nodes}
    kept = {n.name: seconds[n.name] for n in made.graph.nodes if before.get(n.name) == n.op and n.name in seconds}
    return kept | {name: seconds[node] * share for name, (node, share) in made.shares.items() if node in seconds}


def roomy(options: Options) -> Options:
    """The options for plans that are held against a budget: a memory to offload to, and the one before it, are as large
    as may be."""
    if slow_region(options.regions) is None:
        return options
    return replace(options, regions=tuple(replace(region, capacity=MAX_SIZE) for region in options.regions))


def _slow(options: Options) -> Region | None:
    """The memory that values may be brought to. Raises PlanError for streams and other regions."""
    regions = options.regions
    slow = slow_region(regions)
    if options.streams != 1 or (regions and (len(regions) != 2 or slow is not regions[1])):
        raise PlanError(
            "values are computed again for one stream and one memory, or one and a second with bytes a second "
            "(host=8GiB@10GB/s): drop streams and other regions"
        )
    return slow


def _least(graph: Graph) -> int:
    """The bytes from which on bringing a value away is tried: a small share of the largest."""
    return max((value.nbytes for value in graph.values() if value.plannable), default=0) // LARGEST_BY


def _lowest(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: (point.nbytes, point.seconds))


def with_again(model: Model, again: Again) -> Model:
    """The model with these nodes computed again, and its recipe."""
    recipe = replace(model.recipe, again=tuple(again))
    return replace(model, graph=recomputed(model.graph, again), recipe=recipe)

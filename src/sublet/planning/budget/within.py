"""Budget search: rematerialization and splitting of nodes under a memory budget, at the least cost in time.

A program fits only if its plan was made and checked. The search works on an estimate; if the arena of the plan exceeds
the budget, the search runs again with a target reduced by the excess. Between the proven floor and the smallest program
found, nothing is known and nothing is claimed. If a single node takes most of the budget, the search also splits nodes
into pieces.
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
from sublet.ir.recipe import AS_IS
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
"""Nodes of a level. For a larger level, no lower bound on the time is computed."""

TRIES = 4
"""Plans for a budget. The estimate is nearly always exact."""

LARGEST_BY = 256
"""Values down to this fraction of the largest value may be offloaded: 1/256."""

MOST_OF_IT = 0.75
"""Share of the budget. If a single node takes more, nodes are split."""

MOST_FINER = 2
"""Splits searched for a budget; more are searched only if no program fits."""

MOST_NODES = 1500
"""Pieces of all split nodes, or as many as the program has nodes: more take long to search."""


ROUNDING = 1e-6
"""Relative tolerance: a lower bound on seconds above the seconds by less is taken as equal."""


@dataclass(frozen=True)
class Ways:
    """The preparation of a changed model for planning.

    source   the model before the preparation: changes apply to it
    prepare  returns the model prepared, with the scratch memory of the kernels
    """

    source: Model
    ready: Callable[[Model], Model] = lambda model: model


@dataclass
class Budgets:
    """A search for programs of one model within memory budgets, under fixed options.

    The search keeps every plan it made, so a larger budget never costs more time. With two memory regions, the budgets
    apply to the first, in which the network runs. The second must have a rate; values may be moved to it and back, and
    each transfer costs its bytes at that rate. With two regions, no node is split. A model that already recomputes
    values counts as a plain program, see `as_source`.

    seconds      of each node of the root level, by name; by default from the cost model
    preparation  the preparation of models with recomputed nodes, if more than the graph must change
    known_plan   the plan of the unchanged model, if available
    deadline     the time at which to end the search; None for the time limit of the options, from now on
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
            self.model = as_source(self.model)
            self.ways = None if self.ways is None else replace(self.ways, source=as_source(self.ways.source))
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
        """The searches with split nodes, by split, as far as tried."""
        self._floors: dict[Splits, Floor] = {}

    @property
    def _bound(self) -> dict[str, bool]:
        """The options of the floor and the search: inputs and outputs bound, weights bound."""
        return {"io_bound": self.options.io == "bound", "weights_bound": self.options.weights == "bound"}

    def _late(self) -> bool:
        """True if the deadline has passed."""
        return self.until is not None and monotonic() > self.until

    def within(self, budget: int) -> Answer:
        """Return the cheapest program found within `budget` bytes, or the program with the fewest bytes."""
        self._look_for(budget)
        if not self._fitting(budget) or self._narrow(budget):
            self._look_finer(budget)
        return self._answer(budget)

    def frontier(self, budgets: Sequence[int], told: Callable[[int], None] = lambda budget: None) -> tuple[Answer, ...]:
        """Return the results for several budgets, the largest budget first.

        Each budget gets a separate search; each result is the cheapest program found by any of them.

        `told` is called with each budget before its search. An interrupt or the time limit ends the search; the results
        then hold the programs found until then.
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
        """True if a search was ended early, by an interrupt or by the time limit."""
        return self.search.over() or any(each.search.over() for each in self.finer.values())

    def _narrow(self, budget: int) -> bool:
        """True if a single node takes most of a budget that the plain plan exceeds."""
        return self.plain.nbytes > budget and self.floor.nbytes > MOST_OF_IT * budget

    def _look_for(self, budget: int) -> None:
        """Search a program for the budget, unless one is known or none exists."""
        if budget >= self.floor.nbytes and not self._fitting(budget):
            self._search(budget)

    def _look_finer(self, budget: int) -> None:
        """Search programs with split nodes: first with the splits of earlier budgets, then with new splits."""
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
        """True if a split is small enough to search, and its lower bound is within the budget."""
        if splits not in self._floors:
            self._floors[splits] = floor(splitted(self._source.graph, splits).graph, **self._bound)
        pieces = sum(count for _, _, count in splits)
        small = pieces <= max(MOST_NODES, len(self._source.graph.nodes))
        return small and self._floors[splits].nbytes <= budget

    def _in_pieces(self, splits: Splits) -> Budgets:
        """Return a budget search for the model with split nodes."""
        made = splitted(self._source.graph, splits)
        recipe = replace(self._source.recipe, split=tuple(splits))
        source = replace(self._source, graph=made.graph, recipe=recipe)
        ready = self.ways.ready if self.ways else Ways(source).ready
        seconds = None if self.seconds is None else _of_pieces(self._source.graph, made, self.seconds)
        return Budgets(ready(source), self.options, seconds, self.costs, Ways(source, ready), self.effort, self.until)

    @property
    def _source(self) -> Model:
        """The model before any preparation."""
        return self.ways.source if self.ways else self.model

    def _search(self, budget: int) -> None:
        """Plan the programs found for a budget, lowering the target by the excess of each plan."""
        target = budget
        for _ in range(TRIES):
            found = self.search.within(target)
            if found is None:
                self._plan(self.search.lowest())
                return
            excess = self._plan(found).nbytes - budget
            if excess <= 0:
                return
            target = min(target, found.peak) - excess

    def _plan(self, found: Found) -> Point:
        """Return the planned program of a search result, planning each set of clones once."""
        if found.clones not in self.points:
            self.points[found.clones] = self._point(found)
        return self.points[found.clones]

    def _point(self, found: Found) -> Point:
        """Plan the program of a search result."""
        again = tuple(read_by_somebody(self.model.graph, self.search.level.again(found.clones)))
        if not again:
            return Point(self.model, self.planned or plan_memory(self.model, roomy(self.options)), found.seconds)
        model = with_again(self._source, again)
        model = self.ways.ready(model) if self.ways else model
        return Point(model, plan_memory(model, roomy(self.options)), found.seconds)

    def _fitting(self, budget: int) -> list[Point]:
        """Return the planned programs within the budget."""
        return [point for point in self.points.values() if point.nbytes <= budget]

    def _answer(self, budget: int) -> Answer:
        """Return the cheapest planned program within the budget, or the program with the fewest bytes."""
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
        """Return the lower bound on the time within the budget; None for memory regions or too many nodes."""
        if self.options.regions or len(self.search.level.names) > MOST_BOUNDED:
            return None
        least = least_extra_seconds(self.search.level, budget)
        return None if least is None else self.plain.seconds + least

    def _of(self, budget: int, outcome: Outcome, point: Point, least: float | None = None) -> Answer:
        """Return the result record for a planned program."""
        finer = min(self._floors.values(), key=lambda each: each.nbytes, default=None)
        return Answer(budget, outcome, point, self.plain, self.floor, self.costs, least, self.over(), finer)


def _look_for_in(ways: Sequence[Budgets], budget: int) -> None:
    """Search the cheapest splits by a rough estimate; if no program fits, search the other splits in turn."""
    able = [each for each in ways if budget >= each.floor.nbytes]
    rough = [each.search.roughly(budget) for each in able]
    ranked = sorted(zip(able, rough, strict=True), key=lambda pair: inf if pair[1] is None else pair[1].seconds)
    for i, (each, found) in enumerate(ranked):
        likely = i < MOST_FINER and found is not None
        if likely or not any(other._fitting(budget) for other in able):
            each._look_for(budget)


def _of_pieces(graph: Graph, made: Splitted, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the nodes after a split: unchanged nodes keep their seconds, pieces take their shares.

    A node counts as unchanged if its name and op are the same, since a new node may reuse a name.
    """
    before = {node.name: node.op for node in graph.nodes}
    kept = {n.name: seconds[n.name] for n in made.graph.nodes if before.get(n.name) == n.op and n.name in seconds}
    return kept | {name: seconds[node] * share for name, (node, share) in made.shares.items() if node in seconds}


def roomy(options: Options) -> Options:
    """Return the options for plans compared with a budget: with a slow memory, all regions get unlimited capacity."""
    if slow_region(options.regions) is None:
        return options
    return replace(options, regions=tuple(replace(region, capacity=MAX_SIZE) for region in options.regions))


def _slow(options: Options) -> Region | None:
    """Return the slow memory region, or None. Raises PlanError for several streams and for other memory regions."""
    regions = options.regions
    slow = slow_region(regions)
    if options.streams != 1 or (regions and (len(regions) != 2 or slow is not regions[1])):
        raise PlanError(
            "values are computed again for one stream and one memory, or one and a second with bytes a second "
            "(host=8GiB@10GB/s): drop streams and other regions"
        )
    return slow


def _least(graph: Graph) -> int:
    """Return the least bytes of a value to offload: a small share of the largest value."""
    return max((value.nbytes for value in graph.values() if value.plannable), default=0) // LARGEST_BY


def _lowest(points: Iterable[Point]) -> Point:
    """Return the planned program with the fewest bytes, and then the least time."""
    return min(points, key=lambda point: (point.nbytes, point.seconds))


def as_source(model: Model) -> Model:
    """Return the model as it is read from the text form of its graph: clones and pieces are nodes like any others.

    A recipe records one round of clones, of the graph after all passes. The recipe of a further round therefore starts
    from the graph with the clones of the rounds before it, which is the graph that `sublet.to_text` writes.
    """
    recipe = replace(model.recipe, optimize=AS_IS, by="", changed="", split=(), again=())
    return replace(model, recipe=recipe)


def with_again(model: Model, again: Again) -> Model:
    """Return the model with the nodes in `again` recomputed, also recorded in the recipe."""
    recipe = replace(model.recipe, again=tuple(again))
    return replace(model, graph=recomputed(model.graph, again), recipe=recipe)

"""Budget search: rematerialization and splitting of nodes under a memory budget, at the least cost in time.

A program fits only if its plan was made and checked. The search works on an estimate; if the arena of the plan exceeds
the budget, the search runs again with a target reduced by the excess. Between the proven floor and the smallest program
found, nothing is known and nothing is claimed. If a single node takes most of the budget, the search also splits nodes
into pieces. Where the search for a budget fails, a search at the proven floors, the same for every budget, answers
instead: a budget that is not met names the program with the fewest bytes of that search, so every budget of at least
these bytes is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.packing import MemoryRegion, slow_region
from sublet.packing.problem import MAX_SIZE
from sublet.passes.recompute.memory_bound import MemoryBound, memory_bound_of
from sublet.passes.recompute.remat_problem import Clones, remat_problem_of
from sublet.passes.recompute.remat_search import EFFORT, RematSearch, RematSolution
from sublet.passes.recompute.rematerialize import (
    Rematerializations,
    effective_pairs,
    is_offload,
    offload_candidates,
    with_offloads,
    with_rematerialization,
)
from sublet.passes.recompute.time_bound import least_extra_seconds
from sublet.passes.splitting.propose_splits import SHARES, propose_splits
from sublet.passes.splitting.split_nodes import SplitGraph, Splits, split_nodes
from sublet.plan import MemoryPlan
from sublet.planning.budget.cost_model import MODELLED_COSTS, modelled_seconds
from sublet.planning.budget.result import BudgetResult, PlannedProgram, SearchOutcome
from sublet.planning.pipeline import plan_memory

MAX_BOUNDED_NODES = 4000
"""Nodes of a level. For a larger level, no lower bound on the time is computed."""

PLANS_PER_BUDGET = 4
"""Plans for a budget. The estimate is nearly always exact."""

OFFLOAD_FRACTION = 256
"""Values down to this fraction of the largest value may be offloaded: 1/256."""

DOMINANT_SHARE = 0.75
"""Share of the budget. If a single node takes more, nodes are split."""

SEARCHED_SPLITS = 2
"""Splits searched for a budget; more are searched only if no program fits."""

MAX_PIECES = 1500
"""Pieces of all split nodes, or as many as the program has nodes: more take long to search."""


ROUNDING_TOLERANCE = 1e-6
"""Relative tolerance: a lower bound on seconds above the seconds by less is taken as equal."""


@dataclass(frozen=True)
class ModelPreparation:
    """The preparation of a changed model for planning.

    source   the model before the preparation: changes apply to it
    prepare  returns the model prepared, with the scratch memory of the kernels
    """

    source: Model
    prepare: Callable[[Model], Model] = lambda model: model


@dataclass
class BudgetSearch:
    """A search for programs of one model within memory budgets, under fixed options.

    The search keeps every plan it made, so a larger budget never costs more time. With two memory regions, the budgets
    apply to the first, in which the network runs. The second must have a rate; values may be moved to it and back, and
    each transfer costs its bytes at that rate. With two regions, no node is split. A model that already recomputes
    values counts as a plain program, see `as_source`.

    seconds      of each node of the root level, by name; by default from the cost model
    preparation  the preparation of models with recomputed nodes, if more than the graph must change
    known_plan   the plan of the unchanged model, if available
    deadline     the time at which to end the search; None for the time limit of the options, from now on
    planned      the planned programs by splits and clones, shared by the searches of one model
    needed       names of values that every program must place: a program with only pieces of such a value is no answer
    """

    model: Model
    options: Options = field(default_factory=Options)
    seconds: Mapping[str, float] | None = None
    costs: str = MODELLED_COSTS
    preparation: ModelPreparation | None = None
    effort: int = EFFORT
    deadline: float | None = None
    known_plan: MemoryPlan | None = None
    planned: dict[tuple[Splits, Clones], PlannedProgram] = field(default_factory=dict, repr=False)
    needed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        slow = _slow_region_of(self.options)
        if self.model.recipe.again:
            self.model = as_source(self.model)
            self.preparation = (
                None
                if self.preparation is None
                else replace(self.preparation, source=as_source(self.preparation.source))
            )
        graph = self.model.graph
        wide = graph if slow is None else with_offloads(graph, offload_candidates(graph, _min_offload_bytes(graph)))
        transfers = {n.name: n.uses[0].nbytes / slow.rate for n in wide.nodes if is_offload(n)} if slow else {}
        seconds = {**modelled_seconds(wide), **(self.seconds or {}), **transfers}
        self.floor = memory_floor(graph, self.options)
        if self.deadline is None and self.options.timeout is not None:
            self.deadline = monotonic() + self.options.timeout
        self.search = RematSearch(
            remat_problem_of(wide, seconds, **_bound_storages(self.options)), self.effort, self._is_past_deadline
        )
        self.programs: dict[Clones, PlannedProgram] = {}
        self.plain = self._plan_once(self.search.solutions[0])
        self.split_searches: dict[Splits, BudgetSearch] = {}
        """The searches with split nodes, by split, as far as tried."""
        self._split_floors: dict[Splits, MemoryBound] = {}
        self._floor_search: BudgetSearch | None = None

    def _is_past_deadline(self) -> bool:
        """True if the deadline has passed."""
        return self.deadline is not None and monotonic() > self.deadline

    def best_within(self, budget: int) -> BudgetResult:
        """Return the cheapest program found within `budget` bytes, or the program with the fewest bytes.

        A budget of at least the bytes of a program returned for another budget as the program with the fewest bytes is
        met, in this search and in any other of the same model, unless a search ended early.
        """
        self._search_if_needed(budget)
        if not self._programs_within(budget) or self._is_dominated_by_node(budget):
            self._search_splits(budget)
        self._search_floors_if_needed(budget)
        return self._result_for(budget)

    def frontier(
        self, budgets: Sequence[int], progress: Callable[[int], None] = lambda budget: None
    ) -> tuple[BudgetResult, ...]:
        """Return the results for several budgets, the largest budget first.

        Each budget gets a separate search; each result is the cheapest program found by any of them.

        The method calls `progress` with each budget before its search. An interrupt or the time limit ends the search;
        the results then hold the programs found until then.
        """
        wanted = sorted(set(budgets), reverse=True)
        for budget in wanted:
            progress(budget)
            if self.plain.nbytes > budget:
                if budget >= self.floor.nbytes:
                    self._search_and_plan(budget)
                if not self._programs_within(budget) or self._is_dominated_by_node(budget):
                    self._search_splits(budget)
        for budget in wanted:
            self._search_floors_if_needed(budget)
        return tuple(self._result_for(budget) for budget in wanted)

    def has_ended_early(self) -> bool:
        """True if a search was ended early, by an interrupt or by the time limit."""
        return any(each.search.is_over() for each in self._searches())

    def _is_dominated_by_node(self, budget: int) -> bool:
        """True if a single node takes most of a budget that the plain plan exceeds."""
        return self.plain.nbytes > budget and self.floor.nbytes > DOMINANT_SHARE * budget

    def _search_if_needed(self, budget: int) -> None:
        """Search a program for the budget, unless one is known or none exists."""
        if budget >= self.floor.nbytes and not self._programs_within(budget):
            self._search_and_plan(budget)

    def _search_floors_if_needed(self, budget: int) -> None:
        """Search from a new start at the proven floors, highest first, unless the budget is met or below all floors."""
        if self._fitting_programs(budget) or self._floor_search is not None or self.has_ended_early():
            return
        floors = list(self._floors())
        if budget >= floors[-1]:
            search = self._floor_search = replace(self)
            search._search_if_needed(floors[0])
            for each in floors:
                search._search_splits(each)

    def _floors(self) -> Iterator[int]:
        """Yield the floor of the nodes, then ever lower floors of splits proposed for the floor before."""
        floor, lower = inf, self.floor.nbytes
        while lower < floor:
            floor = lower
            yield floor
            lower = min((self._split_floors[each].nbytes for each in self._propose_splits(floor)), default=floor)

    def _search_splits(self, budget: int) -> None:
        """Search programs with split nodes: first with the splits of earlier budgets, then with new splits."""
        _search_each(list(self.split_searches.values()), budget)
        if any(
            each._programs_within(budget) and not each._is_dominated_by_node(budget)
            for each in self.split_searches.values()
        ):
            return
        more: list[BudgetSearch] = []
        for splits in self._propose_splits(budget):
            if splits not in self.split_searches and not self.has_ended_early():
                self.split_searches[splits] = self._split_search(splits)
                more.append(self.split_searches[splits])
        _search_each(more, budget)

    def _propose_splits(self, budget: int) -> Iterator[Splits]:
        """Yield the splits for a budget that are small enough to search, with a lower bound within the budget."""
        if self.model.recipe.split or self.options.regions:
            return
        graph = self._source_model.graph
        for share in SHARES:
            for splits in propose_splits(graph, budget, share):
                if splits not in self._split_floors:
                    self._split_floors[splits] = memory_floor(split_nodes(graph, splits).graph, self.options)
                pieces = sum(count for _, _, count in splits)
                if pieces <= max(MAX_PIECES, len(graph.nodes)) and self._split_floors[splits].nbytes <= budget:
                    yield splits

    def _split_search(self, splits: Splits) -> BudgetSearch:
        """Return a budget search for the model with split nodes."""
        made = split_nodes(self._source_model.graph, splits)
        recipe = replace(self._source_model.recipe, split=tuple(splits))
        source = replace(self._source_model, graph=made.graph, recipe=recipe)
        ready = self.preparation.prepare if self.preparation else ModelPreparation(source).prepare
        seconds = None if self.seconds is None else _seconds_after_split(self._source_model.graph, made, self.seconds)
        return BudgetSearch(
            ready(source),
            self.options,
            seconds,
            self.costs,
            ModelPreparation(source, ready),
            self.effort,
            self.deadline,
            planned=self.planned,
            needed=self.needed,
        )

    @property
    def _source_model(self) -> Model:
        """The model before any preparation."""
        return self.preparation.source if self.preparation else self.model

    def _search_and_plan(self, budget: int) -> None:
        """Plan the programs found for a budget, lowering the target by the excess of each plan."""
        target = budget
        for _ in range(PLANS_PER_BUDGET):
            found = self.search.solve(target)
            if found is None:
                self._plan_once(self.search.lowest_peak_solution())
                return
            excess = self._plan_once(found).nbytes - budget
            if excess <= 0:
                return
            target = min(target, found.peak) - excess

    def _plan_once(self, solution: RematSolution) -> PlannedProgram:
        """Return the planned program of a search result, planning each set of clones once."""
        key = self.model.recipe.split, solution.clones
        if key not in self.planned:
            self.planned[key] = self._plan_program(solution)
        program = self.planned[key]
        if self.needed <= {placement.value for placement in program.plan.placements}:
            self.programs[solution.clones] = program
        return program

    def _plan_program(self, solution: RematSolution) -> PlannedProgram:
        """Plan the program of a search result."""
        again = tuple(effective_pairs(self.model.graph, self.search.level.named_pairs(solution.clones)))
        if not again:
            return PlannedProgram(
                self.model,
                self.known_plan or plan_memory(self.model, with_unlimited_regions(self.options)),
                solution.seconds,
            )
        model = with_recomputation(self._source_model, again)
        model = self.preparation.prepare(model) if self.preparation else model
        return PlannedProgram(model, plan_memory(model, with_unlimited_regions(self.options)), solution.seconds)

    def _programs_within(self, budget: int) -> list[PlannedProgram]:
        """Return the planned programs within the budget."""
        return [point for point in self.programs.values() if point.nbytes <= budget]

    def _searches(self) -> list[BudgetSearch]:
        """Return all searches: of this model, with split nodes, and from a new start at the floors."""
        again = [] if self._floor_search is None else self._floor_search._searches()
        return [self, *self.split_searches.values(), *again]

    def _fitting_programs(self, budget: int) -> list[tuple[PlannedProgram, BudgetSearch]]:
        """Return the planned programs of all searches within the budget."""
        return [(point, each) for each in self._searches() for point in each._programs_within(budget)]

    def _result_for(self, budget: int) -> BudgetResult:
        """Return the cheapest planned program within the budget, or the program with the fewest bytes."""
        fitting = self._fitting_programs(budget)
        if fitting:
            point, found = min(fitting, key=lambda pair: (pair[0].seconds, pair[0].nbytes))
            least = found._bound_seconds(budget)
            if least is not None:
                least = min(least, point.seconds) if least <= point.seconds * (1 + ROUNDING_TOLERANCE) else None
            return self._make_result(budget, SearchOutcome.FITS, point, least)
        last = self._floor_search or self
        lowest = _smallest_program(point for each in last._searches() for point in each.programs.values())
        may = budget >= self.floor.nbytes or any(budget >= each.nbytes for each in self._split_floors.values())
        return self._make_result(budget, SearchOutcome.NOT_FOUND if may else SearchOutcome.IMPOSSIBLE, lowest)

    def _bound_seconds(self, budget: int) -> float | None:
        """Return the lower bound on the time within the budget; None for memory regions or too many nodes."""
        if self.options.regions or len(self.search.level.names) > MAX_BOUNDED_NODES:
            return None
        least = least_extra_seconds(self.search.level, budget)
        return None if least is None else self.plain.seconds + least

    def _make_result(
        self, budget: int, outcome: SearchOutcome, point: PlannedProgram, least_seconds: float | None = None
    ) -> BudgetResult:
        """Return the result record for a planned program."""
        finer = min(self._split_floors.values(), key=lambda each: each.nbytes, default=None)
        return BudgetResult(
            budget, outcome, point, self.plain, self.floor, self.costs, least_seconds, self.has_ended_early(), finer
        )


def memory_floor(graph: Graph, options: Options) -> MemoryBound:
    """Return the bytes that any order and any recomputation of the nodes need; splits of nodes may need less."""
    return memory_bound_of(graph, **_bound_storages(options), offloading=bool(options.regions))


def _bound_storages(options: Options) -> dict[str, bool]:
    """Return the options of a floor and a search: inputs and outputs bound, weights bound."""
    return {"io_bound": options.io == "bound", "weights_bound": options.weights == "bound"}


def _search_each(ways: Sequence[BudgetSearch], budget: int) -> None:
    """Search the cheapest splits by a rough estimate; if no program fits, search the other splits in turn."""
    able = [each for each in ways if budget >= each.floor.nbytes]
    rough = [each.search.solve_roughly(budget) for each in able]
    ranked = sorted(zip(able, rough, strict=True), key=lambda pair: inf if pair[1] is None else pair[1].seconds)
    for i, (each, found) in enumerate(ranked):
        likely = i < SEARCHED_SPLITS and found is not None
        if likely or not any(other._programs_within(budget) for other in able):
            each._search_if_needed(budget)


def _seconds_after_split(graph: Graph, split: SplitGraph, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the nodes after a split: unchanged nodes keep their seconds, pieces take their shares.

    A node counts as unchanged if its name and op are the same, since a new node may reuse a name.
    """
    before = {node.name: node.op for node in graph.nodes}
    kept = {n.name: seconds[n.name] for n in split.graph.nodes if before.get(n.name) == n.op and n.name in seconds}
    return kept | {name: seconds[node] * share for name, (node, share) in split.shares.items() if node in seconds}


def with_unlimited_regions(options: Options) -> Options:
    """Return the options for plans compared with a budget: with a slow memory, all regions get unlimited capacity."""
    if slow_region(options.regions) is None:
        return options
    return replace(options, regions=tuple(replace(region, capacity=MAX_SIZE) for region in options.regions))


def _slow_region_of(options: Options) -> MemoryRegion | None:
    """Return the slow memory region, or None. Raises PlanError for several streams and for other memory regions."""
    regions = options.regions
    slow = slow_region(regions)
    if options.streams != 1 or (regions and (len(regions) != 2 or slow is not regions[1])):
        raise PlanError(
            "recomputation needs one stream and one memory, or a second memory with bytes a second "
            "(host=8GiB@10GB/s). Remove the other streams and regions."
        )
    return slow


def _min_offload_bytes(graph: Graph) -> int:
    """Return the least bytes of a value to offload: a small share of the largest value."""
    return max((value.nbytes for value in graph.values() if value.plannable), default=0) // OFFLOAD_FRACTION


def _smallest_program(points: Iterable[PlannedProgram]) -> PlannedProgram:
    """Return the planned program with the fewest bytes, and then the least time."""
    return min(points, key=lambda point: (point.nbytes, point.seconds))


def as_source(model: Model) -> Model:
    """Return the model read from the text form of the graph: clones and pieces are nodes like any others.

    A recipe records one round of clones, of the graph after all passes. The recipe of a further round therefore starts
    from the graph with the clones of the rounds before it, which is the graph that `sublet.to_text` writes.
    """
    recipe = replace(model.recipe, optimize=AS_IS, by="", changed="", split=(), again=())
    return replace(model, recipe=recipe)


def with_recomputation(model: Model, again: Rematerializations) -> Model:
    """Return the model with the nodes in `again` recomputed, also recorded in the recipe."""
    recipe = replace(model.recipe, again=tuple(again))
    return replace(model, graph=with_rematerialization(model.graph, again), recipe=recipe)

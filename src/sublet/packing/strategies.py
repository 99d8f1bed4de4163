"""The strategies by name: plain functions from a Problem to a Packing.

A package can add strategies under the entry-point group "sublet.strategies" (name -> function). Entry points
are loaded only when requested by name or listed, and never run by `auto`. `pack` passes normalized problems
(see `normalize`), possibly with pins. Strategies break ties by the position of a buffer;
`pack` first sorts the buffers by id, so that shuffled rows get the same offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from importlib.metadata import entry_points
from math import lcm

import numpy as np

from sublet.base.errors import ProblemError
from sublet.packing.allocation_graph import AllocationGraph, Chain, reuse_order_of
from sublet.packing.bounds import lower_bound
from sublet.packing.conflicts import clusters_of, conflicts_of
from sublet.packing.greedy import (
    best_fit_by_area,
    best_fit_by_interference,
    best_fit_by_lifetime,
    best_fit_by_size,
    first_fit,
    first_fit_by_tightness,
    no_reuse,
    sweep,
)
from sublet.packing.normalize import normalize
from sublet.packing.problem import Packing, Problem
from sublet.packing.search import MOST_OVERLAPS, SEARCH, can_search, search

# A time limit polled by inner loops, for abandoning slow strategies midway.
#
# A strategy is a plain function of the problem. A context variable carries the limit, since the limit is no part of the
# problem.

_DEADLINE: ContextVar[float | None] = ContextVar("sublet_packing_deadline", default=None)


class OutOfTime(Exception):
    """Raised after the time limit; `pack` catches the exception and keeps the best packing found."""


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """Make `stop_when_late` raise inside the block once `time.monotonic()` passes `deadline`."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def is_late() -> bool:
    """True if a limit is set and has passed."""
    deadline = _DEADLINE.get()
    return deadline is not None and time.monotonic() > deadline


def stop_when_late() -> None:
    """Raise OutOfTime when a limit is set and has passed."""
    if is_late():
        raise OutOfTime


# The allocation graph filled by interference: buffers with the most conflicts first.
#
# Follows the first edition of "The NNC Tensor Allocation Algorithm". Each buffer is a candidate by itself, and in
# chains of two or three with larger buffers free of conflict with it. Candidates of one turn are ordered by the largest
# size in the chain, then by the conflicts of the chain, by length, and by positions. The text leaves open which larger
# buffer joins a chain: the implementation takes the largest before and the largest after.

Candidate = tuple[tuple[int, int, int, tuple[int, ...]], Chain]
"""A chain behind what it is ordered by."""


class ChainCandidates:
    """Candidate chains of each cluster: alone, and with larger single buffers (no companions) before and after.

    Buffers only ever leave the set of waiting buffers. The largest neighbour found for a buffer therefore stays the
    largest until the neighbour itself is inserted, and the cached chains stay valid until then.
    """

    def __init__(self, unplaced: Unplaced) -> None:
        self._unplaced = unplaced
        self._index_of = {
            chain.buffers[0]: index
            for index, (chain, cluster) in enumerate(zip(unplaced.chains, unplaced.clusters, strict=True))
            if chain.buffers and len(cluster.members) == 1
        }
        self._degrees: list[int] = unplaced.degrees.tolist()
        order = sorted(self._index_of, key=lambda buffer: (-unplaced.sizes[buffer], -self._degrees[buffer], buffer))
        self._by_size = np.array(order, dtype=np.int64)
        self._larger_than: dict[int, int] = {}  # size -> how many buffers are larger
        for rank, buffer in enumerate(order):
            self._larger_than.setdefault(unplaced.sizes[buffer], rank)
        self._cache: dict[int, tuple[list[int], list[Candidate]]] = {}

    def candidates_around(self, index: int) -> list[Candidate]:
        """Return the chain of cluster `index` alone and, extended by a larger buffer before it, after it, and both."""
        neighbours, candidates = self._cache.get(index, ([], []))
        if not candidates or any(neighbour not in self._unplaced.waiting for neighbour in neighbours):
            before, after = self._largest_neighbours(index)
            neighbours, candidates = [*before, *after], self._candidate_chains(before, index, after)
            self._cache[index] = neighbours, candidates
        return candidates

    def _largest_neighbours(self, index: int) -> tuple[list[int], list[int]]:
        """Return the clusters of the largest waiting buffers able to precede and to follow cluster `index`, if any."""
        chain = self._unplaced.chains[index]
        buffer = chain.buffers[0]
        if buffer not in self._index_of:
            return [], []
        larger = self._by_size[: self._larger_than[chain.size]]
        larger = larger[self._unplaced.is_waiting[larger]]
        before = larger[self._unplaced.reuse_order.hops_to(larger, buffer) > 0]
        after = larger[self._unplaced.reuse_order.hops_from(buffer, larger) > 0]
        return [self._index_of[b] for b in before[:1].tolist()], [self._index_of[b] for b in after[:1].tolist()]

    def _candidate_chains(self, before: list[int], index: int, after: list[int]) -> list[Candidate]:
        chains = self._unplaced.chains
        alone = chains[index]
        longer = [[first, index] for first in before] + [[index, last] for last in after]
        longer += [[first, index, last] for first in before for last in after]
        return [
            self._rank_chain(alone),
            *(self._rank_chain(_concatenate_chains([chains[i] for i in several])) for several in longer),
        ]

    def _rank_chain(self, chain: Chain) -> Candidate:
        conflicts = sum(self._degrees[buffer] for buffer in chain.buffers)
        return (-chain.size, -conflicts, -len(chain.buffers), chain.buffers), chain


def _concatenate_chains(chains: list[Chain]) -> Chain:
    return Chain(
        tuple(chain.buffers[0] for chain in chains),
        max(chain.size for chain in chains),
        lcm(*(chain.alignment for chain in chains)),
    )


def most_conflicts_first(unplaced: Unplaced) -> NextCandidates:
    """Return a candidate order: chains around the waiting buffers with the most conflicts, placed buffers counted."""
    candidates = ChainCandidates(unplaced)
    degrees = unplaced.degrees.tolist()
    degree = [sum(degrees[position] for position in cluster.members) for cluster in unplaced.clusters]

    def turn() -> Iterator[Chain]:
        most = max(degree[index] for index in unplaced.waiting)
        chains: list[Candidate] = []
        for index in unplaced.waiting:
            if degree[index] == most:
                chains += candidates.candidates_around(index)
        return (chain for _, chain in sorted(chains))

    return turn


def allocation_graph_by_interference(problem: Problem) -> Packing:
    """Pack with an allocation graph filled in order of interference."""
    return fill_graph(problem, most_conflicts_first, "allocation_graph_by_interference")


# Filling of an allocation graph: the order of insertion, and the strategy of libnnc.
#
# Each turn has candidates, best first. The first candidate with a fitting edge is inserted; without a fitting edge, the
# first candidate opens a new group.
#
#     allocation_graph   the largest first; ties go to the most conflicts with unplaced buffers,
#                        then to the lowest position (libnnc; second edition of "The NNC Tensor
#                        Allocation Algorithm")


class Unplaced:
    """The buffers still to insert, with the conflicts of each.

    `chains[k]` is the chain inserted for cluster k: one buffer, or its companions in sequence.
    `conflicts_left` counts, for each buffer, the conflicting buffers not placed yet.
    """

    def __init__(self, problem: Problem) -> None:
        conflicts = conflicts_of(problem)
        clusters = clusters_of(problem, conflicts)
        self.reuse_order, orders = reuse_order_of(problem, clusters)
        self.clusters = clusters
        self.chains = [
            Chain(order, cluster.size, cluster.alignment) for order, cluster in zip(orders, clusters, strict=True)
        ]
        self.sizes = [buffer.size for buffer in problem.buffers]
        for chain, cluster in zip(self.chains, clusters, strict=True):
            if len(chain.buffers) == 1:
                self.sizes[chain.buffers[0]] = cluster.size  # the buffer may represent all its companions
        self.degrees = conflicts.degrees()
        self.conflicts_left = self.degrees.copy()
        self.waiting = {index: None for index, chain in enumerate(self.chains) if chain.buffers}
        self.is_waiting = np.zeros(len(self.sizes), dtype=np.bool_)  # indexed by the first buffer of a chain
        self.is_waiting[[chain.buffers[0] for chain in self.chains if chain.buffers]] = True
        self._conflicts = conflicts
        self._cluster_of = {chain.buffers[0]: index for index, chain in enumerate(self.chains) if chain.buffers}

    def remove(self, chain: Chain) -> None:
        """Remove the clusters of an inserted chain from the waiting clusters."""
        for buffer in chain.buffers:
            index = self._cluster_of.get(buffer)
            if index is not None:
                del self.waiting[index]
                self.is_waiting[buffer] = False
                for position in self.clusters[index].members:
                    self.conflicts_left -= self._conflicts.row(position)

    def related_to(self, chain: Chain) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask: True at every buffer before or after some buffer of the chain."""
        everyone = np.arange(len(self.sizes))
        related = np.zeros(len(self.sizes), dtype=np.bool_)
        for buffer in chain.buffers:
            related |= self.reuse_order.hops_to(everyone, buffer) > 0
            related |= self.reuse_order.hops_from(buffer, everyone) > 0
        return related


NextCandidates = Callable[[], Iterator[Chain]]
CandidateOrder = Callable[[Unplaced], NextCandidates]


def fill_graph(problem: Problem, selection: CandidateOrder, strategy: str) -> Packing:
    """Insert all clusters into an allocation graph; `selection` orders the candidates of each turn, best first."""
    unplaced = Unplaced(problem)
    next_turn = selection(unplaced)
    graph = AllocationGraph(unplaced.sizes, unplaced.reuse_order)
    # Edges only ever get narrower: a chain without a fitting edge need not search again before a new group opens.
    hopeless: set[tuple[int, ...]] = set()
    while unplaced.waiting:
        stop_when_late()
        chosen, edge = None, None
        for chain in next_turn():
            chosen = chosen or chain
            if chain.buffers in hopeless:
                continue
            edge = graph.find_edge(chain)
            if edge is not None:
                chosen = chain
                break
            hopeless.add(chain.buffers)
        assert chosen is not None, "every turn offers at least one candidate"
        graph.insert(chosen, edge)
        unplaced.remove(chosen)
        if edge is None and hopeless:
            related = unplaced.related_to(chosen)
            hopeless = {buffers for buffers in hopeless if not related[list(buffers)].any()}
    return _packing_of_graph(problem, unplaced, graph, strategy)


def _packing_of_graph(problem: Problem, unplaced: Unplaced, graph: AllocationGraph, strategy: str) -> Packing:
    """Return the packing: all groups in one arena; buffers without bytes are at offset 0."""
    begins = graph.group_begins()
    offsets = [0] * len(problem.buffers)
    for cluster, chain in zip(unplaced.clusters, unplaced.chains, strict=True):
        if chain.buffers:
            group, offset = graph.placed_at[chain.buffers[0]]
            for position in cluster.members:
                offsets[position] = begins[group] + offset
    ends = (offset + buffer.size for offset, buffer in zip(offsets, problem.buffers, strict=True))
    return Packing(tuple(offsets), max(ends, default=0), strategy)


def largest_first(unplaced: Unplaced) -> NextCandidates:
    """Return a candidate order: all waiting chains of the largest size, most unplaced conflicts first."""
    sizes = np.array([chain.size for chain in unplaced.chains], dtype=np.int64)
    members = [cluster.members for cluster in unplaced.clusters]
    positions = np.array([position for cluster in members for position in cluster], dtype=np.int64)
    firsts = np.cumsum([0, *map(len, members)])[:-1]

    def turn() -> Iterator[Chain]:
        waiting = np.fromiter(unplaced.waiting, dtype=np.int64)
        largest = waiting[sizes[waiting] == sizes[waiting].max()]
        left = np.add.reduceat(unplaced.conflicts_left[positions], firsts)[largest]
        return (unplaced.chains[index] for index in largest[np.lexsort((largest, -left))].tolist())

    return turn


def allocation_graph(problem: Problem) -> Packing:
    """Pack with an allocation graph filled in order of size."""
    return fill_graph(problem, largest_first, "allocation_graph")


Strategy = Callable[[Problem], Packing]
"""A packing strategy: a function from a problem to a packing of its buffers."""

ENTRY_POINTS = "sublet.strategies"


def search_strategy(problem: Problem) -> Packing:
    """Return the packing found by the search from first fit on, with the default effort.

    Raises ProblemError when too many buffers are live together for the search to hold.
    """
    if not can_search(problem):
        raise ProblemError(f"more than {MOST_OVERLAPS} pairs of buffers are live together: too many to search")
    result = search(problem, lower_bound(problem), first_fit(problem))
    return replace(result.packing, strategy=SEARCH)


_BUILT_IN: dict[str, Strategy] = {
    "no_reuse": no_reuse,
    "first_fit": first_fit,
    "first_fit_by_tightness": first_fit_by_tightness,
    "sweep": sweep,
    "best_fit_by_size": best_fit_by_size,
    "best_fit_by_lifetime": best_fit_by_lifetime,
    "best_fit_by_area": best_fit_by_area,
    "best_fit_by_interference": best_fit_by_interference,
    "allocation_graph": allocation_graph,
    "allocation_graph_by_interference": allocation_graph_by_interference,
    SEARCH: search_strategy,
}
WITHOUT_PINS = ("allocation_graph", "allocation_graph_by_interference")
"""Strategies without support for pinned offsets."""


def can_pack(name: str, problem: Problem) -> bool:
    """True if a built-in strategy respects every constraint of the problem."""
    return name not in WITHOUT_PINS or not problem.has_pins


def _accept_any_problem(name: str, strategy: Strategy) -> Strategy:
    """Return a strategy for all problems, given a strategy for normalized problems."""

    @wraps(strategy)
    def pack_normalized(problem: Problem) -> Packing:
        form = normalize(problem)
        if not can_pack(name, form.problem):
            able = ", ".join(other for other in _BUILT_IN if can_pack(other, form.problem))
            raise ProblemError(f"strategy {name} cannot keep pinned offsets. Use auto, {able}.")
        return form.original_packing(strategy(form.problem))

    return pack_normalized


STRATEGIES: dict[str, Strategy] = {name: _accept_any_problem(name, strategy) for name, strategy in _BUILT_IN.items()}


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies: the built-in ones in order, then other packages' by name."""
    foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*STRATEGIES, *sorted(foreign - STRATEGIES.keys()))


def strategy_named(name: str) -> Strategy:
    """Return the strategy with the given name; built-in strategies go first.

    Raises ProblemError listing the known names, or naming the package whose strategy fails to load.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    for point in sorted(entry_points(group=ENTRY_POINTS, name=name), key=lambda point: point.value):
        try:
            strategy: Strategy = point.load()
        except Exception as error:
            raise ProblemError(f"strategy {name} ({point.value}) cannot be loaded: {error!r}") from error
        if not callable(strategy):
            raise ProblemError(f"strategy {name} ({point.value}) is not a function of a Problem")
        return strategy
    raise ProblemError(f"there is no strategy {name!r}; known are auto, {', '.join(strategy_names())}")

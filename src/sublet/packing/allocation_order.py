"""Filling of an allocation graph: the order of insertion, and the strategy of libnnc.

Each turn has candidates, best first. The first candidate with a fitting edge is inserted; without a fitting
edge, the first candidate opens a new group.

    allocation_graph   the largest first; ties go to the most conflicts with unplaced buffers,
                       then to the lowest position (libnnc; second edition of "The NNC Tensor
                       Allocation Algorithm")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sublet.packing.allocation_graph import AllocationGraph, Chain
from sublet.packing.conflicts import clusters_of, conflicts_of
from sublet.packing.deadline import stop_when_late
from sublet.packing.problem import Packing, Problem
from sublet.packing.reuse_order import reuse_order_of


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

"""The allocation graph filled by interference: buffers with the most conflicts first.

Follows the first edition of "The NNC Tensor Allocation Algorithm". Each buffer is a candidate by itself, and in
chains of two or three with larger buffers free of conflict with it. Candidates of one turn are ordered by the
largest size in the chain, then by the conflicts of the chain, by length, and by positions. The text leaves open
which larger buffer joins a chain: the implementation takes the largest before and the largest after.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np

from sublet.packing.allocation_graph import Chain
from sublet.packing.allocation_order import NextCandidates, Unplaced, fill_graph
from sublet.packing.problem import Packing, Problem

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

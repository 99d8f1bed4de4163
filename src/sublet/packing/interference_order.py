"""The allocation graph filled by interference, as in the first edition of "The NNC Tensor Allocation
Algorithm": the buffers with the most conflicts first.

Each of these is a candidate by itself, and in chains of two or three with larger buffers that it does
not conflict with. Candidates of one turn go by the largest size in the chain, then by its conflicts,
its length, and its positions. The text leaves open which larger buffer joins: here the largest before
and the largest after.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np

from sublet.packing.allocation_graph import Chain
from sublet.packing.allocation_order import Turn, Unplaced, fill
from sublet.packing.problem import Packing, Problem
from sublet.packing.succession import Positions


class ChainsOfLarger:
    """The single buffers (no companions) in order of size, to find the largest that fits a chain."""

    def __init__(self, unplaced: Unplaced) -> None:
        self._unplaced = unplaced
        self._index_of = {
            chain.buffers[0]: index
            for index, (chain, cluster) in enumerate(zip(unplaced.chains, unplaced.clusters, strict=True))
            if chain.buffers and len(cluster.members) == 1
        }
        degrees = unplaced.degrees.tolist()
        order = sorted(self._index_of, key=lambda buffer: (-unplaced.sizes[buffer], -degrees[buffer], buffer))
        self._by_size = np.array(order, dtype=np.int64)
        self._larger_than: dict[int, int] = {}  # size -> how many buffers are larger
        for rank, buffer in enumerate(order):
            self._larger_than.setdefault(unplaced.sizes[buffer], rank)

    def around(self, chain: Chain) -> Iterator[Chain]:
        """The chain with a larger buffer before it, after it, and both."""
        buffer = chain.buffers[0]
        if buffer not in self._index_of:
            return
        larger = self._by_size[: self._larger_than[chain.size]]
        larger = larger[self._unplaced.is_waiting[larger]]
        first = self._largest(larger[self._unplaced.succession.hops_to(larger, buffer) > 0])
        last = self._largest(larger[self._unplaced.succession.hops_from(buffer, larger) > 0])
        if first is not None:
            yield _joined(first, chain)
        if last is not None:
            yield _joined(chain, last)
        if first is not None and last is not None:
            yield _joined(first, chain, last)

    def _largest(self, by_size: Positions) -> Chain | None:
        return self._unplaced.chains[self._index_of[int(by_size[0])]] if len(by_size) else None


def _joined(*chains: Chain) -> Chain:
    return Chain(
        tuple(chain.buffers[0] for chain in chains),
        max(chain.size for chain in chains),
        lcm(*(chain.alignment for chain in chains)),
    )


def most_conflicts_first(unplaced: Unplaced) -> Turn:
    """Chains around the waiting buffers with the most conflicts, placed ones counted too."""
    larger = ChainsOfLarger(unplaced)
    degrees = unplaced.degrees.tolist()
    degree = [sum(degrees[position] for position in cluster.members) for cluster in unplaced.clusters]

    def turn() -> Iterator[Chain]:
        most = max(degree[index] for index in unplaced.waiting)
        chains: list[Chain] = []
        for index in unplaced.waiting:
            if degree[index] == most:
                chains.append(unplaced.chains[index])
                chains.extend(larger.around(unplaced.chains[index]))
        chains.sort(key=rank)
        return iter(chains)

    def rank(chain: Chain) -> tuple[int, int, int, tuple[int, ...]]:
        conflicts = sum(degrees[buffer] for buffer in chain.buffers)
        return -chain.size, -conflicts, -len(chain.buffers), chain.buffers

    return turn


def allocation_graph_by_interference(problem: Problem) -> Packing:
    return fill(problem, most_conflicts_first, "allocation_graph_by_interference")

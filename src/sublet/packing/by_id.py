"""Problems with their buffers sorted by id, so that the order of rows in a file does not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sublet.packing.problem import Companion, Packing, Precedence, Problem


def order_by_id(problem: Problem) -> list[int]:
    """Positions in order of id. Shorter ids come first, so that numbers ascend."""
    ids = [buffer.id for buffer in problem.buffers]
    return sorted(range(len(ids)), key=lambda position: (len(ids[position]), ids[position]))


def rearranged(problem: Problem, order: list[int]) -> Problem:
    """The same problem with the buffer at `order[i]` at position i."""
    if order == list(range(len(order))):
        return problem
    rank = {position: rank for rank, position in enumerate(order)}
    precedence = problem.precedence
    if precedence is not None:
        chosen = np.ix_(order, order)
        compatible = None if precedence.compatible is None else precedence.compatible[chosen]
        precedence = Precedence(precedence.distance[chosen], compatible)
    return replace(
        problem,
        buffers=tuple(problem.buffers[position] for position in order),
        precedence=precedence,
        companions=tuple(sorted(Companion(rank[c.first], rank[c.second], c.distance) for c in problem.companions)),
        may_overlap=tuple(sorted((rank[first], rank[second]) for first, second in problem.may_overlap)),
    )


def back_in_order(packing: Packing, order: list[int]) -> Packing:
    """A packing of the rearranged problem as one of the original."""
    offsets = [0] * len(order)
    for rank, position in enumerate(order):
        offsets[position] = packing.offsets[rank]
    return replace(packing, offsets=tuple(offsets))

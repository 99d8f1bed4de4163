"""The canonical order of the buffers of a problem, by id, and sub-problems of selected buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.packing.problem import Companion, Packing, Problem


def order_by_id(problem: Problem) -> list[int]:
    """Return the positions in order of id. Shorter ids come first, so that numbers ascend."""
    ids = [buffer.id for buffer in problem.buffers]
    return sorted(range(len(ids)), key=lambda position: (len(ids[position]), ids[position]))


def select_buffers(problem: Problem, order: Sequence[int]) -> Problem:
    """Return the sub-problem of the buffers at the positions in `order`; buffer `order[i]` moves to position i."""
    rank = {position: rank for rank, position in enumerate(order)}
    ties = [tie for tie in problem.companions if tie.first in rank and tie.second in rank]
    return replace(
        problem,
        buffers=tuple(problem.buffers[position] for position in order),
        precedence=problem.precedence and problem.precedence.select(order),
        companions=tuple(sorted(Companion(rank[tie.first], rank[tie.second], tie.distance) for tie in ties)),
        may_overlap=tuple(sorted((rank[a], rank[b]) for a, b in problem.may_overlap if a in rank and b in rank)),
    )


def restore_order(packing: Packing, order: list[int]) -> Packing:
    """Return a packing of the reordered problem as a packing of the original."""
    offsets = [0] * len(order)
    for rank, position in enumerate(order):
        offsets[position] = packing.offsets[rank]
    return replace(packing, offsets=tuple(offsets))

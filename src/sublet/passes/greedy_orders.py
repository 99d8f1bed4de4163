"""Greedy list schedules of one level. Each scheduler is a function (blocks, data flow, order) -> order.

A forward schedule picks the ready node with the least growth of live bytes. A backward schedule picks the candidate for
the last position with the fewest live bytes before the node. The given order breaks ties.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.passes.live_bytes import LiveBlocks

Priority = tuple[int, ...]
"""A priority. The smallest is scheduled first; the position breaks ties."""


@dataclass(frozen=True)
class DataFlow:
    """The predecessors (`before`) and successors (`after`) of each node, by position."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def least_growth_first(growth: int, place: int) -> Priority:
    """Return a priority by growth of live bytes alone."""
    return growth, place


def shrinking_first(growth: int, place: int) -> Priority:
    """Return a priority putting nodes that free bytes first, and the remaining nodes in the given order."""
    return (0, growth, place) if growth < 0 else (1, 0, place)


def forward_scheduler(
    key: Callable[[int, int], Priority],
) -> Callable[[LiveBlocks, DataFlow, Sequence[int]], list[int]]:
    """Return a scheduler building the order from the first node on."""

    def order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
        place = _positions(current)
        waiting = [len(readers) for readers in blocks.readers]
        pending = [set(readers) for readers in blocks.readers]
        growth = [
            blocks.bytes_defined(i, lambda b: bool(blocks.readers[b]) or b in blocks.kept)
            - sum(blocks.nbytes[b] for b in read if waiting[b] == 1 and b not in blocks.kept)
            for i, read in enumerate(blocks.read)
        ]

        def update_growth(i: int) -> list[int]:
            """Update the growths after node `i` runs; return the nodes with a smaller growth."""
            changed = []
            for block in blocks.read[i]:
                waiting[block] -= 1
                pending[block].discard(i)
                if waiting[block] == 1 and block not in blocks.kept:
                    (last,) = pending[block]
                    growth[last] -= blocks.nbytes[block]
                    changed.append(last)
            return changed

        return _list_schedule(flow.before, flow.after, lambda i: key(growth[i], place[i]), update_growth)

    return order


def backward_scheduler(
    key: Callable[[int, int], Priority],
) -> Callable[[LiveBlocks, DataFlow, Sequence[int]], list[int]]:
    """Return a scheduler building the order from the last node back."""

    def order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
        place = _positions(current)
        alive = [block in blocks.kept for block in range(len(blocks.nbytes))]
        growth = [
            sum(blocks.nbytes[b] for b in read if not alive[b]) - blocks.bytes_defined(i, lambda _: True)
            for i, read in enumerate(blocks.read)
        ]

        def update_growth(i: int) -> list[int]:
            """Update the growths after node `i` is placed; return the nodes with a smaller growth."""
            changed = []
            for block in blocks.read[i]:
                if not alive[block]:
                    alive[block] = True
                    for reader in blocks.readers[block]:
                        growth[reader] -= blocks.nbytes[block]
                        changed.append(reader)
            return changed

        backward = _list_schedule(flow.after, flow.before, lambda i: key(growth[i], -place[i]), update_growth)
        return backward[::-1]

    return order


def _positions(current: Sequence[int]) -> list[int]:
    """Return the position of each node in the given order."""
    place = [0] * len(current)
    for position, i in enumerate(current):
        place[i] = position
    return place


def _list_schedule(
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    key: Callable[[int], Priority],
    ran: Callable[[int], Sequence[int]],
) -> list[int]:
    """Return an order always taking the ready node with the smallest key.

    `before` and `after` are predecessors and successors. `ran(i)` returns the nodes whose keys fall when node `i` runs.
    """
    waiting = [len(predecessors) for predecessors in before]
    ready = [(key(i), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    done = [False] * len(before)
    order: list[int] = []
    while ready:
        queued, i = heapq.heappop(ready)
        if done[i] or queued != key(i):
            continue  # stale entry: the queue holds the node again with the new key
        done[i] = True
        order.append(i)
        for j in ran(i):
            if not done[j] and waiting[j] == 0:
                heapq.heappush(ready, (key(j), j))
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (key(j), j))
    return order


def depth_first_order(blocks: LiveBlocks, flow: DataFlow, current: Sequence[int]) -> list[int]:
    """Return a depth-first order: the operands of a node directly before the node, the largest producers first.

    Roots are the nodes without successors, in the given order.
    """
    place = _positions(current)
    made = [sum(blocks.nbytes[b] for b in born) for born in blocks.born]
    seen: set[int] = set()
    order: list[int] = []
    for root in (i for i in current if not flow.after[i]):
        todo = [(root, False)]
        while todo:
            i, opened = todo.pop()
            if opened:
                order.append(i)
            elif i not in seen:
                seen.add(i)
                todo.append((i, True))
                needed = sorted(flow.before[i], key=lambda j: (made[j], -place[j]))
                todo += [(j, False) for j in needed if j not in seen]
    return order


ORDERS = (
    forward_scheduler(shrinking_first),
    backward_scheduler(shrinking_first),
    forward_scheduler(least_growth_first),
    backward_scheduler(least_growth_first),
    depth_first_order,
)

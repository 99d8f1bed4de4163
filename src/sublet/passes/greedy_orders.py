"""Ways to put the nodes of a level into another order, each a function (blocks, data flow, an order) -> an order.

All are greedy list schedules. Forwards: of the nodes that can run, the one that lets the live bytes grow least.
Backwards: of the nodes that can be last, the one before which the fewest bytes live. Ties are settled by the order
given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.passes.live_bytes import Blocks

Key = tuple[int, ...]


@dataclass(frozen=True)
class DataFlow:
    """For each node those that must run before it, and those that must run after it."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def growth_first(growth: int, place: int) -> Key:
    """The least growth, whatever the order was."""
    return growth, place


def shrinking_first(growth: int, place: int) -> Key:
    """What gives bytes back as soon as it can, the rest as it was."""
    return (0, growth, place) if growth < 0 else (1, 0, place)


def forwards(key: Callable[[int, int], Key]) -> Callable[[Blocks, DataFlow, Sequence[int]], list[int]]:
    """A schedule from the first node on."""

    def order(blocks: Blocks, flow: DataFlow, given: Sequence[int]) -> list[int]:
        place = _places(given)
        waiting = [len(several) for several in blocks.readers]
        pending = [set(several) for several in blocks.readers]
        growth = [
            blocks.made(i, lambda b: bool(blocks.readers[b]) or b in blocks.kept)
            - sum(blocks.nbytes[b] for b in read if waiting[b] == 1 and b not in blocks.kept)
            for i, read in enumerate(blocks.read)
        ]

        def ran(i: int) -> list[int]:
            """The nodes that let the bytes grow less, now that i has run."""
            changed = []
            for block in blocks.read[i]:
                waiting[block] -= 1
                pending[block].discard(i)
                if waiting[block] == 1 and block not in blocks.kept:
                    (last,) = pending[block]
                    growth[last] -= blocks.nbytes[block]
                    changed.append(last)
            return changed

        return _scheduled(flow.before, flow.after, lambda i: key(growth[i], place[i]), ran)

    return order


def backwards(key: Callable[[int, int], Key]) -> Callable[[Blocks, DataFlow, Sequence[int]], list[int]]:
    """A schedule from the last node back."""

    def order(blocks: Blocks, flow: DataFlow, given: Sequence[int]) -> list[int]:
        place = _places(given)
        alive = [block in blocks.kept for block in range(len(blocks.nbytes))]
        growth = [
            sum(blocks.nbytes[b] for b in read if not alive[b]) - blocks.made(i, lambda _: True)
            for i, read in enumerate(blocks.read)
        ]

        def ran(i: int) -> list[int]:
            """The nodes before which fewer bytes more live, now that i is in its place."""
            changed = []
            for block in blocks.read[i]:
                if not alive[block]:
                    alive[block] = True
                    for reader in blocks.readers[block]:
                        growth[reader] -= blocks.nbytes[block]
                        changed.append(reader)
            return changed

        found = _scheduled(flow.after, flow.before, lambda i: key(growth[i], -place[i]), ran)
        return found[::-1]

    return order


def _places(given: Sequence[int]) -> list[int]:
    place = [0] * len(given)
    for position, i in enumerate(given):
        place[i] = position
    return place


def _scheduled(
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    key: Callable[[int], Key],
    ran: Callable[[int], Sequence[int]],
) -> list[int]:
    """Always the node of the least key among those that wait for nobody; keys may fall while they wait."""
    waiting = [len(several) for several in before]
    ready = [(key(i), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    done = [False] * len(before)
    order: list[int] = []
    while ready:
        found, i = heapq.heappop(ready)
        if done[i] or found != key(i):
            continue  # it stands there again, with its new key
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


def depth_first(blocks: Blocks, flow: DataFlow, given: Sequence[int]) -> list[int]:
    """What a node needs right before it, the largest first; from the last node of the order given back."""
    place = _places(given)
    made = [sum(blocks.nbytes[b] for b in born) for born in blocks.born]
    seen: set[int] = set()
    order: list[int] = []
    for root in (i for i in given if not flow.after[i]):
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
    forwards(shrinking_first),
    backwards(shrinking_first),
    forwards(growth_first),
    backwards(growth_first),
    depth_first,
)

"""Races: two steps that nothing orders touch the same bytes, and one of them writes.

Without races every execution that keeps the schedule's order reads what the replay of its listed
order reads, so one replay proves them all. Where pointers depend on the run, a step touches all that it may touch
in any state. A pointer is assigned before it is read, since data are in order; rounds do not overlap, so that
steps of different copies of a body are in order too.

Rule: race.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from sublet.base.errors import Finding
from sublet.checker.accesses import Accesses, Touched
from sublet.checker.cells import Cells
from sublet.checker.layout import span
from sublet.ir.graph import Graph
from sublet.plan import Region
from sublet.plan.schedule import Schedule, happens_before


class Access(NamedTuple):
    """Bytes that the step at position `step` reads, or writes; `within` are the storages that these are a cell in."""

    region: Region
    step: int
    writes: bool
    within: tuple[str, ...]


def check_races(graph: Graph, schedule: Schedule, accesses: Accesses, cells: Cells) -> Iterator[Finding]:
    """Every pair of steps that race, in the graph and its sub-graphs, in any copy of the bodies around them.

    Bytes of a cell are also those of the whole around it, in some round: all of these count, unless both steps
    touch the same cell, which then is one of the same round, or one of them its latest.
    """
    if len({step.stream for step in schedule.steps}) > 1:
        touched = [accesses.of_step.get(step.node, {}) for step in schedule.steps]
        for context in dict.fromkeys(context for contexts in touched for context in contexts):
            yield from _races(schedule, [contexts.get(context, {}) for contexts in touched], cells)
    for node in graph.nodes:
        for sub, body in zip(node.subgraphs, schedule.bodies.get(node.name, ()), strict=True):
            yield from check_races(sub, body, accesses, cells)


def _races(schedule: Schedule, touched: Sequence[Touched], cells: Cells) -> Iterator[Finding]:
    accesses = list(_accesses(touched, cells))
    accesses.sort(key=lambda access: (access.region.storage, access.region.offset, access.step, access.writes))
    reported: set[tuple[int, int]] = set()
    for one, other in _conflicts(accesses, _ordered(schedule)):
        pair = (min(one.step, other.step), max(one.step, other.step))
        if pair not in reported and set(one.within).isdisjoint(other.within):
            reported.add(pair)
            yield _race(schedule, one, other)


def _accesses(touched: Sequence[Touched], cells: Cells) -> Iterator[Access]:
    """What the steps touch: the bytes themselves, and where they lie in a cell the whole around it as well."""
    for step, regions in enumerate(touched):
        for region, writes in regions:
            within: tuple[str, ...] = ()
            for storage, around in cells.around(region):
                yield Access(around, step, writes, within)
                within = (*within, cells.this_round(storage))


def _race(schedule: Schedule, one: Access, other: Access) -> Finding:
    first, second = sorted((one, other), key=lambda access: access.step)
    early, late = (schedule.steps[access.step].node for access in (first, second))
    does = [f"{'writes' if access.writes else 'reads'} {span(access.region)}" for access in (first, second)]
    what = f"{does[1]}, while node {early} {does[0]}; nothing orders the two"
    return Finding("race", f"node {late}", what, f"wait for {early}, or place the values apart")


def _ordered(schedule: Schedule) -> list[int]:
    """For each step, itself and the steps ordered before or after it, as a bit set."""
    position = {step.node: i for i, step in enumerate(schedule.steps)}
    before = happens_before(schedule)
    after = [0] * len(before)
    next_of_stream: dict[int, int] = {}
    for i in range(len(before) - 1, -1, -1):
        step = schedule.steps[i]
        follower = next_of_stream.get(step.stream)
        if follower is not None:
            after[i] |= after[follower] | 1 << follower
        next_of_stream[step.stream] = i
        # Every step that waits for step i comes later in the list, so after[i] is complete here.
        for wait in step.waits:
            after[position[wait]] |= after[i] | 1 << i
    return [before[i] | after[i] | 1 << i for i in range(len(before))]


def _conflicts(accesses: list[Access], ordered: list[int]) -> Iterator[tuple[Access, Access]]:
    """Sweep by address. Yields pairs with common bytes, one a write, by steps that nothing orders."""
    ends: list[tuple[int, int]] = []
    touching, writing = _Steps(), _Steps()
    storage = ""
    for i, access in enumerate(accesses):
        if access.region.storage != storage:
            ends, touching, writing = [], _Steps(), _Steps()
            storage = access.region.storage
        while ends and ends[0][0] <= access.region.offset:
            ended = accesses[heappop(ends)[1]]
            touching.remove(ended.step)
            if ended.writes:
                writing.remove(ended.step)
        racing = (touching if access.writes else writing).mask & ~ordered[access.step]
        if racing:
            for _, j in sorted(ends):
                other = accesses[j]
                if racing >> other.step & 1 and (access.writes or other.writes):
                    yield other, access
        heappush(ends, (access.region.end, i))
        touching.add(access.step)
        if access.writes:
            writing.add(access.step)


class _Steps:
    """A multiset of steps, with the bit set of those in it."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.mask = 0

    def add(self, step: int) -> None:
        self.count[step] += 1
        self.mask |= 1 << step

    def remove(self, step: int) -> None:
        self.count[step] -= 1
        if not self.count[step]:
            self.mask &= ~(1 << step)

"""Races: two steps without an order access the same bytes, and at least one step writes.

Without races every execution in the schedule's order reads the same content as the replay of the listed
order, so one replay proves all executions. For renamed values a step accesses all possible regions of all states.
Every pointer is assigned before its reads, as data flow is ordered; iterations do not overlap, so steps of different
body versions are ordered as well.

Rule: race.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from sublet.base.errors import Finding
from sublet.checker.actions import Action
from sublet.checker.layout import PlanLayout, format_region
from sublet.checker.loop_slices import SliceStorages
from sublet.ir.graph import Graph
from sublet.plan import Context, Region
from sublet.plan.schedule import Schedule, happens_before

# The bytes accessed by every step of a replayed program, for each context.
#
# A step may access different bytes in different states, as a pointer may have several targets; all targets count.

TouchedRegions = dict[tuple[Region, bool], None]
"""Regions read (False) or written (True)."""


@dataclass
class StepAccesses:
    """The regions accessed by steps, by name and context; a step includes its sub-graphs. Empty if `is_disabled`."""

    is_disabled: bool = False
    by_step: dict[str, dict[Context, TouchedRegions]] = field(default_factory=dict)
    _open: list[tuple[TouchedRegions, int]] = field(default_factory=list)

    def begin(self, name: str, context: Context) -> None:
        """Start a step: accesses recorded until `end` belong to the step and to the enclosing steps."""
        if self.is_disabled:
            return
        touched = self.by_step.setdefault(name, {}).setdefault(context, {})
        self._open.append((touched, len(touched)))

    def end(self) -> None:
        """End a step, and add new accesses to the enclosing step, which already has the accesses of earlier replays."""
        if self.is_disabled:
            return
        touched, known = self._open.pop()
        if self._open and len(touched) > known:
            self._open[-1][0].update(touched)

    def note(self, action: Action, here: PlanLayout) -> None:
        """Record the accesses of an action, with values placed as in `here`."""
        if not self._open:
            return
        touched = self._open[-1][0]
        for value in action.reads:
            region = here.region_of(value)
            if region is not None:
                touched[region, False] = None
        for write in action.writes:
            if write.touched:
                touched[write.region, True] = None


class Access(NamedTuple):
    """Bytes read, or written, by the step at position `step`.

    `within` are the slice storages of the access inside the region.
    """

    region: Region
    step: int
    writes: bool
    within: tuple[str, ...]


def check_races(graph: Graph, schedule: Schedule, accesses: StepAccesses, cells: SliceStorages) -> Iterator[Finding]:
    """Yield a finding for every pair of racing steps, in the graph and its sub-graphs, in any body version.

    Bytes of a slice storage are also bytes of the enclosing sequence, in some iteration: an access counts for all
    enclosing regions, unless both steps access the same slice storage (in the same iteration), or its latest row.
    """
    if len({step.stream for step in schedule.steps}) > 1:
        touched = [accesses.by_step.get(step.node, {}) for step in schedule.steps]
        for context in dict.fromkeys(context for contexts in touched for context in contexts):
            yield from _races(schedule, [contexts.get(context, {}) for contexts in touched], cells)
    for node in graph.nodes:
        for sub, body in zip(node.subgraphs, schedule.bodies.get(node.name, ()), strict=True):
            yield from check_races(sub, body, accesses, cells)


def _races(schedule: Schedule, touched: Sequence[TouchedRegions], cells: SliceStorages) -> Iterator[Finding]:
    """Yield a finding for every pair of racing steps of a schedule in a context."""
    accesses = list(_accesses_of_steps(touched, cells))
    accesses.sort(key=lambda access: (access.region.storage, access.region.offset, access.step, access.writes))
    reported: set[tuple[int, int]] = set()
    for one, other in _conflicts(accesses, _ordered_steps(schedule)):
        pair = (min(one.step, other.step), max(one.step, other.step))
        if pair not in reported and set(one.within).isdisjoint(other.within):
            reported.add(pair)
            yield _race(schedule, one, other)


def _accesses_of_steps(touched: Sequence[TouchedRegions], cells: SliceStorages) -> Iterator[Access]:
    """Yield the accesses of steps: the regions themselves, and all enclosing regions of slices."""
    for step, regions in enumerate(touched):
        for region, writes in regions:
            within: tuple[str, ...] = ()
            for storage, around in cells.enclosing_regions(region):
                yield Access(around, step, writes, within)
                within = (*within, cells.current_slice_of(storage))


def _race(schedule: Schedule, one: Access, other: Access) -> Finding:
    """Return the finding for two racing accesses."""
    first, second = sorted((one, other), key=lambda access: access.step)
    early, late = (schedule.steps[access.step].node for access in (first, second))
    does = [f"{'writes' if access.writes else 'reads'} {format_region(access.region)}" for access in (first, second)]
    what = f"{does[1]}, while node {early} {does[0]}; nothing orders the two"
    return Finding("race", f"node {late}", what, f"wait for {early}, or place the values apart")


def _ordered_steps(schedule: Schedule) -> list[int]:
    """Return, for each step, a bit set of the step and all steps ordered before or after the step."""
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
    """Sweep by address. Yield pairs with common bytes, at least one write, and no order between the steps."""
    ends: list[tuple[int, int]] = []
    touching, writing = _StepMultiset(), _StepMultiset()
    storage = ""
    for i, access in enumerate(accesses):
        if access.region.storage != storage:
            ends, touching, writing = [], _StepMultiset(), _StepMultiset()
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


class _StepMultiset:
    """A multiset of steps, with the bit set of its members."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.mask = 0

    def add(self, step: int) -> None:
        """Add a step."""
        self.count[step] += 1
        self.mask |= 1 << step

    def remove(self, step: int) -> None:
        """Remove a step once."""
        self.count[step] -= 1
        if not self.count[step]:
            self.mask &= ~(1 << step)

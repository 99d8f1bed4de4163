"""The order of execution, shared by planner, checker and executor as a single Schedule.

A schedule lists the steps of a graph and of its sub-graphs. The schedule is a partial order: a stream runs the
stream's steps in the order listed, and a step waits for the steps in `waits`. A sub-graph starts after all steps
awaited by its node, and ends before all steps waiting for its node. Iterations of a loop do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """A node and its stream; `waits` names nodes of the same graph, all ended before the step starts."""

    node: str
    stream: int = 0
    waits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The steps of a graph, in an order satisfying all waits, and the schedules of sub-graphs.

    Invariant: every wait names an earlier step; all data dependencies are ordered by `happens_before`.
    `bodies` maps the name of a While or CaseOf node to one schedule a sub-graph.
    """

    steps: tuple[ScheduleStep, ...]
    bodies: Mapping[str, tuple[Schedule, ...]] = field(default_factory=dict)

    @property
    def streams(self) -> int:
        """The number of streams of the graph itself, at least 1."""
        return 1 + max((step.stream for step in self.steps), default=0)


def serial_schedule(graph: Graph) -> Schedule:
    """Return the schedule of a single stream in the order of the graph."""
    return Schedule(
        steps=tuple(ScheduleStep(node.name) for node in graph.nodes),
        bodies={
            node.name: tuple(serial_schedule(sub) for sub in node.subgraphs) for node in graph.nodes if node.subgraphs
        },
    )


def is_serial(schedule: Schedule) -> bool:
    """True if a single stream runs all steps, sub-graphs included."""
    inner = (body for bodies in schedule.bodies.values() for body in bodies)
    return schedule.streams == 1 and all(map(is_serial, inner))


def happens_before(schedule: Schedule) -> list[int]:
    """Return, for each step of a graph, a bit set of the steps certain to end before the step starts.

    Bit j of element i is set when step j happens before step i: through the order of a stream,
    through waits, or through any chain of both.
    """
    position: dict[str, int] = {}
    last_of_stream: dict[int, int] = {}
    before: list[int] = []
    for i, step in enumerate(schedule.steps):
        mask = 0
        sources = [position[name] for name in step.waits]
        if step.stream in last_of_stream:
            sources.append(last_of_stream[step.stream])
        for j in sources:
            mask |= before[j] | 1 << j
        before.append(mask)
        position[step.node] = i
        last_of_stream[step.stream] = i
    return before


# Storage swaps: `update %w = %v, %v = %w` moves no byte if both weights have bound storage.
#
# Double buffering of updated weights: a bound storage need not hold the same value in every run. In a *cycle* (w, v, u)
# of values, after a run w gets the storage of v, v the storage of u, u the storage of w. An update then writes to the
# next storage of its target: the planner and the executor use the updates of `graph_with_swapped_updates`, and after
# the run the storages exchange names.

Cycle = tuple[str, ...]
"""Names of updated values. After a run each value gets the storage of the next value, the last that of the first."""


def next_storages(cycles: Sequence[Cycle]) -> dict[str, str]:
    """Return, for each value in the cycles, the value with the storage it gets after a run."""
    return {name: other for cycle in cycles for name, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True)}


def graph_with_swapped_updates(graph: Graph, cycles: Sequence[Cycle]) -> Graph:
    """Return the graph with each update redirected to the value with the next storage of the target."""
    gets = next_storages(cycles)
    sources = {gets.get(target.name, target.name): source for target, source in graph.updates}
    return replace(graph, updates=tuple((value, sources[value.name]) for value in graph.updated_values))

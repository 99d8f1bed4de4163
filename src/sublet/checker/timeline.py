"""The points of a plan, rebuilt from the graph, the schedule and the body versions declared by the plan.

A point is an atomic event: a node runs, or control flow passes an edge. A loop has the points of each body version.
`MemoryPlan.points` names the same points, and live ranges count in points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.base.errors import Finding
from sublet.ir.dataflow import required_values
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.plan import UPDATE, Context, PlanPoint, RolledLoop
from sublet.plan.schedule import Schedule, happens_before

# The check of a schedule: every node runs once, and data flow is ordered.
#
# Rules: unknown-step, scheduled-twice, unscheduled-node, bad-stream, bad-wait, missing-body (the schedule belongs to
# another graph, and the replay is impossible); missing-wait, check-order (a read may come before the write).

MOST_STREAMS = 1 << 16
"""Streams of one graph. A step in a higher stream is a finding (bad-stream)."""


def check_form(graph: Graph, schedule: Schedule) -> Iterator[Finding]:
    """Yield findings for a schedule of another graph, sub-graphs included."""
    where = f"schedule of {graph.name}"
    nodes = {node.name for node in graph.nodes}
    seen: set[str] = set()
    for step in schedule.steps:
        if step.node not in nodes:
            yield Finding("unknown-step", where, f"runs {step.node}, which is no node of the graph")
        if step.node in seen:
            yield Finding("scheduled-twice", where, f"runs node {step.node} twice")
        for wait in step.waits:
            if wait not in seen:
                what = f"step {step.node} waits for {wait}, which is no earlier step of the graph"
                yield Finding("bad-wait", where, what)
        seen.add(step.node)
        if not 0 <= step.stream < MOST_STREAMS:
            yield Finding(
                "bad-stream", where, f"runs {step.node} in stream {step.stream}", f"expected 0 to {MOST_STREAMS - 1}"
            )
    for name in schedule.bodies:
        if name not in nodes:
            yield Finding(
                "missing-body", where, f"has schedules for the sub-graphs of {name}, which is no node of the graph"
            )
    for node in graph.nodes:
        if node.name not in seen:
            yield Finding("unscheduled-node", where, f"never runs node {node.name}")
        bodies = schedule.bodies.get(node.name, ())
        if len(bodies) != len(node.subgraphs):
            what = f"has {len(bodies)} schedules for the {len(node.subgraphs)} sub-graphs of {node.name}"
            yield Finding("missing-body", where, what)
        for sub, body in zip(node.subgraphs, bodies, strict=False):
            yield from check_form(sub, body)


def check_order(graph: Graph, schedule: Schedule) -> Iterator[Finding]:
    """Yield findings for reads without an order after the write, in the graph and its sub-graphs."""
    yield from _missing_waits(graph, schedule, happens_before(schedule))
    for node in graph.nodes:
        for sub, body in zip(node.subgraphs, schedule.bodies.get(node.name, ()), strict=True):
            yield from check_order(sub, body)
            if isinstance(node, While):
                yield from _check_exit_test(node, body)


def _missing_waits(graph: Graph, schedule: Schedule, before: list[int]) -> Iterator[Finding]:
    """Yield findings for reads of values without an order between producer and reader."""
    position = {step.node: i for i, step in enumerate(schedule.steps)}
    producer = {value.name: node for node in graph.nodes for value in node.defs}
    for node in graph.nodes:
        i = position[node.name]
        for value in required_values(node):
            source = producer.get(value.name)
            if source is not None and not before[i] >> position[source.name] & 1:
                what = f"reads {value} without being ordered after its producer, node {source.name}"
                yield Finding("missing-wait", f"node {node.name}", what, f"wait for {source.name}")


def _check_exit_test(node: While, body: Schedule) -> Iterator[Finding]:
    """Yield findings for nodes of a body not ordered after all nodes before the exit test."""
    before = happens_before(body)
    position = {step.node: i for i, step in enumerate(body.steps)}
    needed = 0
    for early in node.body.nodes[: node.check]:
        needed |= 1 << position[early.name]
    for late in node.body.nodes[node.check :]:
        missing = needed & ~before[position[late.name]]
        if missing:
            first = body.steps[(missing & -missing).bit_length() - 1].node
            what = f"is not ordered after node {first}, which runs before the condition of loop {node.name}"
            yield Finding("check-order", f"node {late.name}", what, f"wait for {first}")


Pairs = tuple[tuple[Value, Value], ...]
Records = Mapping[tuple[str, Context], RolledLoop]


class TooLongError(Exception):
    """The program has more points than the plan lists."""


@dataclass(frozen=True, slots=True)
class TimelineMoment:
    """The event at one point: first the reads, then the writes.

    moves     (source, destination) pairs assigned in parallel to destinations with own bytes
    pointed   the same for renamed destinations: the event writes no bytes
    way       (node, exit number) if the event leaves a loop or branch
    path      the step of every enclosing level of the program, as (level, step), see `CheckerTimeline.levels`
    """

    kind: str
    node: Node | None
    context: Context
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    moves: Pairs = ()
    pointed: Pairs = ()
    way: tuple[str, int] | None = None
    path: tuple[tuple[int, int], ...] = ()

    @property
    def point(self) -> PlanPoint:
        """The event as a point of the plan."""
        return PlanPoint(self.kind, self.node.name if self.node else "", self.context)


@dataclass(frozen=True, slots=True)
class IterationEnd:
    """The end of an iteration: the rolled-loop record, the body version, and the first point of each version."""

    record: RolledLoop | None
    copy: int
    tops: tuple[int, ...]

    def possible_successors(self) -> list[int]:
        """Return the first points of all body versions that may follow."""
        if self.record is None:
            return list(self.tops)
        jumps = [jump.next for jump in self.record.jumps if jump.copy == self.copy]
        return [self.tops[copy] for copy in sorted(set(jumps or [self.record.next_version(self.copy, {})]))]

    def successor(self, ways: Mapping[str, int]) -> int:
        """Return the first point of the next body version, after the exits `ways` of loops and branches."""
        return self.tops[0 if self.record is None else self.record.next_version(self.copy, ways)]


@dataclass
class CheckerTimeline:
    """The points in order, the successors of each point, and the ends of iterations.

    `levels` are the schedules of the program and of its sub-graphs, once for each body version.
    """

    moments: list[TimelineMoment] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    iteration_ends: dict[int, IterationEnd] = field(default_factory=dict)
    levels: list[Schedule] = field(default_factory=list)


def build_timeline(
    graph: Graph, schedule: Schedule, pointers: frozenset[str], records: Records, most: int
) -> CheckerTimeline:
    """Return the points of a program. Raises TooLongError for more than `most` points."""
    writer = _TimelineBuilder(pointers, records, most)
    writer.emit("start", None, (), writes=(*graph.inputs, *graph.weights))
    writer.emit_graph(graph, schedule, ())
    if graph.updates:
        writer.emit_move(UPDATE, None, (), [source for _, source in graph.updates], graph.updated_values)
    writer.emit("end", None, (), (*graph.outputs, *graph.updated_values))
    return writer.result


class _TimelineBuilder:
    """A builder of the timeline: emits points in schedule order, and connects successors."""

    def __init__(self, pointers: frozenset[str], records: Records, most: int) -> None:
        self.result = CheckerTimeline()
        self._pointers = pointers
        self._records = records
        self._most = most
        self._open: list[int] = []  # the predecessors of the next point
        self._path: tuple[tuple[int, int], ...] = ()

    def emit(
        self,
        kind: str,
        node: Node | None,
        context: Context,
        reads: Iterable[Value] = (),
        writes: Iterable[Value] = (),
        moves: Pairs = (),
        pointed: Pairs = (),
        way: tuple[str, int] | None = None,
    ) -> int:
        """Append a point after all open points, and return the number of the new point."""
        number = len(self.result.moments)
        if number == self._most:
            raise TooLongError
        moment = TimelineMoment(kind, node, context, tuple(reads), tuple(writes), moves, pointed, way, self._path)
        self.result.moments.append(moment)
        self.result.followers.append([])
        for point in self._open:
            self.result.followers[point].append(number)
        self._open = [number]
        return number

    def emit_move(
        self,
        kind: str,
        node: Node | None,
        context: Context,
        sources: Sequence[Value],
        targets: Sequence[Value | None],
        reads: Iterable[Value] = (),
        writes: Iterable[Value] = (),
        way: tuple[str, int] | None = None,
    ) -> int:
        """Append a point with a parallel assignment, and return the number of the new point."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]
        moves = tuple(pair for pair in pairs if pair[1].name not in self._pointers)
        pointed = tuple(pair for pair in pairs if pair[1].name in self._pointers)
        written = (*(to for _, to in moves), *writes)
        return self.emit(kind, node, context, (*(source for source, _ in pairs), *reads), written, moves, pointed, way)

    def emit_graph(self, graph: Graph, schedule: Schedule, context: Context) -> None:
        """Append the points of a graph."""
        self.emit_nodes(graph.nodes, schedule, self.add_level(schedule), context)

    def add_level(self, schedule: Schedule) -> int:
        """Append a schedule to the levels, and return the number of the level."""
        self.result.levels.append(schedule)
        return len(self.result.levels) - 1

    def emit_nodes(self, nodes: Sequence[Node], schedule: Schedule, level: int, context: Context) -> None:
        """Append the points of `nodes` in schedule order; the schedule may list further nodes."""
        by_name, path = {node.name: node for node in nodes}, self._path
        for i, step in enumerate(schedule.steps):
            node, self._path = by_name.get(step.node), (*path, (level, i))
            if isinstance(node, While):
                self.emit_loop(node, schedule.bodies[node.name][0], context)
            elif isinstance(node, CaseOf):
                self.emit_branch(node, schedule.bodies[node.name], context)
            elif node is not None:
                self.emit("run", node, context, node.uses, node.defs)
        self._path = path

    def emit_branch(self, node: CaseOf, bodies: Sequence[Schedule], context: Context) -> None:
        """Append the points of a branch: the index, and for each arm its nodes and its end."""
        start, ends = self.emit("branch", node, context, (node.index,)), []
        for way in range(len(node.arms) + bool(node.fallbacks)):
            self._open = [start]
            outputs: Sequence[Value] = node.fallbacks
            if way < len(node.arms):
                self.emit_graph(node.arms[way], bodies[way], context)
                outputs = node.arms[way].outputs
            ends.append(self.emit_move("yield", node, context, outputs, node.outputs, way=(node.name, way)))
        self._open = ends

    def emit_loop(self, node: While, body: Schedule, context: Context) -> None:
        """Append the points of a loop: entry, body versions, transitions between the versions, and exits."""
        stacked = [value for value in node.stacked_outputs if value is not None]
        self.emit_move("enter", node, context, node.inits, node.parameters, writes=stacked)
        record = self._records.get((node.name, context))
        tops, checks, lasts = [], [], []
        for copy in range(1 if record is None else record.copies):
            inside = context if record is None else (*context, (node.name, copy))
            tops.append(len(self.result.moments))
            check, last = self.emit_body_version(node, body, inside, stacked)
            checks.append(check)
            lasts.append(last)
            self._open = []
        for copy, last in enumerate(lasts):
            turn = self.result.iteration_ends[last] = IterationEnd(record, copy, tuple(tops))
            self.result.followers[last] += turn.possible_successors()
        ends = []
        for copy, check in enumerate(checks):
            self._open = [check]
            way = (node.name, copy)
            ends.append(self.emit_move("exit", node, context, node.parameters, node.finals, stacked, way=way))
        self._open = ends

    def emit_body_version(
        self, node: While, body: Schedule, context: Context, stacked: Sequence[Value]
    ) -> tuple[int, int]:
        """Append one body version; return the point of the exit test and the point of the back edge."""
        level = self.add_level(body)
        self.emit("round", node, context, writes=(node.counter,))
        self.emit_nodes(node.body.nodes[: node.check], body, level, context)
        check = self.emit("check", node, context, (node.condition,))
        if node.slices:
            self.emit("fetch", node, context, node.sequences, node.slices)
        self.emit_nodes(node.body.nodes[node.check :], body, level, context)
        return check, self.emit_move("next", node, context, node.updates, node.parameters, (*node.rows, *stacked))

"""The control flow graph of a program under a schedule (as in PaddlePaddle's memory optimisation design).

The program is laid out as a list of points, sub-graphs included, so that loops and branches are
only edges and every later analysis is one plain algorithm over points. Point 0 starts the run (it
defines the inputs and weights), the last point ends it (it uses the outputs).

    branch     start of a CaseOf; uses the index
    yield      end of an arm, or of the way without an arm; moves its results to the outputs
    enter      start of a While; moves the initial values to the parameters
    round      top of every round; defines the counter
    check      reads the condition
    fetch      takes one slice of every sequence
    next       stores the rows; moves the updates to the parameters, all at once
    exit       moves the parameters to the outputs
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.analysis.schedule import Schedule, happens_before
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Moves = tuple[tuple[Value, Value], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of the run: first all `uses` are read, then all `defs` are written.

    `moves` are the (source, destination) pairs of a parallel assignment among them. `path` names
    the step of every graph level the point lies in, as (level, step) pairs from the root down.
    """

    kind: str
    node: Node | None
    uses: tuple[Value, ...]
    defs: tuple[Value, ...]
    moves: Moves
    path: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        name = self.node.name if self.node else ""
        return name if self.kind == "run" else f"{self.kind} {name}".strip()


@dataclass(frozen=True)
class Flow:
    """Points in the order of the schedule, the points that may follow each, and the order between streams.

    `levels[k][i]` is the bit set of steps that happen before step i of graph level k.
    """

    points: tuple[Point, ...]
    followers: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[int, ...], ...]

    @property
    def serial(self) -> bool:
        """Whether every level is totally ordered, so that any two points are."""
        return all(mask == (1 << i) - 1 for level in self.levels for i, mask in enumerate(level))


def flow(graph: Graph, schedule: Schedule) -> Flow:
    """The control flow graph of `graph` when it runs as `schedule` says."""
    builder = _Builder()
    builder.emit("start", None, defs=(*graph.inputs, *graph.weights))
    builder.graph(graph, schedule, ())
    builder.emit("end", None, uses=graph.outputs)
    return Flow(tuple(builder.points), tuple(map(tuple, builder.followers)), tuple(builder.levels))


@dataclass
class _Builder:
    points: list[Point] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    levels: list[tuple[int, ...]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)  # points that the next point follows
    path: tuple[tuple[int, int], ...] = ()

    def emit(
        self,
        kind: str,
        node: Node | None,
        uses: tuple[Value, ...] = (),
        defs: tuple[Value, ...] = (),
        moves: Moves = (),
    ) -> int:
        index = len(self.points)
        self.points.append(Point(kind, node, uses, defs, moves, self.path))
        self.followers.append([])
        for point in self.open:
            self.followers[point].append(index)
        self.open = [index]
        return index

    def graph(self, graph: Graph, schedule: Schedule, path: tuple[tuple[int, int], ...]) -> None:
        self.nodes(graph, schedule, self.level(schedule), 0, len(schedule.steps), path)

    def level(self, schedule: Schedule) -> int:
        self.levels.append(tuple(happens_before(schedule)))
        return len(self.levels) - 1

    def nodes(
        self, graph: Graph, schedule: Schedule, level: int, begin: int, end: int, path: tuple[tuple[int, int], ...]
    ) -> None:
        by_name = {node.name: node for node in graph.nodes}
        for i in range(begin, end):
            node = by_name[schedule.steps[i].node]
            self.path = (*path, (level, i))
            bodies = schedule.bodies.get(node.name, ())
            if isinstance(node, While):
                self.loop(node, bodies[0])
            elif isinstance(node, CaseOf):
                self.branch(node, bodies)
            else:
                self.emit("run", node, node.uses, node.defs)
            self.path = path

    def branch(self, node: CaseOf, bodies: tuple[Schedule, ...]) -> None:
        path = self.path
        start = self.emit("branch", node, uses=(node.index,))
        ends: list[int] = []
        for arm, schedule in zip(node.arms, bodies, strict=True):
            self.open = [start]
            self.graph(arm, schedule, path)
            self.path = path
            ends.append(self.move("yield", node, arm.outputs, node.outputs))
        if node.fallbacks:
            self.open = [start]
            ends.append(self.move("yield", node, node.fallbacks, node.outputs))
        self.open = ends

    def loop(self, node: While, schedule: Schedule) -> None:
        path = self.path
        stacked = tuple(value for value in node.stacked if value is not None)
        self.move("enter", node, node.inits, node.parameters, defs=stacked)
        top = self.emit("round", node, defs=(node.counter,))
        level = self.level(schedule)
        self.nodes(node.body, schedule, level, 0, node.check, path)
        self.path = path
        check = self.emit("check", node, uses=(node.condition,))
        if node.slices:
            self.emit("fetch", node, uses=node.sequences, defs=node.slices)
        self.nodes(node.body, schedule, level, node.check, len(schedule.steps), path)
        self.path = path
        back = self.move("next", node, node.updates, node.parameters, uses=(*node.rows, *stacked))
        self.followers[back].append(top)
        self.open = [check]
        self.move("exit", node, node.parameters, node.finals, uses=stacked)

    def move(
        self,
        kind: str,
        node: Node,
        sources: tuple[Value, ...],
        destinations: tuple[Value | None, ...],
        uses: tuple[Value, ...] = (),
        defs: tuple[Value, ...] = (),
    ) -> int:
        pairs = tuple((s, d) for s, d in zip(sources, destinations, strict=True) if d is not None)
        return self.emit(kind, node, (*(s for s, _ in pairs), *uses), (*(d for _, d in pairs), *defs), pairs)

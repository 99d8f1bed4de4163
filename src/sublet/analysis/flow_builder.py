"""Construction of the control flow graph: loops and branches become edges, renamed values become bindings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import is_not

from sublet.analysis.flow import Choices, Flow, Moves, Point, Unrolling
from sublet.analysis.instances import AlsoPointer, Instances, Refused, Reusable, Unrollable, never
from sublet.analysis.scopes import Scopes
from sublet.analysis.unroll import Copies, Way
from sublet.analysis.windows import Window
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import steps
from sublet.plan import Context, Edge, Rolled
from sublet.plan.schedule import Schedule, happens_before

STEPS = 64
"""Steps of the search for free versions that cost as much as one point."""

MOST_TARGETS = 16
"""Versions that may be bound to a renamed value at a point. A value with more is copied."""


def flow(
    graph: Graph,
    schedule: Schedule,
    pointers: frozenset[Value] = frozenset(),
    reusable: Reusable = never,
    most_added: int | None = None,
    scopes: Scopes | None = None,
) -> Flow:
    """Return the control flow graph of `graph` under `schedule`.

    `pointers` are the renamed values: parameters, finals and branch outputs without bytes. `reusable(first, second)` is
    true if the update `second` may overwrite the parameter `first` within an iteration. Renaming adds at most
    `most_added` points. `scopes` are the program facts of an earlier control flow graph of `graph`. Raises
    RenamingRefused if some values cannot be renamed.
    """
    builder = _Builder(scopes or Scopes(graph), pointers, reusable, most_added)
    builder.start(graph)
    builder.graph(graph, schedule, ())
    if graph.updates:
        builder.move("update", None, tuple(source for _, source in graph.updates), graph.updated)
    builder.emit("end", None, uses=(*graph.outputs, *graph.updated))
    return builder.finished()


@dataclass(slots=True)
class _Draft:
    """A point under construction; later points may still change it, and a refused loop discards it."""

    kind: str
    node: Node | None
    uses: tuple[Value, ...]
    defs: tuple[Value, ...]
    moves: Moves
    path: tuple[tuple[int, int], ...]
    copies: Context
    operands: tuple[Value | None, ...] | None = None  # None for a node with sub-graphs
    choices: Choices = ()
    forgotten: tuple[Value, ...] = ()

    def point(self, scopes: Scopes) -> Point:
        """Return the finished point, with a node reading and writing versions."""
        node, facts = self.node, None
        if node is not None and self.operands is not None:
            facts = scopes.facts(node)
            defs = iter(self.defs)
            outputs = tuple(None if output is None else next(defs) for output in node.outputs)
            scratch = node.scratch and next(defs)
            if any(map(is_not, (*self.operands, *outputs, scratch), (*node.inputs, *node.outputs, node.scratch))):
                node = replace(node, inputs=self.operands, outputs=outputs, scratch=scratch)
        return Point(
            self.kind,
            node,
            self.uses,
            self.defs,
            self.moves,
            self.path,
            self.copies,
            self.forgotten,
            self.choices,
            facts,
        )


class _Builder:
    """Builder of a control flow graph, with the current bindings and the open ends of the point list."""

    def __init__(self, scopes: Scopes, pointers: frozenset[Value], reusable: Reusable, most_added: int | None) -> None:
        self.scopes = scopes
        self.points: list[_Draft] = []
        self.followers: list[list[int]] = []
        self.levels: list[tuple[int, ...]] = []
        self.open: list[int] = []  # predecessors of the next point
        self.orders: dict[int, list[Node]] = {}  # the nodes of each schedule in order, by id of the schedule
        self.path: tuple[tuple[int, int], ...] = ()
        self.now = Instances(pointers, reusable)
        self.ways: dict[Value, Way] = {}
        self.active: list[Copies] = []
        self.rolled: list[Rolled] = []
        self.heads: list[tuple[tuple[Value | None, ...], ...]] = []
        self.alike: list[tuple[Value, Value]] = []
        self.windows: dict[tuple[str, Value, Value], Window] = {}
        self.pointed: dict[Value, set[Edge]] = {}
        self.most_added = most_added
        self.length = 0  # points built, discarded points included
        self.added = 0  # points in body versions but the first; bindings of renamed values count too
        self.refused: list[AlsoPointer | Unrollable] = []

    def finished(self) -> Flow:
        """Return the control flow graph. Raises RenamingRefused if any renaming failed."""
        if self.refused:
            raise Refused(self.refused, self.length)
        unrolling = Unrolling(
            self.now.ordered(self.scopes.position),
            (*self.now.aliases.items(), *self.now.heads.items()),
            self.ways,
            tuple(self.rolled),
            tuple(self.heads),
            self.now.pointers,
            tuple(self.alike),
            tuple(self.windows.values()),
            self.pointed,
            self.scopes,
        )
        points = tuple(draft.point(self.scopes) for draft in self.points)
        return Flow(points, tuple(map(tuple, self.followers)), tuple(self.levels), unrolling)

    def start(self, graph: Graph) -> None:
        """Add the start point, which defines the inputs and weights."""
        self.emit("start", None, defs=(*graph.inputs, *graph.weights))

    def emit(
        self,
        kind: str,
        node: Node | None,
        uses: Iterable[Value] = (),
        defs: Iterable[Value] = (),
        moves: Moves = (),
    ) -> int:
        """Add a point using and defining values of the program, and return its index."""
        read = self.now.stand_for(uses)
        sources = [self.now.source(source) for source, _ in moves]
        written = {value: self.now.define(value) for value in defs}
        pairs = tuple((source, written[to]) for source, (_, to) in zip(sources, moves, strict=True))
        return self.add(_Draft(kind, node, read, tuple(written.values()), pairs, self.path, self.now.context))

    def run(self, node: Node) -> None:
        """Add the point of a node without sub-graphs."""
        read, operands, choices = self.now.operands(node.inputs)
        written = tuple(map(self.now.define, node.defs))
        self.add(_Draft("run", node, read, written, (), self.path, self.now.context, operands, choices))

    def add(self, draft: _Draft) -> int:
        """Add a point as successor of the open points, and return its index."""
        self.length += 1
        if any(number for _, number in draft.copies):
            self.lengthen(1)
        index = len(self.points)
        self.points.append(draft)
        self.followers.append([])
        for point in self.open:
            self.followers[point].append(index)
        self.open = [index]
        return index

    def lengthen(self, by: int) -> None:
        """Charge `by` added points; beyond the limit, refuse to rename the parameters of the outermost renamed loop."""
        self.added += by
        if self.most_added is not None and self.added + self.now.steps // STEPS > self.most_added:
            outermost = next((copies for copies in self.active if copies.pointing), None)
            if outermost is not None:
                raise outermost.too_long()

    def graph(self, graph: Graph, schedule: Schedule, path: tuple[tuple[int, int], ...]) -> None:
        """Add the points of a graph level under a schedule."""
        self.nodes(graph, schedule, self.level(schedule), 0, len(schedule.steps), path)

    def level(self, schedule: Schedule) -> int:
        """Add a graph level with the happens-before order of the schedule, and return the number of the level."""
        self.levels.append(tuple(happens_before(schedule)))
        return len(self.levels) - 1

    def nodes(
        self, graph: Graph, schedule: Schedule, level: int, begin: int, end: int, path: tuple[tuple[int, int], ...]
    ) -> None:
        """Add the points of the steps [begin, end) of a level."""
        order = self.orders.get(id(schedule))
        if order is None:
            by_name = {node.name: node for node in graph.nodes}
            order = self.orders[id(schedule)] = [by_name[step.node] for step in schedule.steps]
        for i in range(begin, end):
            node = order[i]
            self.path = (*path, (level, i))
            bodies = schedule.bodies.get(node.name, ())
            if isinstance(node, While):
                self.loop(node, bodies[0])
            elif isinstance(node, CaseOf):
                self.branch(node, bodies)
            else:
                self.run(node)
            self.path = path

    def branch(self, node: CaseOf, bodies: tuple[Schedule, ...]) -> None:
        """Add the points of a branch: the start, each arm, and a yield for each arm and for the fallback."""
        path = self.path
        start = self.emit("branch", node, uses=(node.index,))
        ends: list[int] = []
        results: list[tuple[tuple[Value, ...], ...]] = []
        arms: list[tuple[Graph | None, Schedule | None, tuple[Value, ...]]] = [
            (arm, schedule, arm.outputs) for arm, schedule in zip(node.arms, bodies, strict=True)
        ]
        arms += [(None, None, node.fallbacks)] if node.fallbacks else []
        for arm, schedule, outputs in arms:
            self.open = [start]
            if arm is not None and schedule is not None:
                self.graph(arm, schedule, path)
                self.path = path
            ends.append(self.move("yield", node, outputs, node.outputs))
            results.append(tuple(self.now.beneath(self.now.stand_for([output])) for output in outputs))
        for position, output in enumerate(node.outputs):
            if output is not None and output in self.now.pointers:
                self.phi(node, output, ends, [several[position] for several in results])
            elif output is not None:
                self.now.define(output)
        self.open = ends

    def phi(self, node: Node, pointer: Value, ends: list[int], sources: list[tuple[Value, ...]]) -> None:
        """Bind `pointer` to any of several sources, each assigned at the end of an arm or of a loop.

        `sources[i]` are the versions assigned at the point `ends[i]`. The path by which a source was bound matters only
        if the path decides the next body version; otherwise sources are merged by storage.
        """
        if not any(copies.pointing for copies in self.active):
            sources = [tuple(dict.fromkeys(map(self.now.root, several))) for several in sources]
        targets = tuple(dict.fromkeys(source for several in sources for source in several))
        if len(targets) > MOST_TARGETS:
            what = f"it may come to stand for more than {MOST_TARGETS} values"
            self.refused.append(Unrollable([pointer], what))
            self.now.define(pointer)
            return
        self.lengthen(len(targets) // 4)
        aliases = self.now.point_at(pointer, targets)
        for alias, source in zip(aliases, targets, strict=True):
            ways = frozenset(i for i, several in enumerate(sources) if source in several)
            self.ways[alias] = (node.name, self.now.context, ways)
        for i, end in enumerate(ends):
            real = tuple(alias for alias in aliases if i in self.ways[alias][2])
            rest = tuple(alias for alias in aliases if i not in self.ways[alias][2])
            self.points[end].defs += real
            self.points[end].forgotten += rest

    def loop(self, node: While, schedule: Schedule) -> None:
        """Add the points of a loop; if renaming its parameters fails, record the refusal and skip the loop."""
        points, opened, path, active = len(self.points), self.open, self.path, len(self.active)
        context, rules = self.now.context, dict(self.now.rules)
        try:
            self.unrolled(node, schedule)
        except (AlsoPointer, Unrollable) as refusal:
            if isinstance(refusal, Unrollable) and refusal.loop != node.name:
                raise
            self.refused.append(refusal)
            del self.points[points:], self.followers[points:], self.active[active:]
            self.open, self.path = opened, path
            self.now.context, self.now.rules = context, rules
            for value in node.defs:
                self.now.define(value)

    def unrolled(self, node: While, schedule: Schedule) -> None:
        """Add the points of a loop: the entry, every body version with its transitions, and the exits."""
        path, before = self.path, tuple(happens_before(schedule))
        stacked = tuple(value for value in node.stacked if value is not None)
        enter = self.move("enter", node, node.inits, node.parameters, defs=stacked)
        copies = Copies(node, self.now, self.ways, self.active, self.scopes)
        checks: list[int] = []
        tops: list[int] = []
        following: list[tuple[int, list[int]]] = []
        while copies.begin():
            self.path = path
            tops.append(len(self.points))
            self.levels.append(before)
            checks.append(self.round(node, schedule, len(self.levels) - 1, path, stacked))
            following.append((self.open[0], copies.end()))
            self.open = []
        for last, nexts in following:
            self.followers[last] += [tops[number] for number in nexts]
        for point, nexts in ((enter, [0]), *following):
            self.points[point].defs += copies.heads(nexts)
        rolled = copies.rolled()
        if rolled is not None:
            self.rolled.append(rolled)
            self.heads.append(tuple(copies.begun()))
            self.alike += copies.alike(rolled)
        self.leave(node, copies, checks, stacked)

    def round(
        self, node: While, schedule: Schedule, level: int, path: tuple[tuple[int, int], ...], stacked: tuple[Value, ...]
    ) -> int:
        """Add the points of a body version, and return the point at which the loop may end."""
        self.emit("round", node, defs=(node.counter,))
        self.nodes(node.body, schedule, level, 0, node.check, path)
        self.path = path
        check = self.emit("check", node, uses=(node.condition,))
        if node.slices:
            self.emit("fetch", node, uses=node.sequences, defs=node.slices)
        self.nodes(node.body, schedule, level, node.check, len(schedule.steps), path)
        self.path = path
        following = self.move("next", node, node.updates, node.parameters, uses=(*node.rows, *stacked))
        for kind, part, whole, axis, backwards in steps(node):
            if self.now.pointers.isdisjoint((part, whole)):
                value, place = self.now.operand(part), self.now.operand(whole)
                known = self.windows.get((kind, value, place))
                spans = (*(known.spans if known else ()), (2 * check + 1, 2 * following + 1))
                self.windows[kind, value, place] = Window(kind, node, value, place, axis, backwards, spans)
        return check

    def leave(self, node: While, copies: Copies, checks: list[int], stacked: tuple[Value, ...]) -> None:
        """Add the exit edges of a loop, one for each body version, and bind the renamed finals."""
        ends: list[int] = []
        for number, check in enumerate(checks):
            copies.recall(number)
            self.open = [check]
            ends.append(self.move("exit", node, node.parameters, node.finals, uses=stacked))
        self.open = ends
        for position, final in enumerate(node.finals):
            if final is not None and final in self.now.pointers:
                self.phi(node, final, ends, copies.stood_for(position))

    def move(
        self,
        kind: str,
        node: Node | None,
        sources: tuple[Value, ...],
        destinations: tuple[Value | None, ...],
        uses: tuple[Value, ...] = (),
        defs: tuple[Value, ...] = (),
    ) -> int:
        """Add the point of a parallel assignment, and return its index.

        A renamed destination takes no part in the assignment; its source is recorded as used and as bound.
        """
        pairs = [(s, d) for s, d in zip(sources, destinations, strict=True) if d is not None]
        real = tuple((s, d) for s, d in pairs if d not in self.now.pointers)
        for source in self.now.stand_for(s for s, d in pairs if d in self.now.pointers):
            self.pointed.setdefault(source, set()).add(Edge(kind, node.name if node else ""))
        read = (*(s for s, _ in pairs), *uses)
        return self.emit(kind, node, read, (*(d for _, d in real), *defs), real)

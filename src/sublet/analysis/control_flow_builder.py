"""Construction of the control flow graph: loops and branches become edges, renamed values become bindings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import is_not

from sublet.analysis.control_flow import Choices, ControlFlowGraph, FlowPoint, Moves, Unrolling
from sublet.analysis.loop_versions import BodyVersions, ExitEdges
from sublet.analysis.program_facts import LoopView, ProgramFacts
from sublet.analysis.value_versions import (
    MustRenameToo,
    NotRenamable,
    RenamingRefused,
    ReusePredicate,
    ValueVersions,
    never_reuse,
)
from sublet.ir.dataflow import slices_and_rows
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.plan import Context, Edge, RolledLoop
from sublet.plan.schedule import Schedule, happens_before

STEPS_PER_POINT = 64
"""Steps of the search for free versions that cost as much as one point."""

BINDINGS_PER_POINT = 4
"""Bindings of renamed values that cost as much as one point."""

MAX_BINDINGS = 256
"""Versions that may be bound to the result of a loop or branch. A result with more is copied, once at the exit."""

MAX_EXIT_BINDINGS = 1 << 17
"""Bindings of all results of a program together, each counted at every exit. A further result is copied at the exit."""


def build_control_flow(
    graph: Graph,
    schedule: Schedule,
    pointers: frozenset[Value] = frozenset(),
    reusable: ReusePredicate = never_reuse,
    most_added: int | None = None,
    scopes: ProgramFacts | None = None,
    *,
    most_in_rings: int = 0,
    ring_places: Mapping[Value, int] | None = None,
) -> ControlFlowGraph:
    """Return the control flow graph of `graph` under `schedule`.

    `pointers` are the renamed values: parameters, finals and branch outputs without bytes. `reusable(first, second)` is
    true if the update `second` may overwrite the parameter `first` within an iteration. Renaming adds at most
    `most_added` points; or `most_in_rings`, if more, where no branch decides a binding. `scopes` are the program facts
    of an earlier control flow graph of `graph`. `ring_places` are the places of lengthened rings. Raises
    RenamingRefused if some values cannot be renamed.
    """
    versions = ValueVersions(pointers, reusable, ring_places)
    builder = _ControlFlowBuilder(scopes or ProgramFacts(graph), versions, most_added, most_in_rings)
    builder.emit_start(graph)
    builder.emit_graph(graph, schedule, ())
    if graph.updates:
        builder.emit_move("update", None, tuple(source for _, source in graph.updates), graph.updated_values)
    builder.emit_point("end", None, uses=(*graph.outputs, *graph.updated_values))
    return builder.to_control_flow()


@dataclass(slots=True)
class _DraftPoint:
    """A point under construction; later points may still change it, and a refused loop discards it."""

    kind: str
    node: Node | None
    uses: tuple[Value, ...]
    defs: tuple[Value, ...]
    moves: Moves
    path: tuple[tuple[int, int], ...]
    context: Context
    operands: tuple[Value | None, ...] | None = None  # None for a node with sub-graphs
    choices: Choices = ()
    kills: tuple[Value, ...] = ()

    def to_point(self, scopes: ProgramFacts) -> FlowPoint:
        """Return the finished point, with a node reading and writing versions."""
        node, facts = self.node, None
        if node is not None and self.operands is not None:
            facts = scopes.sharing_facts_of(node)
            defs = iter(self.defs)
            outputs = tuple(None if output is None else next(defs) for output in node.outputs)
            scratch = node.scratch and next(defs)
            if any(map(is_not, (*self.operands, *outputs, scratch), (*node.inputs, *node.outputs, node.scratch))):
                node = replace(node, inputs=self.operands, outputs=outputs, scratch=scratch)
        return FlowPoint(
            self.kind,
            node,
            self.uses,
            self.defs,
            self.moves,
            self.path,
            self.context,
            self.kills,
            self.choices,
            facts,
        )


class _ControlFlowBuilder:
    """Builder of a control flow graph, with the current bindings and the open ends of the point list."""

    def __init__(
        self, scopes: ProgramFacts, versions: ValueVersions, most_added: int | None, most_in_rings: int
    ) -> None:
        self.facts = scopes
        self.points: list[_DraftPoint] = []
        self.successors: list[list[int]] = []
        self.levels: list[tuple[int, ...]] = []
        self.predecessors: list[int] = []  # predecessors of the next point
        self.nodes_of_schedule: dict[int, list[Node]] = {}  # the nodes of each schedule in order, by id of the schedule
        self.path: tuple[tuple[int, int], ...] = ()
        self.versions = versions
        self.exit_edges: dict[Value, ExitEdges] = {}
        self.active_loops: list[BodyVersions] = []
        self.rolled_loops: list[RolledLoop] = []
        self.entry_bindings: list[tuple[tuple[Value | None, ...], ...]] = []
        self.prologue_pairs: list[tuple[Value, Value]] = []
        self.loop_views: dict[tuple[str, Value, Value], LoopView] = {}
        self.renamed_sources: dict[Value, set[Edge]] = {}
        self.max_added = most_added
        self.max_in_rings = most_in_rings
        self.points_built = 0  # points built, discarded points included
        self.points_added = 0  # points in body versions but the first; bindings of renamed values count too
        self.exit_bindings = 0  # bindings of results at all exits
        self.refusals: list[MustRenameToo | NotRenamable] = []

    def to_control_flow(self) -> ControlFlowGraph:
        """Return the control flow graph. Raises RenamingRefused if any renaming failed."""
        if self.refusals:
            raise RenamingRefused(self.refusals, self.points_built)
        unrolling = Unrolling(
            self.versions.in_definition_order(self.facts.position),
            (*self.versions.aliases.items(), *self.versions.entry_sources.items()),
            self.exit_edges,
            tuple(self.rolled_loops),
            tuple(self.entry_bindings),
            self.versions.renamed_values,
            tuple(self.prologue_pairs),
            tuple(self.loop_views.values()),
            self.renamed_sources,
            self.facts,
        )
        points = tuple(draft.to_point(self.facts) for draft in self.points)
        return ControlFlowGraph(points, tuple(map(tuple, self.successors)), tuple(self.levels), unrolling)

    def emit_start(self, graph: Graph) -> None:
        """Add the start point, which defines the inputs and weights."""
        self.emit_point("start", None, defs=(*graph.inputs, *graph.weights))

    def emit_point(
        self,
        kind: str,
        node: Node | None,
        uses: Iterable[Value] = (),
        defs: Iterable[Value] = (),
        moves: Moves = (),
    ) -> int:
        """Add a point using and defining values of the program, and return its index."""
        read = self.versions.current_versions(uses)
        sources = [self.versions.move_source(source) for source, _ in moves]
        written = {value: self.versions.define_version(value) for value in defs}
        pairs = tuple((source, written[to]) for source, (_, to) in zip(sources, moves, strict=True))
        return self.append_point(
            _DraftPoint(kind, node, read, tuple(written.values()), pairs, self.path, self.versions.context)
        )

    def emit_run(self, node: Node) -> None:
        """Add the point of a node without sub-graphs."""
        read, operands, choices = self.versions.operand_versions(node.inputs)
        written = tuple(map(self.versions.define_version, node.defs))
        self.append_point(
            _DraftPoint("run", node, read, written, (), self.path, self.versions.context, operands, choices)
        )

    def append_point(self, draft: _DraftPoint) -> int:
        """Add a point as successor of the open points, and return its index."""
        self.points_built += 1
        if any(number for _, number in draft.context):
            self.charge_points(1)
        index = len(self.points)
        self.points.append(draft)
        self.successors.append([])
        for point in self.predecessors:
            self.successors[point].append(index)
        self.predecessors = [index]
        return index

    def charge_points(self, by: int) -> None:
        """Charge `by` added points; beyond the limit, refuse to rename the parameters of the outermost renamed loop."""
        self.points_added += by
        added = self.points_added + self.versions.search_steps // STEPS_PER_POINT
        if self.max_added is not None and added > self.max_added:
            outermost = next((copies for copies in self.active_loops if copies.renamed_count), None)
            if outermost is not None and (added > self.max_in_rings or not outermost.is_ring):
                raise outermost.plan_too_long()

    def emit_graph(self, graph: Graph, schedule: Schedule, path: tuple[tuple[int, int], ...]) -> None:
        """Add the points of a graph level under a schedule."""
        self.emit_steps(graph, schedule, self.add_level(schedule), 0, len(schedule.steps), path)

    def add_level(self, schedule: Schedule) -> int:
        """Add a graph level with the happens-before order of the schedule, and return the number of the level."""
        self.levels.append(tuple(happens_before(schedule)))
        return len(self.levels) - 1

    def emit_steps(
        self, graph: Graph, schedule: Schedule, level: int, begin: int, end: int, path: tuple[tuple[int, int], ...]
    ) -> None:
        """Add the points of the steps [begin, end) of a level."""
        order = self.nodes_of_schedule.get(id(schedule))
        if order is None:
            by_name = {node.name: node for node in graph.nodes}
            order = self.nodes_of_schedule[id(schedule)] = [by_name[step.node] for step in schedule.steps]
        for i in range(begin, end):
            node = order[i]
            self.path = (*path, (level, i))
            bodies = schedule.bodies.get(node.name, ())
            if isinstance(node, While):
                self.emit_loop(node, bodies[0])
            elif isinstance(node, CaseOf):
                self.emit_branch(node, bodies)
            else:
                self.emit_run(node)
            self.path = path

    def emit_branch(self, node: CaseOf, bodies: tuple[Schedule, ...]) -> None:
        """Add the points of a branch: the start, each arm, and a yield for each arm and for the fallback."""
        path = self.path
        start = self.emit_point("branch", node, uses=(node.index,))
        ends: list[int] = []
        results: list[tuple[tuple[Value, ...], ...]] = []
        arms: list[tuple[Graph | None, Schedule | None, tuple[Value, ...]]] = [
            (arm, schedule, arm.outputs) for arm, schedule in zip(node.arms, bodies, strict=True)
        ]
        arms += [(None, None, node.fallbacks)] if node.fallbacks else []
        for arm, schedule, outputs in arms:
            self.predecessors = [start]
            if arm is not None and schedule is not None:
                self.emit_graph(arm, schedule, path)
                self.path = path
            ends.append(self.emit_move("yield", node, outputs, node.outputs))
            results.append(
                tuple(
                    self.versions.without_entry_bindings(self.versions.current_versions([output])) for output in outputs
                )
            )
        for position, output in enumerate(node.outputs):
            if output is not None and output in self.versions.renamed_values:
                self.bind_phi(node, output, ends, [several[position] for several in results])
            elif output is not None:
                self.versions.define_version(output)
        self.predecessors = ends

    def bind_phi(self, node: Node, pointer: Value, ends: list[int], sources: list[tuple[Value, ...]]) -> None:
        """Bind `pointer` to any of several sources, each assigned at the end of an arm or of a loop.

        `sources[i]` are the versions assigned at the point `ends[i]`. The path by which a source was bound matters only
        if the path decides the next body version; otherwise sources are merged by storage.
        """
        if not any(copies.renamed_count for copies in self.active_loops):
            sources = [tuple(dict.fromkeys(map(self.versions.root_of, several))) for several in sources]
        targets = tuple(dict.fromkeys(source for several in sources for source in several))
        self.exit_bindings += len(targets) * len(ends)
        if len(targets) > MAX_BINDINGS or self.exit_bindings > MAX_EXIT_BINDINGS:
            what = "it may be bound to too many values"
            self.refusals.append(NotRenamable([pointer], what))
            self.versions.define_version(pointer)
            return
        self.charge_points(len(targets) // BINDINGS_PER_POINT)
        aliases = dict(zip(targets, self.versions.bind_to_any(pointer, targets), strict=True))
        ways: dict[Value, list[int]] = {}
        for i, several in enumerate(sources):
            for source in dict.fromkeys(several):
                ways.setdefault(source, []).append(i)
        for source, alias in aliases.items():
            self.exit_edges[alias] = (node.name, self.versions.context, frozenset(ways[source]))
        for end, several in zip(ends, sources, strict=True):
            self.points[end].defs += tuple(aliases[source] for source in targets if source in several)
            self.points[end].kills += tuple(alias for source, alias in aliases.items() if source not in several)

    def emit_loop(self, node: While, schedule: Schedule) -> None:
        """Add the points of a loop; if renaming its parameters fails, record the refusal and skip the loop."""
        points, opened, path, active = len(self.points), self.predecessors, self.path, len(self.active_loops)
        context, rules = self.versions.context, dict(self.versions.naming_rules)
        try:
            self.emit_body_versions(node, schedule)
        except (MustRenameToo, NotRenamable) as refusal:
            if isinstance(refusal, NotRenamable) and refusal.loop != node.name:
                raise
            self.refusals.append(refusal)
            del self.points[points:], self.successors[points:], self.active_loops[active:]
            self.predecessors, self.path = opened, path
            self.versions.context, self.versions.naming_rules = context, rules
            for value in node.defs:
                self.versions.define_version(value)

    def emit_body_versions(self, node: While, schedule: Schedule) -> None:
        """Add the points of a loop: the entry, every body version with its transitions, and the exits."""
        path, before = self.path, tuple(happens_before(schedule))
        stacked = tuple(value for value in node.stacked_outputs if value is not None)
        enter = self.emit_move("enter", node, node.inits, node.parameters, defs=stacked)
        copies = BodyVersions(node, self.versions, self.exit_edges, self.active_loops, self.facts)
        checks: list[int] = []
        tops: list[int] = []
        following: list[tuple[int, list[int]]] = []
        while copies.begin_version():
            self.path = path
            self.charge_points(copies.renamed_count // BINDINGS_PER_POINT)
            tops.append(len(self.points))
            self.levels.append(before)
            checks.append(self.emit_body_version(node, schedule, len(self.levels) - 1, path, stacked))
            following.append((self.predecessors[0], copies.end_version()))
            self.predecessors = []
        for last, nexts in following:
            self.successors[last] += [tops[number] for number in nexts]
        for point, nexts in ((enter, [0]), *following):
            self.points[point].defs += copies.entry_definitions(nexts)
        rolled = copies.to_rolled_loop()
        if rolled is not None:
            self.rolled_loops.append(rolled)
            self.entry_bindings.append(tuple(copies.entry_roots()))
            self.prologue_pairs += copies.prologue_pairs(rolled)
        self.emit_exits(node, copies, checks, stacked)

    def emit_body_version(
        self, node: While, schedule: Schedule, level: int, path: tuple[tuple[int, int], ...], stacked: tuple[Value, ...]
    ) -> int:
        """Add the points of a body version, and return the point at which the loop may end."""
        self.emit_point("round", node, defs=(node.counter,))
        self.emit_steps(node.body, schedule, level, 0, node.check, path)
        self.path = path
        check = self.emit_point("check", node, uses=(node.condition,))
        if node.slices:
            self.emit_point("fetch", node, uses=node.sequences, defs=node.slices)
        self.emit_steps(node.body, schedule, level, node.check, len(schedule.steps), path)
        self.path = path
        following = self.emit_move("next", node, node.updates, node.parameters, uses=(*node.rows, *stacked))
        for kind, part, whole, axis, backwards in slices_and_rows(node):
            if self.versions.renamed_values.isdisjoint((part, whole)):
                value, place = self.versions.operand_version(part), self.versions.operand_version(whole)
                known = self.loop_views.get((kind, value, place))
                spans = (*(known.spans if known else ()), (2 * check + 1, 2 * following + 1))
                self.loop_views[kind, value, place] = LoopView(kind, node, value, place, axis, backwards, spans)
        return check

    def emit_exits(self, node: While, copies: BodyVersions, checks: list[int], stacked: tuple[Value, ...]) -> None:
        """Add the exit edges of a loop, one for each body version, and bind the renamed finals."""
        ends: list[int] = []
        for number, check in enumerate(checks):
            copies.restore_entry(number)
            self.predecessors = [check]
            ends.append(self.emit_move("exit", node, node.parameters, node.finals, uses=stacked))
        self.predecessors = ends
        for position, final in enumerate(node.finals):
            if final is not None and final in self.versions.renamed_values & self.facts.read_values:
                self.bind_phi(node, final, ends, copies.bindings_at(position))

    def emit_move(
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
        real = tuple((s, d) for s, d in pairs if d not in self.versions.renamed_values)
        for source in self.versions.current_versions(s for s, d in pairs if d in self.versions.renamed_values):
            self.renamed_sources.setdefault(source, set()).add(Edge(kind, node.name if node else ""))
        read = (*(s for s, _ in pairs), *uses)
        return self.emit_point(kind, node, read, (*(d for _, d in real), *defs), real)

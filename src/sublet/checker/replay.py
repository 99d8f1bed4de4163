"""The replay: runs the schedule over abstract memory and looks at every byte that is read.

A branch runs every arm from the same state; states in which all pointers stand for the same become one, of what
their memories agree on. A loop runs its body until the states at its head are what both the entry and the back
edges agree on, for each copy of its body that the plan has; what is wrong is reported from the last time only.

Invariant: the memory at the entry of a loop holds no token of its body. So at the head of a round no bytes of an
earlier round are left under a name of this one, see `state`. Parameters with bytes of their own, whose tokens
both edges do write, are written anew by both, so only their regions hold them.

Rules: clobbered (other bytes lie where a value is read), undefined (nothing known lies there),
output-lost, weight-clobbered, update-lost, too-many-states, bad-jumps; and those of `overlaps`, for each copy of a
body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sublet.analysis.schedule import Schedule
from sublet.checker.accesses import Accesses
from sublet.checker.actions import Action, Actions
from sublet.checker.cells import LATEST, this_round
from sublet.checker.contents import Source, whole
from sublet.checker.jumps import Head, Jumps, ambiguous, unsteady
from sublet.checker.layout import Layout, span
from sublet.checker.memory import Content, Memory, Segment, meet
from sublet.checker.overlaps import check_overlaps
from sublet.checker.state import EARLIER, ENDED, State, Target, shown
from sublet.errors import Finding
from sublet.ir.graph import CaseOf, Graph, Node, Value, While, captures
from sublet.plan import Context, Region

SHOWN = 3
"""How many ranges of wrong bytes a message lists."""

MOST_STATES = 4096
"""A plan whose pointers can stand for more combinations is not followed."""

States = list[State]
Origins = Mapping[str, tuple[tuple[Source, ...], ...]]
Build = Callable[[Actions], Action]


def replay(
    graph: Graph, schedule: Schedule, layout: Layout, contents: Mapping[str, Content], origins: Origins
) -> tuple[list[Finding], Accesses]:
    """Run the whole program once, all branches and any number of rounds: what it read in vain, and what it touched."""
    run = _Replay(layout, contents, origins)
    memory = Memory()
    for value in (*graph.inputs, *graph.weights):
        region = layout.region(value)
        if region is not None:
            memory.write(region.storage, region.offset, whole(value), "the caller")
    for state in run.graph(graph, schedule, [State(memory, {}, {})], ()):
        here = layout.here((), state.regions)
        run.update(graph, state, here)
        for value in dict.fromkeys(graph.outputs):
            run.read(value, state, here, f"graph output {value}", "output-lost")
        for value in graph.constants:
            run.read(value, state, here, f"weight {value} at the end", "weight-clobbered")
    for record in layout.rolled.values():
        run.findings += ambiguous(record)
    run.findings += run.jumps.idle(layout.rolled)
    return list(dict.fromkeys(run.findings)), run.accesses


class _Replay:
    def __init__(self, layout: Layout, contents: Mapping[str, Content], origins: Origins) -> None:
        self.layout = layout
        self.contents = contents
        self.origins = origins
        self.findings: list[Finding] = []
        self.jumps = Jumps()
        self.accesses = Accesses()
        self._bodies: dict[str, frozenset[str]] = {}
        jumps = (jump for record in layout.rolled.values() for jump in record.jumps)
        self._deciding = {name for jump in jumps for name, _ in jump.ways}

    def graph(self, graph: Graph, schedule: Schedule, states: States, context: Context) -> States:
        """Run all nodes of a graph in the order of its schedule."""
        results = (*graph.outputs, *(source for _, source in graph.updates))
        return self.nodes(graph.nodes, schedule, states, context, results)

    def nodes(
        self,
        nodes: Sequence[Node],
        schedule: Schedule,
        states: States,
        context: Context,
        results: Iterable[Value] = (),
    ) -> States:
        """Run nodes of one graph. Pointers they assign are dropped once nobody reads them, nor what views them."""
        by_name = {node.name: node for node in nodes}
        steps = [by_name[step.node] for step in schedule.steps if step.node in by_name]
        droppable = self._last_reads(steps, results)
        for i, node in enumerate(steps):
            with self.accesses.step(node.name, context):
                states = self.step(node, schedule, states, context)
            if i in droppable:
                states = _forget(states, droppable[i])
        return states

    def step(self, node: Node, schedule: Schedule, states: States, context: Context) -> States:
        """Run one node."""
        if isinstance(node, While):
            return self.loop(node, schedule.bodies[node.name][0], states, context)
        if isinstance(node, CaseOf):
            return self.case(node, schedule.bodies[node.name], states, context)
        return self.edge(node, states, context, partial(Actions.of_op, node=node))

    def _last_reads(self, steps: Sequence[Node], results: Iterable[Value]) -> dict[int, set[str]]:
        """The pointers assigned by these steps, by the position of the step that needs each last."""
        assigned = {value.name for node in steps if node.subgraphs for value in node.defs} & self.layout.pointers
        if not assigned:
            return {}
        last = dict.fromkeys(assigned, 0)
        for i, node in enumerate(steps):
            last.update(dict.fromkeys(self._tokens([*_read(node), *node.defs]) & assigned, i))
        kept = self._tokens(results)
        droppable: dict[int, set[str]] = {}
        for name in sorted(assigned - kept):
            droppable.setdefault(last[name], set()).add(name)
        return droppable

    def _tokens(self, values: Iterable[Value]) -> set[str]:
        values = list(values)
        tokens = {piece.token for value in values for piece in self.contents.get(value.name, ())}
        return tokens | {value.name for value in values}

    def case(self, node: CaseOf, bodies: Sequence[Schedule], states: States, context: Context) -> States:
        """Every arm from the same states."""
        states = self.edge(node, states, context, lambda actions: actions.index(node))
        ends: States = []
        for position in range(len(node.arms) + bool(node.fallbacks)):
            paths = [state.copy() for state in states]
            outputs: Sequence[Value] = node.fallbacks
            if position < len(node.arms):
                outputs = node.arms[position].outputs
                paths = self.graph(node.arms[position], bodies[position], paths, context)
            ends += self.edge(
                node,
                self._by_way(node, position, paths),
                context,
                partial(Actions.end_of_arm, node=node, position=position),
                list(zip(outputs, node.outputs, strict=True)),
            )
        inner = self._defined(node) - {value.name for value in node.defs}
        return self._joined(_forget(ends, inner), node) if ends else states

    def loop(self, node: While, body: Schedule, states: States, context: Context) -> States:
        """Rounds, of every copy of the body, until the heads are stable; the states after the loop."""
        record = self.layout.rolled.get((node.name, context))
        moves = list(zip(node.inits, node.parameters, strict=True))
        heads: dict[Head, State] = {}
        left: dict[Head, States] = {}
        wrong: dict[Head, list[Finding]] = {}
        followed: dict[Head, list[Head]] = {}
        entering = self.edge(node, states, context, lambda actions: actions.enter(node), moves)
        todo = self._arrive(heads, 0, entering, node)
        entered, before = list(heads), self.findings
        while todo:
            key = todo.pop(0)
            self.findings = wrong[key] = []
            inside = context if record is None else (*context, (node.name, key[0]))
            left[key], ends = self.round(node, body, heads[key], inside)
            left[key] = self._by_way(node, key[0], left[key])
            followed[key] = []
            for state in ends:
                following, doubts = self.jumps.after(record, key[0], state.ways)
                self.findings += doubts
                state.ways = {name: way for name, way in state.ways.items() if name not in self._inside(node)}
                todo += [head for head in self._arrive(heads, following, [state], node) if head not in todo]
                followed[key] += [(following, state.key)] if (following, state.key) in heads else []
        self.findings = before
        for found in wrong.values():
            self.findings += found
        self.findings += unsteady(node, entered, followed, heads)
        after = [state for states_left in left.values() for state in states_left]
        return self._joined(after, node)

    def _by_way(self, node: Node, way: int, states: States) -> States:
        """The states, which left a loop or branch by one of its ways, with a note of that where it decides."""
        if node.name in self._deciding:
            for state in states:
                state.ways[node.name] = way
        return states

    def _inside(self, node: While) -> frozenset[str]:
        """The names of the nodes of a loop's body."""
        return frozenset(inner.name for inner in node.body.walk()) if self._deciding else frozenset()

    def _arrive(self, heads: dict[Head, State], copy: int, states: States, node: Node) -> list[Head]:
        """Join states into the heads of a copy; those that changed."""
        changed: list[Head] = []
        for state in states:
            key = (copy, state.key)
            if key not in heads:
                if len(heads) == MOST_STATES:
                    self._too_many(node)
                    return changed
                heads[key] = state.copy()
            else:
                joined = meet(heads[key].memory, state.memory)
                if joined.known_bytes() == heads[key].memory.known_bytes():
                    continue
                heads[key].memory = joined
            if key not in changed:
                changed.append(key)
        return changed

    def round(self, node: While, body: Schedule, head: State, context: Context) -> tuple[States, States]:
        """One round of one copy. Returns the states after the exit edge and those at the next head."""
        names, edge = self._body(node), partial(self.edge, node, context=context)
        states = edge([head.copy()], build=lambda actions: actions.head(node))
        later = [
            *node.body.outputs,
            node.condition,
            *(value for late in node.body.nodes[node.check :] for value in _read(late)),
        ]
        states = self.nodes(node.body.nodes[: node.check], body, states, context, later)
        states = edge(states, build=lambda actions: actions.test(node))
        left = edge(
            [state.copy() for state in states],
            build=lambda actions: actions.leave(node),
            moves=list(zip(node.parameters, node.finals, strict=True)),
        )
        inner = self._defined(node) - {value.name for value in node.defs}
        left = _forget(left, inner)
        cells = self.layout.cells.of_round(node.name)
        for state in left:
            state.memory.drop(cells)
            state.rename(names, ENDED)
        states = edge(states, build=lambda actions: actions.fetch(node))
        states = self.nodes(node.body.nodes[node.check :], body, states, context, node.body.outputs)
        states = edge(states, build=lambda actions: actions.store(node))
        moves = list(zip(node.updates, node.parameters, strict=True))
        states = edge(states, build=lambda actions: actions.back(node), moves=moves, ends_round=names)
        for state in states:
            for name in cells:
                if name + LATEST in self.layout.cells.known:
                    state.memory.rename_storage(name, name + LATEST)
            state.memory.drop(cells)
        return left, _forget(states, inner - {value.name for value in node.parameters})

    def edge(
        self,
        node: Node,
        states: States,
        context: Context,
        build: Build,
        moves: Sequence[tuple[Value, Value | None]] = (),
        ends_round: frozenset[str] = frozenset(),
    ) -> States:
        """Perform what `build` makes of the actions here, in every state; then pointers take what `moves` assign."""
        for state in states:
            here = self.layout.here(context, state.regions)
            action = build(Actions(here, self.contents, self.origins))
            self.findings += check_overlaps(node, action, here)
            self.accesses.note(action, here)
            targets = self._targets(node, moves, state, here, stored=bool(ends_round))
            for value in action.reads:
                self.read(value, state, here, action.where)
            writes = [(write, state.resolve(write.content)) for write in action.writes]
            state.pointers |= targets
            if ends_round:
                state.rename(ends_round, EARLIER)
            for write, content in writes:
                for spoilt in self.layout.cells.spoilt(write.region) if write.touched else ():
                    state.memory.forget(spoilt, action.where)
                state.memory.write(write.region.storage, write.region.offset, content, action.where)
        return self._joined(states, node) if moves else states

    def update(self, graph: Graph, state: State, here: Layout) -> None:
        """The updates of a graph, all at once: afterwards every target's region holds what its source is."""
        action = Actions(here, self.contents, self.origins).update(graph)
        self.findings += check_overlaps(None, action, here)
        for value in action.reads:
            self.read(value, state, here, action.where)
        for write in action.writes:
            state.memory.write(write.region.storage, write.region.offset, state.resolve(write.content), action.where)
        for target, source in graph.updates:
            region = here.region(target)
            if region is not None:
                content = state.resolve(self.contents.get(source.name, whole(source)))
                wrong = list(state.memory.mismatches(region.storage, region.offset, content))
                if wrong:
                    self.findings.append(_misread(source, region, wrong, f"updated {target}", "update-lost"))

    def _targets(
        self, node: Node, moves: Sequence[tuple[Value, Value | None]], state: State, here: Layout, *, stored: bool
    ) -> dict[str, Target]:
        """What pointers stand for after these moves; `stored` when the rows of a round have just been stored."""
        targets: dict[str, Target] = {}
        for source, to in moves:
            region = here.region(source) if to is not None and to.name in self.layout.pointers else None
            if region is None or to is None:
                continue
            content = state.resolve(self.contents.get(source.name, whole(source)))
            if region.storage in here.cells.known:
                region = self._of_a_row(node, source, to, region, stored=stored)
            if region is None:
                what = f"lets {to} stand for {source}, which moves from round to round"
                self.findings.append(Finding("bad-stride", "the plan", what, "copy one of the two"))
            else:
                targets[to.name] = Target(region, content)
        return targets

    def _of_a_row(self, node: Node, source: Value, to: Value, region: Region, *, stored: bool) -> Region | None:
        """What a pointer stands for that is assigned a row: a parameter that of this round, an output the latest."""
        if not isinstance(node, While):
            return None
        if stored and source in node.rows and to in node.parameters:
            return self.layout.cells.latest(region, node.name)
        latest = this_round(region.storage) != region.storage
        return region if not stored and latest and source in node.parameters and to in node.finals else None

    def _joined(self, states: States, node: Node) -> States:
        """One state for all in which the pointers stand for the same."""
        joined: dict[object, State] = {}
        for state in states:
            same = joined.get(state.key)
            if same is None:
                joined[state.key] = state
            else:
                same.memory = meet(same.memory, state.memory)
        if len(joined) > MOST_STATES:
            self._too_many(node)
        return list(joined.values())[:MOST_STATES]

    def _too_many(self, node: Node) -> None:
        what = f"its pointers can stand for more than {MOST_STATES} combinations of bytes"
        self.findings.append(Finding("too-many-states", f"node {node.name}", what, "copy instead of pointing"))

    def _body(self, node: While) -> frozenset[str]:
        if node.name not in self._bodies:
            self._bodies[node.name] = frozenset(value.name for value in node.body.values())
        return self._bodies[node.name]

    def _defined(self, node: Node) -> set[str]:
        """The pointers that sub-graphs of a node assign."""
        return {value.name for sub in node.subgraphs for value in sub.values()} & self.layout.pointers

    def read(self, value: Value, state: State, here: Layout, where: str, rule: str = "") -> None:
        """Every byte of the value must lie in its region."""
        region = here.region(value)
        if region is None:
            if value.nbytes and here.moves_about(value):
                what = f"reads {value}, which has no place in this copy of the loops around"
                self.findings.append(Finding("undefined", where, what))
            return
        content = state.resolve(self.contents.get(value.name, whole(value)))
        wrong = list(state.memory.mismatches(region.storage, region.offset, content))
        if wrong:
            self.findings.append(_misread(value, region, wrong, where, rule))


def _read(node: Node) -> list[Value]:
    """What a node and its sub-graphs read of the graph around."""
    return [*node.uses, *(value for sub in node.subgraphs for value in captures(sub))]


def _forget(states: States, names: set[str]) -> States:
    """Drop pointers, which may make states equal; they are joined at the next edge."""
    if names:
        for state in states:
            state.keep([name for name in state.pointers if name not in names])
    return states


def _misread(value: Value, region: Region, wrong: list[Segment], where: str, rule: str) -> Finding:
    known = next((segment for segment in wrong if segment.token is not None), None)
    found = "; ".join(_describe(segment) for segment in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more ranges" if len(wrong) > SHOWN else ""
    fix = f"keep the bytes of {value} until here"
    if known is not None and known.token != value.name:
        other = shown(known.token or "")
        fix = f"place {value} and %{other} apart, or read {value} before %{other} is written"
    what = f"reads {value} at {span(region)}, but {found}{more}"
    return Finding(rule or ("clobbered" if known is not None else "undefined"), where, what, fix)


def _describe(segment: Segment) -> str:
    place = f"bytes [{segment.begin}, {segment.end})"
    if segment.token is None:
        return f"{place} hold nothing known ({segment.writer})"
    start = segment.begin - segment.base
    return f"{place} hold bytes [{start}, {start + segment.end - segment.begin}) of %{shown(segment.token or '')}, " + (
        f"written by {segment.writer}"
    )

"""The replay: an abstract interpretation of the schedule over memory and renamed values, checking every byte read.

Lattice. An `AbstractState` describes all runs reaching a point: for each byte of each storage the known content, or
unknown; for each renamed value (a *pointer*) its points-to set, each target with the invalid bytes: bytes at the
target that are not the pointer's own. A state is below another state if it knows less about bytes or has more targets.
The meet of two states (`AbstractState.meet`) holds in both: a byte keeps a content known equally in both states, a
pointer has the targets of either.

Transfer, from the state before a point to the state after the point:

    node      check the bytes of every operand; then write every output, and invalidate all former owners of the bytes
    edge      check the sources of all moves; then write all destinations, and bind pointers to their sources
    branch    run each arm from the same state; take the meet of the ends
    loop      for each body version an entry state: the meet of the loop entry, if version 0, and of every end of a
              version followed by this version. Run the versions with changed entry states until a fixpoint: entry
              states only descend, and the lattice is finite. After the loop: the meet of all exits

The replay reports only findings of the last run of a version. A nested loop resumes from its entry states of the
enclosing iteration before. A node therefore runs a few times for each enclosing loop and body version.

Invariant: memory at the start of an iteration holds no token of the body, see `state`. Entry and back edge write
the parameters with own bytes, so the regions of these parameters hold the parameters' own tokens.

Rules: clobbered (a read finds bytes of another value), undefined (a read finds unknown bytes), output-lost,
weight-clobbered, too-many-states, bad-jumps, false-heads; and the rules of `actions.py` on overlaps, in each body
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain

from sublet.base.errors import Finding
from sublet.checker.actions import Action, ActionBuilder, check_overlaps, misread_finding
from sublet.checker.contents import ByteSource, own_content
from sublet.checker.entry_bindings import mismatched_entries
from sublet.checker.layout import PlanLayout
from sublet.checker.memory import AbstractMemory, Content
from sublet.checker.races import StepAccesses
from sublet.checker.state import AbstractState, LoopFixpoint, Pointer
from sublet.checker.version_transitions import (
    Decisions,
    TakenTransitions,
    ambiguous_transitions,
    decisions_in,
    varying_entries,
)
from sublet.ir.dataflow import conditions_of, reads, required_values, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.plan import Context, Region, RolledLoop
from sublet.plan.schedule import Schedule, is_serial

MOST_TARGETS = 256
"""Regions of one pointer in one state. The replay gives up on a plan with more (rule too-many-states)."""

MOST_COPIES = 1024
"""Body versions of one loop. The replay gives up on a plan with more."""
MOST_STEPS = 1 << 17
"""Steps of one replay in all body versions, or MOST_STEPS_A_NODE a node if more. The replay gives up beyond."""
MOST_STEPS_A_NODE = 64

Origins = Mapping[str, tuple[tuple[ByteSource, ...], ...]]
Build = Callable[[ActionBuilder], Action]


def replay(
    graph: Graph, schedule: Schedule, layout: PlanLayout, contents: Mapping[str, Content], origins: Origins
) -> tuple[list[Finding], StepAccesses]:
    """Interpret the whole program, all branches and any number of iterations; return the findings and all accesses."""
    run = _PlanReplay(graph, layout, contents, origins, StepAccesses(is_disabled=is_serial(schedule)))
    memory = AbstractMemory()
    for value in (*graph.inputs, *graph.weights):
        region = layout.region_of(value)
        if region is not None:
            memory.write(region.storage, region.offset, own_content(value), "the caller")
    try:
        state = run.run_graph(graph, schedule, AbstractState(memory, {}), ())
    except _TooManyStates as error:
        return [*dict.fromkeys(run.all_findings()), error.finding], run.accesses
    run.perform_updates(graph, state)
    here = layout.in_context((), {})
    for value in dict.fromkeys(graph.outputs):
        run.check_read(value, state, here, f"graph output %{value.name}", "output-lost")
    for value in graph.constants:
        run.check_read(value, state, here, f"weight %{value.name} at the end", "weight-clobbered")
    jumps = [finding for record in layout.rolled.values() for finding in ambiguous_transitions(record)]
    return list(
        dict.fromkeys([*run.all_findings(), *jumps, *run.jumps.unused_transitions(layout.rolled)])
    ), run.accesses


class _TooManyStates(Exception):
    """The replay exceeds a limit, and stops."""

    def __init__(self, node: Node, what: str) -> None:
        self.finding = Finding("too-many-states", f"node {node.name}", what, "copy the renamed values", (node.name,))


class _PlanReplay:
    """The state of one replay: findings, accesses, and the fixpoints of loops."""

    def __init__(
        self,
        graph: Graph,
        layout: PlanLayout,
        contents: Mapping[str, Content],
        origins: Origins,
        accesses: StepAccesses,
    ) -> None:
        self.accesses = accesses
        self.layout = layout
        self.contents = contents
        self.origins = origins
        self.findings: list[Finding | LoopFixpoint] = []
        self.jumps = TakenTransitions()
        self._loops: dict[tuple[str, Context], LoopFixpoint] = {}
        self._names: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._dropped: dict[tuple[str, int], dict[int, set[str]]] = {}
        self._cached_actions: dict[tuple[str, Context], tuple[Action, list[Finding]]] = {}
        self._read = {*results(graph), *(value for node in graph.walk() for value in reads(node))}
        self._steps = 0
        self._most = max(MOST_STEPS, MOST_STEPS_A_NODE * sum(1 for _ in graph.walk()))
        jumps = (jump for record in layout.rolled.values() for jump in record.jumps)
        self._deciding = {name for jump in jumps for name, _ in jump.ways}

    def all_findings(self) -> Iterator[Finding]:
        """Yield all findings; findings of a loop stand at the loop's start."""
        todo = self.findings[::-1]
        while todo:
            one = todo.pop()
            if isinstance(one, Finding):
                yield one
                continue
            todo += reversed(list(varying_entries(one.node, self._names_in_body(one.node)[0], one.entries)))
            todo += mismatched_entries(
                one.node, self.layout.entry_bindings.get((one.node.name, one.within), ()), one.entries
            )
            for wrong in reversed(one.findings.values()):
                todo += reversed(wrong)

    def run_graph(self, graph: Graph, schedule: Schedule, state: AbstractState, context: Context) -> AbstractState:
        """Run all nodes of a graph in the order of its schedule; return the state after the last node."""
        return self.run_nodes(graph.nodes, schedule, state, context, results(graph))

    def run_nodes(
        self,
        nodes: Sequence[Node],
        schedule: Schedule,
        state: AbstractState,
        context: Context,
        wanted: Iterable[Value] = (),
    ) -> AbstractState:
        """Run some nodes of one graph, and return the state after the last node.

        The replay drops a pointer after the last read of the pointer and its views; values in `wanted` stay.
        """
        by_name = {node.name: node for node in nodes}
        steps = [by_name[step.node] for step in schedule.steps if step.node in by_name]
        if not steps:
            return state
        part = (steps[0].name, len(steps))
        if part not in self._dropped:
            self._dropped[part] = self._last_reads(steps, wanted)
        droppable = self._dropped[part]
        for i, node in enumerate(steps):
            self.accesses.begin(node.name, context)
            state = self.run_node(node, schedule, state, context)
            self.accesses.end()
            state.drop(droppable.get(i, ()))
        return state

    def run_node(self, node: Node, schedule: Schedule, state: AbstractState, context: Context) -> AbstractState:
        """Run one node."""
        self._count_step(node)
        if isinstance(node, While):
            return self.run_loop(node, schedule.bodies[node.name][0], state, context)
        if isinstance(node, CaseOf):
            return self.run_branch(node, schedule.bodies[node.name], state, context)
        self.perform(node, state, context, partial(ActionBuilder.run_op, node=node))
        return state

    def _count_step(self, node: Node) -> None:
        """Count a step. Raises _TooManyStates beyond the limit of steps."""
        self._steps += 1
        if self._steps > self._most:
            raise _TooManyStates(node, f"the body versions around it make more than {self._most} steps")

    def _last_reads(self, steps: Sequence[Node], wanted: Iterable[Value]) -> dict[int, set[str]]:
        """Return the pointers assigned by `steps`, by the position of the last step that needs the pointer."""
        assigned = {value.name for node in steps if node.subgraphs for value in node.defs} & self.layout.pointers
        if not assigned:
            return {}
        last = dict.fromkeys(assigned, 0)
        for i, node in enumerate(steps):
            last.update(dict.fromkeys(self._tokens_of([*required_values(node), *node.defs]) & assigned, i))
        kept = self._tokens_of(wanted)
        droppable: dict[int, set[str]] = {}
        for name in sorted(assigned - kept):
            droppable.setdefault(last[name], set()).add(name)
        return droppable

    def _tokens_of(self, values: Iterable[Value]) -> set[str]:
        """Return the tokens in the contents of values."""
        return {piece.token for value in values for piece in self.contents.get(value.name, ())}

    def run_branch(
        self, node: CaseOf, bodies: Sequence[Schedule], state: AbstractState, context: Context
    ) -> AbstractState:
        """Run every arm of a branch from the same state; return the meet of the ends."""
        self.perform(node, state, context, lambda actions: actions.read_index(node))
        ends: list[AbstractState] = []
        for position in range(len(node.arms) + bool(node.fallbacks)):
            path, outputs = state.copy(), node.fallbacks
            if position < len(node.arms):
                outputs = node.arms[position].outputs
                path = self.run_graph(node.arms[position], bodies[position], path, context)
            build, moves = (
                partial(ActionBuilder.end_of_arm, node=node, position=position),
                _pairs(outputs, node.outputs),
            )
            self.perform(node, path, context, build, moves)
            path.drop(self._names_in_body(node)[0])
            ends.append(self._record_exit(node, position, path))
        return self._meet_of(ends, node) if ends else state

    def run_loop(self, node: While, body: Schedule, state: AbstractState, context: Context) -> AbstractState:
        """Run the body versions of a loop until all entry states are stable; return the state after the loop."""
        record = self.layout.rolled.get((node.name, context))
        if record is not None and record.copies > MOST_COPIES:
            raise _TooManyStates(node, f"it has more than {MOST_COPIES} body versions")
        self.perform(
            node, state, context, lambda actions: actions.enter_loop(node), _pairs(node.inits, node.parameters)
        )
        run = self._loops.setdefault((node.name, context), LoopFixpoint(node, context))
        before = self.findings
        before.append(run)
        todo = [0] if self._merge_into_entry(run, 0, state) else []
        while todo:
            copy = todo.pop(0)
            self._count_step(node)
            self.findings = run.findings[copy] = []
            inside = context if record is None else (*context, (node.name, copy))
            left, end = self.run_iteration(node, body, run.entries[copy], inside)
            run.exits[copy] = self._record_exit(node, copy, left)
            for following, then in self._successor_versions(record, copy, inside, node, end):
                then.forget_exits(self._names_in_body(node)[1])
                if self._merge_into_entry(run, following, then) and following not in todo:
                    todo.append(following)
        self.findings = before
        return self._meet_of([left.copy() for left in run.exits.values()], node)

    def _successor_versions(
        self, record: RolledLoop | None, copy: int, inside: Context, node: While, end: AbstractState
    ) -> Sequence[tuple[int, AbstractState]]:
        """Return the body versions that may follow `copy`, each with the state for its entry."""
        if record is None:
            return [(0, end)]
        known: Decisions = {}
        if self.jumps.transitions_from(record, copy):
            known = decisions_in(node.body, lambda inner: self._version_count(inner, inside))
        self.findings += self.jumps.coverage_findings(record, copy, known)
        return self.jumps.successors(record, copy, end, known)

    def _version_count(self, node: While, context: Context) -> int:
        """Return the number of body versions of a loop in a context."""
        record = self.layout.rolled.get((node.name, context))
        return 1 if record is None else record.copies

    def _record_exit(self, node: Node, way: int, state: AbstractState) -> AbstractState:
        """Return the state after an exit, recorded in the path conditions if transitions depend on the node."""
        if node.name in self._deciding:
            state.record_exit((value.name for value in node.defs), node.name, way)
        return state

    def _merge_into_entry(self, run: LoopFixpoint, copy: int, state: AbstractState) -> bool:
        """Merge a state into the entry state of a body version; True if the entry state changed."""
        if copy not in run.entries:
            run.entries[copy] = state.copy()
            return True
        before = run.entries[copy].coverage_key
        run.entries[copy] = self._meet_of([run.entries[copy], state], run.node)
        return run.entries[copy].coverage_key != before

    def run_iteration(
        self, node: While, body: Schedule, head: AbstractState, context: Context
    ) -> tuple[AbstractState, AbstractState]:
        """Run one iteration of a body version; return the states after the exit edge and after the back edge."""
        edge, state = partial(self.perform, node, context=context), head.copy()
        edge(state, build=lambda actions: actions.begin_iteration(node))
        late = (value for after in node.body.nodes[node.check :] for value in required_values(after))
        # An iterator: `_last_reads` consumes it in the first iteration only, and its result is cached.
        later = chain(node.body.outputs, conditions_of(node), late)
        state = self.run_nodes(node.body.nodes[: node.check], body, state, context, later)
        edge(state, build=lambda actions: actions.read_condition(node))
        left = state.copy()
        edge(left, build=lambda actions: actions.exit_loop(node), moves=self._read_finals(node))
        left.end_scope(self._names_in_body(node)[0])
        edge(state, build=lambda actions: actions.fetch_slices(node))
        state = self.run_nodes(node.body.nodes[node.check :], body, state, context, node.body.outputs)
        edge(state, build=lambda actions: actions.store_rows(node))
        back = _pairs(node.updates, node.parameters)
        edge(state, build=lambda actions: actions.assign_updates(node), moves=back, ends_round=node)
        return left, state

    def _read_finals(self, node: While) -> list[tuple[Value, Value]]:
        """Return the (parameter, final) pairs of a loop, without the finals that no node and no caller reads."""
        return [pair for pair in _pairs(node.parameters, node.finals) if pair[1] in self._read]

    def perform(
        self,
        node: Node,
        state: AbstractState,
        context: Context,
        build: Build,
        moves: Sequence[tuple[Value, Value]] = (),
        ends_round: While | None = None,
    ) -> None:
        """Perform the actions that `build` makes for this point; then bind pointers according to `moves`.

        If an operand is a pointer with several targets, the replay performs the action for each target.
        """
        here = self.layout.in_context(context, state.first_targets())
        actions = self._actions_at(node, state, here, build)
        targets = self._bindings_after(node, moves, state, here, stored=ends_round is not None)
        for value, where in dict.fromkeys((value, action.where) for action in actions for value in action.reads):
            self.check_read(value, state, here, where, reader=node)
        writes = dict.fromkeys((write, action.where) for action in actions for write in action.writes)
        resolved = [(w, state.resolve(w.content), state.resolve(w.source), where) for w, where in writes]
        named: Callable[[Content], Content] | None = None
        state.pointers |= targets
        if ends_round is not None:
            named = state.end_scope(
                self._names_in_body(ends_round)[0], keeping={value.name for value in ends_round.parameters}
            )
        for write, content, source, where in resolved:
            for spoilt in self.layout.cells.invalidated_regions(write.region) if write.touched else ():
                state.forget(spoilt, where)
            state.write(write.region, content, where, named(source) if named else source)

    def _actions_at(self, node: Node | None, state: AbstractState, here: PlanLayout, build: Build) -> list[Action]:
        """Return the distinct actions at a point, one for each index of pointer targets.

        The replay records overlaps and accesses of each action separately.
        """
        actions = [self._action_at(node, here, build)]
        moving = [value.name for value in (*actions[0].reads, *(node.uses if node else ()))]
        for regions in state.further_targets(moving):
            actions.append(self._action_at(node, self.layout.in_context(here.context, regions), build))
        return actions

    def _action_at(self, node: Node | None, here: PlanLayout, build: Build) -> Action:
        """Return the action at a point, and record its overlap findings and accesses.

        The replay caches the action of an op without pointers for each context: every iteration has the same action.
        """
        key = None
        if node is not None and not isinstance(node, While | CaseOf):
            key = None if any(map(here.is_pointer, (*node.uses, *node.defs))) else (node.name, here.context)
        known = self._cached_actions.get(key) if key else None
        if known is None:
            action = build(ActionBuilder(here, self.contents, self.origins))
            known = action, list(check_overlaps(node, action, here))
        if key:
            self._cached_actions[key] = known
        self.findings += known[1]
        self.accesses.note(known[0], here)
        return known[0]

    def perform_updates(self, graph: Graph, state: AbstractState) -> None:
        """Perform the updates of a graph in parallel: every target's region then holds the content of its source."""
        here = self.layout.in_context((), state.first_targets())
        several = self._actions_at(None, state, here, lambda actions: actions.update_state(graph))
        for value in dict.fromkeys(value for action in several for value in action.reads):
            self.check_read(value, state, here, several[0].where)
        for write in dict.fromkeys(write for action in several for write in action.writes):
            state.write(write.region, state.resolve(write.content), several[0].where)

    def _bindings_after(
        self, node: Node, moves: Sequence[tuple[Value, Value]], state: AbstractState, here: PlanLayout, *, stored: bool
    ) -> dict[str, Pointer]:
        """Return the bindings of pointers after `moves`.

        `stored` is True if the loop has just stored the rows of the iteration.
        """
        targets: dict[str, Pointer] = {}
        for source, to in moves:
            if to.name not in self.layout.pointers:
                continue
            cells, pointer, region = here.cells, state.pointers.get(source.name), here.region_of(source)
            content = self.contents.get(source.name, own_content(source))
            inside = [
                place
                for place in (pointer.targets if pointer else [region])
                if place and place.storage in cells.by_name
            ]
            if not inside:
                if pointer is not None or region is not None:
                    targets[to.name] = pointer or state.pointer_to(region or Region("", 0, 0), content)
                continue
            row = cells.latest_row_of(inside[0], node.name) if stored and pointer is None else None
            if row is not None and isinstance(node, While) and source in node.rows:
                targets[to.name] = state.pointer_to(inside[0], content, row)
            elif pointer is not None and not stored and _is_final_of_parameter(node, source, to):
                targets[to.name] = pointer
            else:
                what = f"binds {to} to {source}, which moves from iteration to iteration"
                names = (to.name, source.name)
                self.findings.append(Finding("bad-stride", "the plan", what, "copy one of the two", names))
        return targets

    def _meet_of(self, states: Sequence[AbstractState], node: Node) -> AbstractState:
        """Return the meet of states. Raises _TooManyStates for a pointer with more than MOST_TARGETS regions."""
        met = reduce(AbstractState.meet, states)
        for name, pointer in met.pointers.items():
            if len(pointer.targets) > MOST_TARGETS:
                raise _TooManyStates(node, f"%{name} can be bound to more than {MOST_TARGETS} regions")
        return met

    def _names_in_body(self, node: Node) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of all values, and of all deciding nodes, in the sub-graphs of a node."""
        if node.name not in self._names:
            values = frozenset(value.name for sub in node.subgraphs for value in sub.values())
            nodes = frozenset(inner.name for sub in node.subgraphs for inner in sub.walk())
            self._names[node.name] = values, nodes & self._deciding
        return self._names[node.name]

    def check_read(
        self,
        value: Value,
        state: AbstractState,
        here: PlanLayout,
        where: str,
        rule: str = "",
        reader: Node | None = None,
    ) -> None:
        """Check that every byte of the value lies in the value's region, or in each possible region of a pointer."""
        names = (value.name, reader.name) if reader is not None else (value.name,)
        pointer, region = state.pointers.get(value.name), here.region_of(value)
        if pointer is not None:
            for place, target in pointer.all_bindings:
                broken = list(target.invalid_bytes.segments_within(place.storage, place.offset, place.end))
                self.findings += [misread_finding(value, place, broken, where, rule, names)] if broken else []
        elif value.name not in self.layout.pointers and region is not None:
            wrong = state.mismatches(region, self.contents.get(value.name, own_content(value)))
            self.findings += [misread_finding(value, region, wrong, where, rule, names)] if wrong else []
        elif value.nbytes and here.has_varying_region(value):
            what = f"reads {value}, which has no placement in this body version"
            self.findings.append(Finding("undefined", where, what, names=names))


def _is_final_of_parameter(node: Node, source: Value, to: Value) -> bool:
    """True if the move assigns a parameter of a loop to a final value.

    The only possible slice in the parameter is then the latest row.
    """
    return isinstance(node, While) and source in node.parameters and to in node.finals


def _pairs(sources: Sequence[Value], targets: Sequence[Value | None]) -> list[tuple[Value, Value]]:
    """Return the (source, target) pairs of a parallel assignment, without absent targets."""
    return [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]

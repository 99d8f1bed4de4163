"""The computation graph at run time: the points of a plan as bound calls, and the control flow between calls.

All lookups happen while the program is built; a run only calls prepared lists. `Watch` wraps the action of each
point: poisoning, profiling and tests thereby observe every point of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sublet.base.errors import PlanError, RunError, SubletError
from sublet.ir.dataflow import slices_and_rows
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import MEASURE, SUSPEND
from sublet.plan import Context, Region, RolledLoop, Stride
from sublet.plan.schedule import Schedule, graph_with_swapped_updates
from sublet.runtime.call_merging import ErrorContext, LazyBinding, merge_calls, with_error_context
from sublet.runtime.kernel import Call, Operand, no_op
from sublet.runtime.loop import (
    NOWHERE,
    BoundBodyVersion,
    BoundBranch,
    BoundLoop,
    CurrentRow,
    Target,
    counter_writer,
    resolve_target,
    scalar_reader,
    store_then_carry,
)
from sublet.runtime.memory import ExecutableMemory, ValuePlaces
from sublet.runtime.moves import (
    CopyCounter,
    LoopStep,
    bind_fetch,
    bind_row_store,
    bind_storage_swap,
    check_moves,
    open_rows,
    parallel_move,
)
from sublet.runtime.rebinding import AddressHolders, BindNode
from sublet.runtime.state import NO_POINTS, PointRange
from sublet.runtime.streams import Task, Workers, streamed_calls

Watch = Callable[[int, Call], Call]
"""(index of the point, its action) -> the action called in its place."""

SpanOf = Callable[[Call], PointRange]


def pass_through(point: int, action: Call) -> Call:
    """Return every action unchanged."""
    return action


def refuse_measurement() -> None:
    """Raise RunError: a program for single shapes measures no extent, see `ranged_control`."""
    raise RunError("an extent that depends on data has no single value: run with `compile_ranges`")


class BoundProgram:
    """A bound program; `calls` run the program once.

    moved    the counter of bytes copied by loops, branches and updates
    holders  the record of calls holding addresses of a storage
    failed   the points of the step that raised; UNBEGUN before a run, and past all points after a complete run
    """

    def __init__(
        self, calls: tuple[Call, ...], moved: CopyCounter, points: int, span: SpanOf, holders: AddressHolders
    ) -> None:
        self.calls = calls
        self.holders = holders
        self.moved = moved
        self.failed = NO_POINTS
        self._ended = PointRange(points + 1, points + 1)
        self._span = span

    def run(self) -> None:
        """Run the program once."""
        self.moved.nbytes = 0
        call: Call = no_op
        try:
            for call in self.calls:
                call()
        except BaseException:
            self.failed = self._span(call)
            raise
        self.failed = self._ended


def build_program(
    graph: Graph,
    schedule: Schedule,
    memory: ExecutableMemory,
    bind: BindNode,
    workers: Workers | None,
    watch: Watch = pass_through,
) -> BoundProgram:
    """Return the program of `graph` in the order of `schedule`, in bound memory.

    Without `workers` the streams run in the calling thread, in the order of the schedule. Raises PlanError when
    the plan lists other points than the program has.
    """
    builder = _ProgramBuilder(memory, bind, workers, watch)
    start = builder.bind_point("start", None, no_op)
    body = builder.bind_graph(graph, schedule)
    graph = graph_with_swapped_updates(graph, memory.plan.exchanged)
    sources = [source for _, source in graph.updates]
    update = builder.move_point("update", None, sources, graph.updated_values) if sources else no_op
    end = builder.bind_point("end", None, no_op)
    exchange = builder.bind_swap()
    calls = tuple(call for call in (start, *body, update, end, exchange) if call is not no_op)
    builder.holders.record_calls(calls)
    return BoundProgram(calls, builder.moved, builder.points, builder.span_of, builder.holders)


class _ProgramBuilder:
    """Builds the program in the order of the points of the plan.

    The body of a loop is bound once per body version. Most bindings of renamed carries are known while building: the
    plan lists the bindings of parameters, and the results of loops and branches follow. A step with a binding known
    only during the run is bound lazily, once per case.
    """

    def __init__(self, memory: ExecutableMemory, bind: BindNode, workers: Workers | None, watch: Watch) -> None:
        self._points = memory.plan.points
        self.points = 0  # number of points bound so far
        self._memory = memory
        self._bind = bind
        self._workers = workers
        self._watch = watch
        self._context: Context = ()
        self._known: dict[str, Region] = {}  # regions of renamed results of loops and branches, the same in every run
        self._spans: dict[Call | str, PointRange] = {}  # by call, and by node name
        self._depth = 0  # nesting depth of the graph being built: 1 for the root
        self.holders = AddressHolders(memory)
        self.moved = CopyCounter()

    def span_of(self, call: Call) -> PointRange:
        """Return the points run by a call of the program, or, after a failure, the points of the failed nodes.

        A call running several streams covers all points.
        """
        if isinstance(call, ErrorContext):
            first, last = (self._spans[node.name] for node in call.nodes_at_failure)
            return PointRange(first.begin, last.end)
        return self._spans.get(call, PointRange(0, len(self._points)))

    def bind_point(self, kind: str, node: Node | None, action: Call) -> Call:
        """Return the watched action of the next point. Raises PlanError if the plan lists another point."""
        number, name = self.points, node.name if node else ""
        listed = [(point.kind, point.node) for point in self._points[number : number + 1]]
        if listed != [(kind, name)]:
            raise PlanError(f"the plan does not list {kind} {name} as point {number}. Plan the model again.")
        self.points += 1
        watched = self._watch(number, action)
        self._spans[watched] = PointRange(number, number + 1)
        return watched

    def bind_swap(self) -> Call:
        """Return the call that swaps storages after all points."""
        if not self._memory.plan.exchanged:
            return no_op
        call, count = bind_storage_swap(self._memory, self.moved), len(self._points)
        self._spans[call] = PointRange(count, count + 1)
        return call

    def bind_graph(self, graph: Graph, schedule: Schedule) -> list[Call]:
        return self.bind_steps(graph, schedule, 0, len(schedule.steps))

    def bind_steps(self, graph: Graph, schedule: Schedule, begin: int, end: int) -> list[Call]:
        by_name = {node.name: node for node in graph.nodes}
        tasks: list[Task] = []
        self._depth += 1
        for step in schedule.steps[begin:end]:
            node, begin_point = by_name[step.node], self.points
            call = self.bind_step(node, schedule.bodies.get(node.name, ()))
            self._spans[call] = self._spans[node.name] = PointRange(begin_point, self.points)
            tasks.append(Task(step, call))
        self._depth -= 1
        if schedule.streams > 1 and self._workers:
            return streamed_calls(tasks, self._workers)
        return merge_calls([task.call for task in tasks if task.call is not no_op])

    def bind_step(self, node: Node, bodies: Sequence[Schedule]) -> Call:
        if isinstance(node, While):
            return self.bind_loop(node, bodies[0])
        if isinstance(node, CaseOf):
            return self.bind_branch(node, bodies)
        if node.op == SUSPEND:
            return self.bind_point("run", node, ErrorContext((node,), no_op))
        if node.op == MEASURE:
            return self.bind_point("run", node, ErrorContext((node,), refuse_measurement))
        values = (*node.uses, *node.defs)
        in_rows = not self._memory.in_rows.isdisjoint(value.name for value in values)
        root = node if self._depth == 1 and not in_rows else None  # a node in rows may have several calls
        bind = self._bind
        action = self.bind_at_places(values, lambda places: with_error_context(node, bind(node, places)), root)
        return self.bind_point("run", node, action)

    def bind_at_places(
        self, values: Iterable[Value], make: Callable[[ValuePlaces], Any], root: Node | None = None
    ) -> Any:
        """Return `make` applied to the places of `values`; if the places depend on the run, a lazily bound action.

        `root` is the node of the call, if at the root level.
        """
        values = list(values)
        fixed: dict[str, Region] = {}
        varying: dict[str, None] = {}
        moving: dict[str, tuple[Stride, ...]] = {}
        for value in values:
            if strides := self._memory.strides(value, self._context):
                moving[value.name] = strides
            target = self.target_of(value) if value.name in self._memory.pointers else None
            if isinstance(target, Region):
                fixed[value.name] = target
            elif target is not None:
                varying[value.name] = None
        if not varying and not moving:
            action = make(self._memory.places_at(self._context, fixed))
            if action is not no_op:
                self.holders.note(values, self._context, fixed, root)
            return action
        self.holders.note(values, self._context, None if varying else fixed)
        return LazyBinding(self._memory, self._context, fixed, tuple(varying), moving, make)

    def target_of(self, value: Value) -> Target:
        """Return the target of a value: its region, or its binding if the value is a renamed carry."""
        if value.name in self._memory.pointers:
            known = self._memory.entry_binding(value, self._context) or self._known.get(value.name)
            return known or value
        if self._memory.strides(value, self._context):
            return CurrentRow(value, self._context)
        return self._memory.region(value, self._context, {})

    def move_point(
        self, kind: str, node: Node | None, sources: Sequence[Value], targets: Sequence[Value | None]
    ) -> Call:
        """Return a point with a parallel assignment: real values are copied, renamed carries are rebound."""
        return self.bind_point(kind, node, self.bind_move(sources, targets))

    def bind_move(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> Call:
        """Return the call of a parallel assignment, without a point."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]
        real = [(source, to) for source, to in pairs if to.name not in self._memory.pointers]
        aims = {to.name: self.target_of(source) for source, to in pairs if to.name in self._memory.pointers}
        memory, moved = self._memory, self.moved  # the calls hold no reference to the builder, which holds the calls

        def make(places: ValuePlaces) -> Call:
            return parallel_move([(places.operand(source), places.operand(to)) for source, to in real], moved)

        copy: Call = self.bind_at_places((value for pair in real for value in pair), make)
        pointed = memory.pointed
        if not aims:
            return copy

        def assign() -> None:
            assigned = {to: resolve_target(aim, memory) for to, aim in aims.items()}
            copy()
            pointed.update(assigned)

        return assign

    def record_exit_targets(self, pointers: Sequence[Value | None], ways: Sequence[Sequence[Target]]) -> None:
        """Record the regions of renamed results after a loop or branch, where all exits bind the same region."""
        for position, pointer in enumerate(pointers):
            if pointer is not None and pointer.name in self._memory.pointers:
                first, *others = (way[position] for way in ways)
                self._known.pop(pointer.name, None)
                if isinstance(first, Region) and all(other == first for other in others):
                    self._known[pointer.name] = first

    def exit_targets(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> list[Target]:
        """Return the target of each renamed carry among `targets`; NOWHERE for other values."""
        pointers = self._memory.pointers
        pairs = zip(sources, targets, strict=True)
        return [self.target_of(s) if t is not None and t.name in pointers else NOWHERE for s, t in pairs]

    def bind_branch(self, node: CaseOf, bodies: Sequence[Schedule]) -> Call:
        """Return the call of a branch: read the index, run an arm or the fallback."""
        check_moves(node)
        look = self.bind_point(
            "branch", node, self.bind_at_places([node.index], lambda places: scalar_reader(places.operand(node.index)))
        )
        arms: list[tuple[Sequence[Call], Call]] = []
        ways: list[list[Target]] = []
        for arm, schedule in zip(node.arms, bodies, strict=True):
            inside = self.bind_graph(arm, schedule)
            ways.append(self.exit_targets(arm.outputs, node.outputs))
            leave = self.exit_call(node, len(arms), self.move_point("yield", node, arm.outputs, node.outputs))
            arms.append((inside, leave))
        bypass: tuple[Sequence[Call], Call] | None = None
        if node.fallbacks:
            ways.append(self.exit_targets(node.fallbacks, node.outputs))
            leave = self.exit_call(node, len(arms), self.move_point("yield", node, node.fallbacks, node.outputs))
            bypass = (), leave
        self.record_exit_targets(node.outputs, ways)
        return BoundBranch(node, look, arms, bypass)

    def bind_loop(self, node: While, schedule: Schedule) -> Call:
        """Return the call of a loop, with all body versions bound."""
        check_moves(node)
        places = self._memory.places_at(self._context, {})
        collecting = open_rows(node, places.operand)
        outer, rolled = self._context, self._memory.rolled.get((node.name, self._context))
        copies: list[Context] = [outer]
        if rolled is not None:
            copies = [(*outer, (node.name, copy)) for copy in range(rolled.copies)]
        assigned = [None if self.is_bound_by_plan(parameter, copies) else parameter for parameter in node.parameters]
        enter = self.move_point("enter", node, node.inits, assigned)
        rounds: list[BoundBodyVersion] = []
        for self._context in copies:
            rounds.append(self.bind_version(node, schedule, assigned))
        ways: list[list[Target]] = []
        for copy, self._context in enumerate(copies):
            rounds[copy].exit_call = self.exit_call(
                node, copy, self.move_point("exit", node, node.parameters, node.finals)
            )
            ways.append(self.exit_targets(node.parameters, node.finals))
        self._context = outer
        self.record_exit_targets(node.finals, ways)
        following = [0] if rolled is None else [self.version_after(rolled, copy) for copy in range(rolled.copies)]
        return BoundLoop(node, enter, rounds, following, collecting, places, self.moved)

    def is_bound_by_plan(self, parameter: Value, copies: Iterable[Context]) -> bool:
        """True if the plan binds a renamed parameter in every body version: no assignment during the run."""
        pointing = parameter.name in self._memory.pointers
        return pointing and all(self._memory.entry_binding(parameter, copy) is not None for copy in copies)

    def exit_call(self, node: Node, way: int, leave: Call) -> Call:
        """Return the exit of a loop or branch, recording the exit edge if the edge decides a later transition."""
        if node.name not in self._memory.deciding_nodes:
            return leave
        ways, name = self._memory.exits_taken, node.name

        def note() -> None:
            ways[name] = way
            leave()

        return note

    def version_after(self, rolled: RolledLoop, copy: int) -> int | Callable[[], int]:
        """Return the body version after version `copy`, or a function that decides during the run."""
        ways = self._memory.exits_taken
        if any(jump.copy == copy and jump.ways for jump in rolled.jumps):
            return lambda: rolled.next_version(copy, ways)
        return rolled.next_version(copy, ways)

    def bind_version(self, node: While, schedule: Schedule, assigned: Sequence[Value | None]) -> BoundBodyVersion:
        """Bind one body version; `assigned` lists the parameters assigned by the updates, None for skipped ones."""
        body, here = node.body, self._memory.places_at(self._context, {})
        begin = self.bind_iteration_point("round", node, counter_writer(here.operand(node.counter)))
        before = tuple(self.bind_steps(body, schedule, 0, node.check))
        condition = node.condition
        goes_on = self.bind_point(
            "check", node, self.bind_at_places([condition], lambda places: scalar_reader(places.operand(condition)))
        )
        slices, rows = self.copied_steps(node, "slice"), self.copied_steps(node, "row")
        fetch = None
        if node.slices:
            take = slices and self.bind_at_places(_values(slices), lambda places: bind_fetch(slices, places.operand))
            fetch = self.bind_iteration_point("fetch", node, take or None)
        rest = tuple(self.bind_steps(body, schedule, node.check, len(schedule.steps)))
        store = (
            self.bind_at_places(_values(rows), lambda places: bind_row_store(rows, places.operand)) if rows else None
        )
        carry = self.bind_move(node.updates, assigned)
        end = self.bind_iteration_point("next", node, store_then_carry(store, carry))
        return BoundBodyVersion(
            begin, before, goes_on, fetch, rest, end, sum(part.nbytes for part, *_ in (*slices, *rows))
        )

    def copied_steps(self, node: While, kind: str) -> list[LoopStep]:
        """Return the slices or rows outside their wholes, which need a copy."""
        return [
            (part, whole, axis, backwards)
            for found, part, whole, axis, backwards in slices_and_rows(node)
            if found == kind
            and not self._memory.is_step_of(part, whole, Stride(node.name, part.nbytes, backwards), self._context)
        ]

    def bind_iteration_point(
        self, kind: str, node: Node, action: Callable[[int], None] | None
    ) -> Callable[[int], None] | None:
        """Return the watched action of the next point, for an action that receives the number of the iteration."""
        current = [0]
        if action is None:
            watched = self.bind_point(kind, node, no_op)
            return None if watched is no_op else lambda k: watched()
        act = action
        plain: Call = lambda: act(current[0])  # noqa: E731
        watched = self.bind_point(kind, node, plain)
        if watched is plain:
            return act

        def tell(k: int) -> None:
            current[0] = k
            watched()

        return tell


def _values(steps: Iterable[LoopStep]) -> list[Value]:
    return [value for part, whole, *_ in steps for value in (part, whole)]


def operands(values: Sequence[Value | None], places: ValuePlaces) -> list[Operand | None]:
    """Return the operand of each value of a node; None for an omitted value."""
    return [None if value is None else places.operand(value) for value in values]


# Cache of the bound programs of an executable: a program per arrangement of swapped storages.


class ProgramCache:
    """The programs of an executable, bound on demand, and rebound after a change of memory."""

    def __init__(self, memory: ExecutableMemory) -> None:
        self._memory = memory
        self._programs: dict[tuple[int, ...], BoundProgram] = {}  # by the addresses of swapped storages

    def current_program(self, build: Callable[[], BoundProgram]) -> BoundProgram:
        """Return the program for the current arrangement; also bind programs for the following arrangements."""
        found, memory = self._programs, self._memory
        if memory.arrangement not in found:
            with memory.restoring_storages():
                while (arrangement := memory.arrangement) not in found:
                    found[arrangement] = build()
                    memory.swap_storages()
        return found[memory.arrangement]

    def forget(self) -> None:
        """Drop all programs; each is bound again on demand."""
        self._programs.clear()

    def try_repoint(self, name: str, given: Any) -> bool:
        """True if repointing a few calls sufficed to bind new memory. Raises RunError if the memory does not fit."""
        program = self._programs.get(())
        try:
            return program is not None and program.holders.try_repoint(name, given)
        except SubletError:
            raise
        except BaseException:  # some calls may be repointed, and others not
            self.forget()
            raise

    def rebind(self, storage: str, bind: Callable[[], BindNode]) -> bool:
        """Rebind the calls holding addresses of a storage; False if the whole program must be bound again."""
        if not self._programs:
            return False
        done = False
        try:
            program = self._programs.get(())
            done = program is not None and program.holders.rebind(storage, bind())
        finally:
            if not done:
                self.forget()
        return done

    def learn(self, name: str, value: Value) -> None:
        """Prepare fast repointing of a value under the name `name`, since callers rebind the same value often."""
        self._programs[()].holders.learn(name, value)

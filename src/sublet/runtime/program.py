"""The computation graph at run time: the points of a plan as bound calls, and the control flow between calls.

All lookups happen while the program is built; a run only calls prepared lists. `Watch` wraps the action of each
point: poisoning, profiling and tests thereby observe every point of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sublet.base.errors import PlanError, RunError
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import steps
from sublet.plan import Context, Region, Rolled, Stride
from sublet.plan.exchange import placed
from sublet.plan.schedule import Schedule
from sublet.runtime.calls import nothing
from sublet.runtime.cuts import CUT
from sublet.runtime.joining import Guarded, guarded, joined
from sublet.runtime.kernel import Call, Operand
from sublet.runtime.left import UNBEGUN, Span
from sublet.runtime.memory import Memory, Places
from sublet.runtime.moves import (
    Moved,
    Step,
    check_moves,
    exchanging,
    fetcher,
    open_rows,
    parallel_move,
    storer,
)
from sublet.runtime.rebinding import BindNode, Holders
from sublet.runtime.rounds import Loop, Round, both, counter, reader
from sublet.runtime.streams import Task, Workers, streamed_calls
from sublet.runtime.targets import NOWHERE, RowOfNow, Target, now
from sublet.runtime.varying import Varying

Watch = Callable[[int, Call], Call]
"""(index of the point, its action) -> the action called in its place."""

SpanOf = Callable[[Call], Span]


def unwatched(point: int, action: Call) -> Call:
    """Return every action unchanged."""
    return action


class Program:
    """A bound program; `calls` run the program once.

    moved    the counter of bytes copied by loops, branches and updates
    holders  the record of calls holding addresses of a storage
    failed   the points of the step that raised; UNBEGUN before a run, and past all points after a complete run
    """

    def __init__(self, calls: tuple[Call, ...], moved: Moved, points: int, span: SpanOf, holders: Holders) -> None:
        self.calls = calls
        self.holders = holders
        self.moved = moved
        self.failed = UNBEGUN
        self._ended = Span(points + 1, points + 1)
        self._span = span

    def run(self) -> None:
        """Run the program once."""
        self.moved.nbytes = 0
        call: Call = nothing
        try:
            for call in self.calls:
                call()
        except BaseException:
            self.failed = self._span(call)
            raise
        self.failed = self._ended


def build(
    graph: Graph,
    schedule: Schedule,
    memory: Memory,
    bind: BindNode,
    workers: Workers | None,
    watch: Watch = unwatched,
) -> Program:
    """Return the program of `graph` in the order of `schedule`, in bound memory.

    Without `workers` the streams run in the calling thread, in the order of the schedule. Raises PlanError when
    the plan lists other points than the program has.
    """
    builder = _Builder(memory, bind, workers, watch)
    start = builder.point("start", None, nothing)
    body = builder.graph(graph, schedule)
    graph = placed(graph, memory.plan.exchanged)
    sources = [source for _, source in graph.updates]
    update = builder.move("update", None, sources, graph.updated) if sources else nothing
    end = builder.point("end", None, nothing)
    exchange = builder.exchange()
    calls = tuple(call for call in (start, *body, update, end, exchange) if call is not nothing)
    builder.holders.ended(calls)
    return Program(calls, builder.moved, builder.points, builder.span, builder.holders)


class _Builder:
    """Builds the program in the order of the points of the plan.

    The body of a loop is bound once per body version. Most bindings of renamed carries are known while building: the
    plan lists the bindings of parameters, and the results of loops and branches follow. A step with a binding known
    only during the run is bound lazily, once per case.
    """

    def __init__(self, memory: Memory, bind: BindNode, workers: Workers | None, watch: Watch) -> None:
        self._points = memory.plan.points
        self.points = 0  # number of points bound so far
        self._memory = memory
        self._bind = bind
        self._workers = workers
        self._watch = watch
        self._context: Context = ()
        self._known: dict[str, Region] = {}  # regions of renamed results of loops and branches, the same in every run
        self._spans: dict[Call | str, Span] = {}  # by call, and by node name
        self._depth = 0  # nesting depth of the graph being built: 1 for the root
        self.holders = Holders(memory)
        self.moved = Moved()

    def span(self, call: Call) -> Span:
        """Return the points run by a call of the program, or, after a failure, the points of the failed nodes.

        A call running several streams covers all points.
        """
        if isinstance(call, Guarded):
            first, last = (self._spans[node.name] for node in call.reached)
            return Span(first.begin, last.end)
        return self._spans.get(call, Span(0, len(self._points)))

    def point(self, kind: str, node: Node | None, action: Call) -> Call:
        """Return the watched action of the next point. Raises PlanError if the plan lists another point."""
        number, name = self.points, node.name if node else ""
        listed = [(point.kind, point.node) for point in self._points[number : number + 1]]
        if listed != [(kind, name)]:
            raise PlanError(f"the plan does not list {kind} {name} as its point {number}: plan the model again")
        self.points += 1
        watched = self._watch(number, action)
        self._spans[watched] = Span(number, number + 1)
        return watched

    def exchange(self) -> Call:
        """Return the call that swaps storages after all points."""
        if not self._memory.plan.exchanged:
            return nothing
        call, count = exchanging(self._memory, self.moved), len(self._points)
        self._spans[call] = Span(count, count + 1)
        return call

    def graph(self, graph: Graph, schedule: Schedule) -> list[Call]:
        return self.steps(graph, schedule, 0, len(schedule.steps))

    def steps(self, graph: Graph, schedule: Schedule, begin: int, end: int) -> list[Call]:
        by_name = {node.name: node for node in graph.nodes}
        tasks: list[Task] = []
        self._depth += 1
        for step in schedule.steps[begin:end]:
            node, begin_point = by_name[step.node], self.points
            call = self.step(node, schedule.bodies.get(node.name, ()))
            self._spans[call] = self._spans[node.name] = Span(begin_point, self.points)
            tasks.append(Task(step, call))
        self._depth -= 1
        if schedule.streams > 1 and self._workers:
            return streamed_calls(tasks, self._workers)
        return joined([task.call for task in tasks if task.call is not nothing])

    def step(self, node: Node, bodies: Sequence[Schedule]) -> Call:
        if isinstance(node, While):
            return self.loop(node, bodies[0])
        if isinstance(node, CaseOf):
            return self.branch(node, bodies)
        if node.op == CUT:
            return self.point("run", node, Guarded((node,), nothing))
        values = (*node.uses, *node.defs)
        root = node if self._depth == 1 else None
        return self.point("run", node, self.bound(values, lambda places: guarded(node, self._bind(node, places)), root))

    def bound(self, values: Iterable[Value], make: Callable[[Places], Any], root: Node | None = None) -> Any:
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
            target = self.target(value) if value.name in self._memory.pointers else None
            if isinstance(target, Region):
                fixed[value.name] = target
            elif target is not None:
                varying[value.name] = None
        if not varying and not moving:
            action = make(self._memory.here(self._context, fixed))
            if action is not nothing:
                self.holders.note(values, self._context, fixed, root)
            return action
        self.holders.note(values, self._context, None if varying else fixed)
        return Varying(self._memory, self._context, fixed, tuple(varying), moving, make)

    def target(self, value: Value) -> Target:
        """Return the target of a value: its region, or its binding if the value is a renamed carry."""
        if value.name in self._memory.pointers:
            known = self._memory.head(value, self._context) or self._known.get(value.name)
            return known or value
        if self._memory.strides(value, self._context):
            return RowOfNow(value, self._context)
        return self._memory.region(value, self._context, {})

    def move(self, kind: str, node: Node | None, sources: Sequence[Value], targets: Sequence[Value | None]) -> Call:
        """Return a point with a parallel assignment: real values are copied, renamed carries are rebound."""
        return self.point(kind, node, self.moving(sources, targets))

    def moving(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> Call:
        """Return the call of a parallel assignment, without a point."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]
        real = [(source, to) for source, to in pairs if to.name not in self._memory.pointers]
        aims = {to.name: self.target(source) for source, to in pairs if to.name in self._memory.pointers}

        def make(places: Places) -> Call:
            return parallel_move([(places.operand(source), places.operand(to)) for source, to in real], self.moved)

        copy: Call = self.bound((value for pair in real for value in pair), make)
        pointed = self._memory.pointed
        if not aims:
            return copy

        def assign() -> None:
            assigned = {to: now(aim, self._memory) for to, aim in aims.items()}
            copy()
            pointed.update(assigned)

        return assign

    def aim(self, pointers: Sequence[Value | None], ways: Sequence[Sequence[Target]]) -> None:
        """Record the regions of renamed results after a loop or branch, where all exits bind the same region."""
        for position, pointer in enumerate(pointers):
            if pointer is not None and pointer.name in self._memory.pointers:
                first, *others = (way[position] for way in ways)
                self._known.pop(pointer.name, None)
                if isinstance(first, Region) and all(other == first for other in others):
                    self._known[pointer.name] = first

    def aims(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> list[Target]:
        """Return the target of each renamed carry among `targets`; NOWHERE for other values."""
        pointers = self._memory.pointers
        pairs = zip(sources, targets, strict=True)
        return [self.target(s) if t is not None and t.name in pointers else NOWHERE for s, t in pairs]

    def branch(self, node: CaseOf, bodies: Sequence[Schedule]) -> Call:
        """Return the call of a branch: read the index, run an arm or the fallback."""
        check_moves(node)
        look = self.point("branch", node, self.bound([node.index], lambda places: reader(places.operand(node.index))))
        arms: list[tuple[Call, ...]] = []
        ways: list[list[Target]] = []
        for arm, schedule in zip(node.arms, bodies, strict=True):
            inside = self.graph(arm, schedule)
            ways.append(self.aims(arm.outputs, node.outputs))
            leave = self.leaving(node, len(arms), self.move("yield", node, arm.outputs, node.outputs))
            arms.append(_present(*inside, leave))
        bypass: tuple[Call, ...] | None = None
        if node.fallbacks:
            ways.append(self.aims(node.fallbacks, node.outputs))
            bypass = _present(self.leaving(node, len(arms), self.move("yield", node, node.fallbacks, node.outputs)))
        self.aim(node.outputs, ways)

        def take_arm() -> None:
            which = int(look())
            if which < 0 and bypass is not None:
                calls = bypass
            elif 0 <= which < len(arms):
                calls = arms[which]
            else:
                raise RunError(f"branch {node.name}: its index is {which}, but it has {len(arms)} arms")
            for call in calls:
                call()

        return take_arm

    def loop(self, node: While, schedule: Schedule) -> Call:
        """Return the call of a loop, with all body versions bound."""
        check_moves(node)
        places = self._memory.here(self._context, {})
        collecting = open_rows(node, places.operand)
        outer, rolled = self._context, self._memory.rolled.get((node.name, self._context))
        copies: list[Context] = [outer]
        if rolled is not None:
            copies = [(*outer, (node.name, copy)) for copy in range(rolled.copies)]
        assigned = [None if self.told(parameter, copies) else parameter for parameter in node.parameters]
        enter = self.move("enter", node, node.inits, assigned)
        rounds: list[Round] = []
        for self._context in copies:
            rounds.append(self.round(node, schedule, assigned))
        ways: list[list[Target]] = []
        for copy, self._context in enumerate(copies):
            rounds[copy].leave = self.leaving(node, copy, self.move("exit", node, node.parameters, node.finals))
            ways.append(self.aims(node.parameters, node.finals))
        self._context = outer
        self.aim(node.finals, ways)
        following = [0] if rolled is None else [self.following(rolled, copy) for copy in range(rolled.copies)]
        return Loop(node, enter, rounds, following, collecting, places, self.moved).run

    def told(self, parameter: Value, copies: Iterable[Context]) -> bool:
        """True if the plan binds a renamed parameter in every body version: no assignment during the run."""
        pointing = parameter.name in self._memory.pointers
        return pointing and all(self._memory.head(parameter, copy) is not None for copy in copies)

    def leaving(self, node: Node, way: int, leave: Call) -> Call:
        """Return the exit of a loop or branch, recording the exit edge if the edge decides a later transition."""
        if node.name not in self._memory.deciding:
            return leave
        ways, name = self._memory.ways, node.name

        def note() -> None:
            ways[name] = way
            leave()

        return note

    def following(self, rolled: Rolled, copy: int) -> int | Callable[[], int]:
        """Return the body version after version `copy`, or a function that decides during the run."""
        ways = self._memory.ways
        if any(jump.copy == copy and jump.ways for jump in rolled.jumps):
            return lambda: rolled.after(copy, ways)
        return rolled.after(copy, ways)

    def round(self, node: While, schedule: Schedule, assigned: Sequence[Value | None]) -> Round:
        """Bind one body version; `assigned` lists the parameters assigned by the updates, None for skipped ones."""
        body, here = node.body, self._memory.here(self._context, {})
        begin = self.point_of_round("round", node, counter(here.operand(node.counter)))
        before = tuple(self.steps(body, schedule, 0, node.check))
        condition = node.condition
        goes_on = self.point("check", node, self.bound([condition], lambda places: reader(places.operand(condition))))
        slices, rows = self.copied(node, "slice"), self.copied(node, "row")
        fetch = None
        if node.slices:
            take = slices and self.bound(_values(slices), lambda places: fetcher(slices, places.operand))
            fetch = self.point_of_round("fetch", node, take or None)
        rest = tuple(self.steps(body, schedule, node.check, len(schedule.steps)))
        store = self.bound(_values(rows), lambda places: storer(rows, places.operand)) if rows else None
        carry = self.moving(node.updates, assigned)
        end = self.point_of_round("next", node, both(store, carry))
        return Round(begin, before, goes_on, fetch, rest, end, sum(part.nbytes for part, *_ in (*slices, *rows)))

    def copied(self, node: While, kind: str) -> list[Step]:
        """Return the slices or rows outside their wholes, which need a copy."""
        return [
            (part, whole, axis, backwards)
            for found, part, whole, axis, backwards in steps(node)
            if found == kind
            and not self._memory.steps_through(part, whole, Stride(node.name, part.nbytes, backwards), self._context)
        ]

    def point_of_round(
        self, kind: str, node: Node, action: Callable[[int], None] | None
    ) -> Callable[[int], None] | None:
        """Return the watched action of the next point, for an action that receives the number of the iteration."""
        current = [0]
        if action is None:
            watched = self.point(kind, node, nothing)
            return None if watched is nothing else lambda k: watched()
        act = action
        plain: Call = lambda: act(current[0])  # noqa: E731
        watched = self.point(kind, node, plain)
        if watched is plain:
            return act

        def tell(k: int) -> None:
            current[0] = k
            watched()

        return tell


def _values(steps: Iterable[Step]) -> list[Value]:
    return [value for part, whole, *_ in steps for value in (part, whole)]


def _present(*calls: Call) -> tuple[Call, ...]:
    return tuple(call for call in calls if call is not nothing)


def operands(values: Sequence[Value | None], places: Places) -> list[Operand | None]:
    """Return the operand of each value of a node; None for an omitted value."""
    return [None if value is None else places.operand(value) for value in values]

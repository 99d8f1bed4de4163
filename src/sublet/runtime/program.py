"""The computation graph: the points of a flow as bound calls, and the control flow between them.

Everything is looked up while the program is built; running it is calling what lies in lists. `Watch`
wraps the action of each point: poisoning, profiling and tests see every point of a run that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.analysis.flow import Flow, Point
from sublet.analysis.schedule import Schedule
from sublet.errors import KernelError, RunError, SubletError
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.runtime.kernel import Call, Cell, Joinable, Operand
from sublet.runtime.memory import Memory
from sublet.runtime.moves import (
    Moved,
    bytes_a_round,
    check_moves,
    close_rows,
    fetcher,
    nothing,
    open_rows,
    parallel_move,
    round_limit,
    storer,
)
from sublet.runtime.streams import Task, Workers, streamed_calls

Watch = Callable[[int, Call], Call]
"""(index of the point, its action) -> what is called instead."""

BindNode = Callable[[Node], Call]


def unwatched(point: int, action: Call) -> Call:
    """Leaves every action as it is."""
    return action


@dataclass(frozen=True)
class Program:
    """A bound program: `calls` run it once. `moved` counts what its loops and branches copied."""

    calls: tuple[Call, ...]
    moved: Moved
    points: tuple[Point, ...]


def build(
    graph: Graph,
    schedule: Schedule,
    timeline: Flow,
    memory: Memory,
    bind: BindNode,
    workers: Workers | None,
    watch: Watch = unwatched,
) -> Program:
    """The program of `graph` in the order of `schedule`, whose flow is `timeline`, in bound memory.

    Without `workers` the streams run in this thread, their steps in the order the schedule lists.
    """
    builder = _Builder(timeline, memory, bind, workers, watch)
    start = builder.point("start", None, nothing)
    body = builder.graph(graph, schedule)
    end = builder.point("end", None, nothing)
    calls = tuple(call for call in (start, *body, end) if call is not nothing)
    return Program(calls, builder.moved, timeline.points)


class _Builder:
    """Walks the program in the order in which `analysis.flow` lays out its points."""

    def __init__(self, timeline: Flow, memory: Memory, bind: BindNode, workers: Workers | None, watch: Watch) -> None:
        self._points = timeline.points
        self._next = 0
        self._memory = memory
        self._bind = bind
        self._workers = workers
        self._watch = watch
        self.moved = Moved()

    def point(self, kind: str, node: Node | None, action: Call) -> Call:
        """The watched action of the next point, which must be the one that is meant."""
        expected = self._points[self._next]
        assert (expected.kind, expected.node) == (kind, node), f"the program has {kind}, the flow {expected}"
        self._next += 1
        return self._watch(self._next - 1, action)

    def graph(self, graph: Graph, schedule: Schedule) -> list[Call]:
        return self.steps(graph, schedule, 0, len(schedule.steps))

    def steps(self, graph: Graph, schedule: Schedule, begin: int, end: int) -> list[Call]:
        by_name = {node.name: node for node in graph.nodes}
        tasks: list[Task] = []
        for step in schedule.steps[begin:end]:
            node = by_name[step.node]
            tasks.append(Task(step, self.step(node, schedule.bodies.get(node.name, ()))))
        if schedule.streams > 1 and self._workers:
            return streamed_calls(tasks, self._workers)
        return joined([task.call for task in tasks if task.call is not nothing])

    def step(self, node: Node, bodies: Sequence[Schedule]) -> Call:
        if isinstance(node, While):
            return self.loop(node, bodies[0])
        if isinstance(node, CaseOf):
            return self.branch(node, bodies)
        return self.point("run", node, guarded(node, self._bind(node)))

    def move(self, kind: str, node: Node, sources: Sequence[Value], targets: Sequence[Value | None]) -> Call:
        pairs = [(self._at(s), self._at(t)) for s, t in zip(sources, targets, strict=True) if t is not None]
        return self.point(kind, node, parallel_move(pairs, self.moved))

    def _at(self, value: Value) -> Operand:
        return self._memory.operand(value)

    def branch(self, node: CaseOf, bodies: Sequence[Schedule]) -> Call:
        check_moves(node)
        look = self.point("branch", node, reader(self._at(node.index)))
        arms: list[tuple[Call, ...]] = []
        for arm, schedule in zip(node.arms, bodies, strict=True):
            inside = self.graph(arm, schedule)
            arms.append(_present(*inside, self.move("yield", node, arm.outputs, node.outputs)))
        bypass: tuple[Call, ...] | None = None
        if node.fallbacks:
            bypass = _present(self.move("yield", node, node.fallbacks, node.outputs))

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
        check_moves(node)
        body, at = node.body, self._at
        collecting = open_rows(node, at)
        enter = self.move("enter", node, node.inits, node.parameters)
        begin_round = self.point_of_round("round", node, _counter(at(node.counter)))
        before = tuple(self.steps(body, schedule, 0, node.check))
        goes_on = self.point("check", node, reader(at(node.condition)))
        fetch = self.point_of_round("fetch", node, fetcher(node, at)) if node.slices else None
        rest = tuple(self.steps(body, schedule, node.check, len(schedule.steps)))
        store = storer(node, at)
        pairs = [(at(s), at(t)) for s, t in zip(node.updates, node.parameters, strict=True)]
        carry = parallel_move(pairs, self.moved)
        end_round = self.point_of_round("next", node, _both(store, carry))
        leave = self.move("exit", node, node.parameters, node.finals)
        limit = round_limit(node)
        nbytes, moved = bytes_a_round(node), self.moved

        def run_loop() -> None:
            for cell in collecting:
                cell.content = []
            enter()
            k = 0
            while True:
                if begin_round:
                    begin_round(k)
                for call in before:
                    call()
                if not goes_on():
                    break
                if k == limit:
                    raise RunError(f"loop {node.name}: goes on beyond the {limit} rounds its memory was planned for")
                if fetch:
                    fetch(k)
                for call in rest:
                    call()
                if end_round:
                    end_round(k)
                k += 1
            moved.add(k * nbytes)
            leave()
            if collecting:
                close_rows(node, at)

        return run_loop

    def point_of_round(
        self, kind: str, node: Node, action: Callable[[int], None] | None
    ) -> Callable[[int], None] | None:
        """Like `point`, of an action that is told the number of the round."""
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


def _present(*calls: Call) -> tuple[Call, ...]:
    return tuple(call for call in calls if call is not nothing)


def _both(store: Callable[[int], None] | None, carry: Call) -> Callable[[int], None] | None:
    """First the rows are stored, then the carried values move."""
    if carry is nothing:
        return store
    if store is None:
        return lambda k: carry()

    def end_round(k: int) -> None:
        store(k)
        carry()

    return end_round


def _counter(operand: Operand) -> Callable[[int], None]:
    if isinstance(operand, Cell):
        cell = operand

        def count_cell(k: int) -> None:
            cell.content = k

        return count_cell
    array = operand.reshape(())

    def count(k: int) -> None:
        array[()] = k

    return count


def reader(operand: Operand) -> Callable[[], Any]:
    """A call that gives the one element of an operand."""
    if isinstance(operand, Cell):
        cell = operand
        return lambda: cell.content.item()
    return operand.item


class Guarded:
    """A call of one or more nodes; what it raises is told as a KernelError that names them."""

    __slots__ = ("call", "nodes")

    def __init__(self, nodes: Sequence[Node], call: Call) -> None:
        self.nodes = nodes
        self.call = call

    def __call__(self) -> None:
        try:
            self.call()
        except SubletError:
            raise
        except Exception as error:  # a kernel may raise anything
            raise KernelError(f"{_shown(self.nodes)}: {type(error).__name__}: {error}") from error


def _shown(nodes: Sequence[Node]) -> str:
    node = nodes[0]
    if len(nodes) > 1:
        return f"nodes {node.name} to {nodes[-1].name}, {len(nodes)} in one call"
    return f"node {node.name}, {node.op}{f' ({node.source})' if node.source else ''}"


def guarded(node: Node, call: Call) -> Call:
    """The call, with what it raises told as a KernelError that names the node."""
    return call if call is nothing else Guarded((node,), call)


def joined(calls: Sequence[Call]) -> list[Call]:
    """The calls in their order, those that can run as one made one."""
    found: list[Call] = []
    begin = 0
    while begin < len(calls):
        call, count = calls[begin], 1
        if isinstance(call, Guarded) and isinstance(call.call, Joinable):
            following: list[Guarded] = []
            for other in calls[begin + 1 :]:
                if not isinstance(other, Guarded):
                    break
                following.append(other)
            whole, more = call.call.joined([other.call for other in following])
            count += more
            call = Guarded((*call.nodes, *(node for other in following[:more] for node in other.nodes)), whole)
        found.append(call)
        begin += count
    return found


def operands(values: Sequence[Value | None], memory: Memory) -> list[Operand | None]:
    """Where each value of a node lies; None for an omitted one."""
    return [None if value is None else memory.operand(value) for value in values]

"""The layout of a program in which control flow copies as little as possible: flow, lives and buffers together.

First every value has bytes of its own, and sharing lets the ends of most moves be the same bytes. What would
still be copied becomes a pointer, its loop is unrolled for planning, and lives and buffers are found anew, until
nothing changes. A pointer whose target depends on choices of earlier rounds cannot be one: it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from sublet.analysis.content import contents
from sublet.analysis.exchange import placed
from sublet.analysis.flow import Flow, Point, flow
from sublet.analysis.instances import AlsoPointer, Refused, Reusable
from sublet.analysis.interference import MAX_BUFFERS
from sublet.analysis.liveness import LiveRanges, liveness
from sublet.analysis.merging import take_turns
from sublet.analysis.order import Concurrency
from sublet.analysis.sharing import SharedBuffer, copied, permitted
from sublet.analysis.windows import windows
from sublet.errors import PlanError
from sublet.ir.graph import CaseOf, Graph, Value, While
from sublet.ir.walk import assignments
from sublet.plan import POINTER, MemoryPlan
from sublet.plan.schedule import Schedule

MOST_TRIES = 8
"""So often is a program laid out with more pointers; what is still copied then is copied."""

MOST_LAID_OUT = 20_000
"""Points after which a program is not laid out once more, and what is too dear is given up at once."""

SHORT_ENOUGH = 2048
"""Points that may be laid out for any program; a longer one may become twice as long."""

Live = Callable[[Flow], LiveRanges]
Share = Callable[[Flow, LiveRanges], tuple[SharedBuffer, ...]]
Lodges = Callable[[Value, Value, int], bool]
"""Whether a row could be bytes of its whole, which is stacked along an axis."""


NOTHING: Mapping[Value, str] = {}


def nowhere(row: Value, whole: Value, axis: int) -> bool:
    """No row is bytes of its whole."""
    return False


@dataclass(frozen=True)
class Settled:
    """A flow with its lives and buffers.

    copies   the moves that copy bytes all the same
    refused  what could not be a pointer, and why as far as that was looked for
    """

    flow: Flow
    ranges: LiveRanges
    buffers: tuple[SharedBuffer, ...]
    copies: tuple[tuple[Point, Value, Value], ...]
    refused: Mapping[Value, str] = field(default_factory=dict)


def settle(
    graph: Graph,
    schedule: Schedule,
    live: Live,
    share: Share,
    fixed: frozenset[Value],
    lodges: Lodges = nowhere,
    refused: Mapping[Value, str] = NOTHING,
) -> Settled:
    """The settled layout. `fixed` values must have bytes of their own, such as outputs in memory of the caller.

    `lodges` tells which rows can be bytes of their wholes. One that is also carried is, if a pointer stands for it.
    `refused` values may be no pointers, and why.
    """
    known = {**dict.fromkeys(fixed, ""), **refused}
    settled = _settle(graph, schedule, live, share, known, set())
    carried = {parameter for node in graph.walk() if isinstance(node, While) for parameter in _rows(node, lodges)}
    if carried and _unlodged(settled):
        other = _settle(graph, schedule, live, share, known, carried)
        if _moved(other) < _moved(settled):
            return other
    return settled


def _rows(node: While, lodges: Lodges) -> Iterator[Value]:
    """The parameters that are updated by rows which could be bytes of their wholes."""
    for kind, part, whole, axis, _ in windows(node):
        if kind == "row" and lodges(part, whole, axis):
            yield from (to for to, update in zip(node.parameters, node.updates, strict=True) if update == part)


def _unlodged(settled: Settled) -> dict[tuple[str, Value, Value], int]:
    """The bytes of each slice and row that could be bytes of a whole, and is not."""
    lodged = {(buffer.window.value, buffer.window.whole) for buffer in settled.buffers if buffer.window}
    base = settled.flow.instances
    return {
        (window.kind, base[window.value].base, base[window.whole].base): window.value.nbytes
        for window in settled.flow.windows
        if (window.value, window.whole) not in lodged
    }


def _moved(settled: Settled) -> int:
    """The bytes that are copied, each move counted once."""
    bases = settled.flow.instances
    once = {(str(point.kind), bases[to].base): to.nbytes for point, _, to in settled.copies}
    return sum(once.values()) + sum(_unlodged(settled).values())


def _settle(
    graph: Graph, schedule: Schedule, live: Live, share: Share, known: Mapping[Value, str], carried: set[Value]
) -> Settled:
    """The layout, in which the `carried` parameters are pointers, as far as can be, as well as what is copied else.

    The `known` values cannot be pointers.
    """
    current = plain = laid_out(flow(graph, schedule), live, share)
    if not current.copies and not carried:
        return current
    roles, reusable, longest = _Roles(graph), _reusable(current.flow, current.ranges), _longest(current.flow)
    best, points = None if carried else plain, len(plain.flow.points)
    outside = (*roles.from_outside, *graph.updated, *roles.outlasting_updates(graph))
    refused = {**known, **dict.fromkeys(outside, "")}
    for _ in range(MOST_TRIES):
        wanted = {roles.pointer(point, current.flow.instances[to].base) for point, _, to in current.copies} | carried
        pointers = roles.with_finals({*current.flow.pointers, *wanted}, refused)
        if pointers == current.flow.pointers:
            break
        for attempt in count():
            try:
                unrolled = flow(graph, schedule, pointers, reusable, longest)
                break
            except Refused as found:
                points += found.points
                halving = attempt < MOST_TRIES and points <= MOST_LAID_OUT
                pointers = roles.without(found, pointers, refused, halving=halving)
        current, points = laid_out(unrolled, live, share), points + len(unrolled.points)
        if not current.flow.serial and sum(buffer.packed for buffer in current.buffers) > MAX_BUFFERS:
            break
        best = current if best is None or _moved(current) <= _moved(best) else best
        if points > MOST_LAID_OUT:
            break
    return replace(best or plain, refused=refused)


def _longest(base: Flow) -> int:
    """How many points may be laid out for a program that has so many when nothing is unrolled."""
    return 2 * len(base.points) + SHORT_ENOUGH


def planned_flow(graph: Graph, plan: MemoryPlan) -> Flow:
    """The flow that a plan was made for. Raises PlanError when the plan's pointers do not make one."""
    names = {placement.value for placement in plan.placements if placement.how == POINTER}
    pointers = frozenset(value for value in graph.values() if value.name in names)
    graph = placed(graph, plan.exchanged)
    base = flow(graph, plan.schedule)
    if not pointers:
        return base
    try:
        found = flow(graph, plan.schedule, pointers, _reusable(base, liveness(base)), _longest(base))
    except Refused as error:
        raise PlanError(
            f"the plan of {plan.graph!r} lets {error} stand for other values: plan the model again"
        ) from None
    if found.rolled != plan.rolled:
        raise PlanError(f"the plan of {plan.graph!r} unrolls its loops in another way: plan the model again")
    return found


def _reusable(base: Flow, ranges: LiveRanges) -> Reusable:
    """Which value may be written over which in one round, as lives and streams in the layout without pointers tell.

    A move to a pointer writes nothing, so there a value may end that another begins.
    """
    ends = {(t, s, d) for t, point in enumerate(base.points) for s, _ in point.moves for _, d in point.moves}
    allowed, concurrency = permitted(base) | ends, Concurrency(base)
    views: dict[Value, list[Value]] = {}
    for value, content in contents(base).items():
        tokens = {segment.token for segment in content}
        if len(tokens) == 1:
            views.setdefault(tokens.pop(), []).append(value)

    def reusable(first: Value, second: Value) -> bool:
        users = [value for value in views.get(first, [first]) if value != second]
        return all(
            not concurrency.may_meet(value, second) and take_turns(ranges, allowed, value, second) for value in users
        )

    return reusable


def laid_out(timeline: Flow, live: Live, share: Share) -> Settled:
    """A flow with its lives and buffers."""
    ranges = live(timeline)
    buffers = share(timeline, ranges)
    return Settled(timeline, ranges, buffers, tuple(copied(timeline, buffers)))


class _Roles:
    """Which values control flow assigns: parameters with their finals, and outputs of branches."""

    def __init__(self, graph: Graph) -> None:
        self._final: dict[Value, Value] = {}
        self._parameter: dict[Value, Value] = {}
        self._beside: dict[Value, frozenset[Value]] = {}
        self._outputs: set[Value] = set()
        self._links: dict[Value, Value] = {}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        self.from_outside: set[Value] = set()  # what takes a value that cannot be planned is always copied
        for node in graph.walk():
            for to, sources in assignments(node):
                self._sources[to] = sources
                if not all(source.plannable for source in sources):
                    self.from_outside.add(to)
            if isinstance(node, While):
                self._beside |= dict.fromkeys(node.parameters, frozenset(node.parameters))
                ends = [(p, final) for p, final in zip(node.parameters, node.finals, strict=True) if final is not None]
                self._final.update(ends)
                self._parameter.update((final, parameter) for parameter, final in ends)
            elif isinstance(node, CaseOf):
                self._outputs.update(node.defs)

    def outlasting_updates(self, graph: Graph) -> set[Value]:
        """The outputs that may be an input or weight which is updated before they are read."""
        found: set[Value] = set()
        for output in graph.outputs:
            reached = {output: None}
            for value in (todo := [output]):
                fresh = [source for source in self._sources.get(value, ()) if source not in reached]
                reached.update(dict.fromkeys(fresh))
                todo += fresh
            if any(target in reached for target in graph.updated):
                found.add(output)
        return found

    def pointer(self, point: Point, destination: Value) -> Value:
        """The value that must be a pointer for a move to `destination` to copy nothing."""
        return self._parameter.get(destination, destination) if point.kind == "exit" else destination

    def without(
        self, found: Refused, pointers: frozenset[Value], refused: dict[Value, str], *, halving: bool
    ) -> frozenset[Value]:
        """The pointers, with those that were asked for, and without those that cannot be, which join `refused`.

        Of those that are too dear only half are given up, if `halving`.
        """
        wanted = set(pointers)
        for reason in found.reasons:
            if isinstance(reason, AlsoPointer):
                also = self._handed_on(reason.parameter, pointers)
                if also <= self.with_finals(also, refused):
                    wanted |= also
                else:
                    why = f"%{reason.parameter.name}, which it would stand for, cannot be pointed at"
                    refused |= dict.fromkeys(pointers & self._beside[reason.parameter], why)
            else:
                gone = self._cheaper_half(reason.pointers) if reason.some and halving else reason.pointers
                refused |= dict.fromkeys(gone, reason.why)
        return self.with_finals(wanted, refused)

    def _handed_on(self, parameter: Value, pointers: frozenset[Value]) -> set[Value]:
        """A parameter, and those of its loop that it, or one that it stands for, takes in the next round."""
        found, todo, seen = {parameter}, [self._sources[parameter][1]], set[Value]()
        for value in todo:
            if value in seen:
                continue
            seen.add(value)
            if value in self._beside[parameter] and value not in found:
                found.add(value)
                todo.append(self._sources[value][1])
            elif value in pointers:
                todo += self._sources[value]
        return found

    def _cheaper_half(self, pointers: Iterable[Value]) -> list[Value]:
        """Half of the groups of parameters that are handed on to each other: those with fewer bytes."""
        groups: dict[Value, list[Value]] = {}
        for pointer in pointers:
            groups.setdefault(self._linked(pointer), []).append(pointer)
        dear = sorted(groups.values(), key=lambda group: -sum(value.nbytes for value in group))
        return [value for group in dear[len(dear) // 2 :] for value in group]

    def _linked(self, value: Value) -> Value:
        """One of the values of control flow that a value is handed on to or from, the same for all of them."""
        if not self._links:
            for to, sources in self._sources.items():
                for source in sources[1:] if to in self._beside else sources:
                    if source in self._sources:
                        self._links[self._top(source)] = self._top(to)
        return self._top(value)

    def _top(self, value: Value) -> Value:
        while (above := self._links.setdefault(value, value)) != value:
            self._links[value] = self._links.setdefault(above, above)
            value = above
        return value

    def with_finals(self, wanted: Iterable[Value], refused: Mapping[Value, str]) -> frozenset[Value]:
        """The wanted pointers that are not refused; a parameter and its final only together."""
        kept: set[Value] = set()
        for value in wanted:
            final = self._final.get(self._parameter.get(value, value))
            parameter = self._parameter.get(value, value)
            both = {parameter} if final is None else {parameter, final}
            if value in self._outputs:
                both = {value}
            if both.isdisjoint(refused) and all(member.plannable for member in both):
                kept |= both
        return frozenset(kept)

"""Which values are pointers, so that control flow copies as little as possible.

First every value has bytes of its own, and sharing lets the ends of most moves be the same bytes. What would
still be copied becomes a pointer, its loop is unrolled for planning, and the program is laid out anew, until
nothing changes. A pointer whose target depends on choices of earlier rounds cannot be one: it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count

from sublet.analysis.content import contents
from sublet.analysis.flow import Flow
from sublet.analysis.flow_builder import flow
from sublet.analysis.instances import AlsoPointer, Refused, Reusable
from sublet.analysis.layout import Layout
from sublet.analysis.merging import take_turns
from sublet.analysis.order import Concurrency
from sublet.analysis.sharing import permitted
from sublet.ir.graph import Graph, Value, While
from sublet.ir.walk import assignments, steps
from sublet.plan.schedule import Schedule

TOO_LONG = "the program is too long to be laid out with pointers"

MOST_TRIES = 8
"""So often is a program laid out with more pointers; what is still copied then is copied."""

MOST_POINTED = 4_000
"""A program of more points is laid out once, without pointers, so that planning it takes seconds."""

MOST_LAID_OUT = 9_000
"""Points after which a program is not laid out once more, and what is too dear is given up at once."""

SHORT_ENOUGH = 2048
"""Points that unrolling may add to any program, to a longer one as many as it has."""

MOST_ADDED = 4096
"""But no more than this."""


class Pointing:
    """Chooses the pointers for one layout after another, each from what the one before still copies.

    `plain` is the layout without pointers, `reusable` what may be written over what in it. The `known` values can be
    none, and why. The `wanted` parameters are, as far as can be, whether they are copied or not.
    """

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        plain: Layout,
        reusable: Reusable,
        known: Mapping[Value, str],
        wanted: Collection[Value],
    ) -> None:
        self._graph = graph
        self._schedule = schedule
        self._wanted = wanted
        self._roles = _Roles(graph)
        outside = (*graph.updated, *self._roles.outlasting_updates(graph))
        self.refused = {**known, **dict.fromkeys(outside, "")}
        self._too_long = len(plain.flow.points) > MOST_POINTED
        if self._too_long:
            bases = plain.flow.unrolling.instances
            self.refused = {**dict.fromkeys((bases[to].base for _, _, to in plain.copied), TOO_LONG), **self.refused}
        self._reusable = reusable
        self._most_added = min(max(len(plain.flow.points), SHORT_ENOUGH), MOST_ADDED)
        self._scopes = plain.flow.unrolling.scopes
        self._tries = 0
        self._points = 0  # laid out so far, those included that were given up

    def flow(self, current: Layout) -> Flow | None:
        """A flow with more pointers than the `current` layout has; None when that would not help, or take too long."""
        self._points += len(current.flow.points)
        if self._too_long or self._tries == MOST_TRIES or (self._tries and self._points > MOST_LAID_OUT):
            return None
        self._tries += 1
        roles, bases = self._roles, current.flow.unrolling.instances
        wanted = {bases[to].base for _, _, to in current.copied}
        pointers = roles.with_finals({*current.flow.unrolling.pointers, *wanted, *self._wanted}, self.refused)
        if pointers == current.flow.unrolling.pointers:
            return None
        for attempt in count():
            try:
                return flow(self._graph, self._schedule, pointers, self._reusable, self._most_added, self._scopes)
            except Refused as found:
                self._points += found.points
                halving = attempt < MOST_TRIES and self._points <= MOST_LAID_OUT
                pointers = roles.without(found, pointers, self.refused, halving=halving)
        raise AssertionError("unreachable")


def carried_rows(graph: Graph, may_be_window: Callable[[Value, Value, int], bool]) -> Iterator[Value]:
    """The parameters updated by rows which could be bytes of their wholes, as (row, whole, axis) tells."""
    for node in graph.walk():
        if isinstance(node, While):
            for kind, part, whole, axis, _ in steps(node):
                if kind == "row" and may_be_window(part, whole, axis):
                    ends = zip(node.parameters, node.updates, strict=True)
                    yield from (parameter for parameter, update in ends if update == part)


def reusable_in(plain: Layout) -> Reusable:
    """Which value may be written over which in one round, as lives and streams in the layout without pointers tell.

    A move to a pointer writes nothing, so there a value may end that another begins.
    """
    base, ranges = plain.flow, plain.ranges
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


class _Roles:
    """Which values control flow assigns: parameters with their finals, and outputs of branches."""

    def __init__(self, graph: Graph) -> None:
        self._final: dict[Value, Value] = {}
        self._parameter: dict[Value, Value] = {}
        self._beside: dict[Value, frozenset[Value]] = {}
        self._links: dict[Value, Value] = {}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        for node in graph.walk():
            self._sources.update(assignments(node))
            if isinstance(node, While):
                self._beside |= dict.fromkeys(node.parameters, frozenset(node.parameters))
                ends = [(p, final) for p, final in zip(node.parameters, node.finals, strict=True) if final is not None]
                self._final.update(ends)
                self._parameter.update((final, parameter) for parameter, final in ends)

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
                    continue
                why = f"%{reason.parameter.name}, which it would stand for, cannot be pointed at"
                gone: Iterable[Value] = pointers & self._beside[reason.parameter]
            else:
                why = reason.why
                gone = self._cheaper_half(reason.pointers) if reason.some and halving else reason.pointers
            refused |= dict.fromkeys((value for one in gone for value in self._with_final(one)), why)
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
        together = [self._with_final(value) for value in wanted]
        kept = [both for both in together if both.isdisjoint(refused) and all(value.plannable for value in both)]
        return frozenset().union(*kept)

    def _with_final(self, value: Value) -> frozenset[Value]:
        """A parameter and its final, given either; an output of a branch alone."""
        parameter = self._parameter.get(value, value)
        return frozenset((parameter, self._final.get(parameter, parameter)))

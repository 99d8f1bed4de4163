"""Carry renaming: the choice of loop-carried values and branch outputs to bind to other values instead of copying.

At first no value is renamed, and buffer sharing gives most moves the same bytes at both ends. The destination of every
move still copying bytes is then renamed, the loop is unrolled into body versions, and buffers are assigned again, until
the renamed values no longer change. A value cannot be renamed if the binding depends on choices of earlier iterations;
the plan copies the value instead.
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
"""Attempts to rename more values in a program. Moves still copying after the last attempt stay copies."""

MOST_POINTED = 4_000
"""Points of a program. A longer program is planned without renaming, so that planning takes seconds."""

MOST_LAID_OUT = 9_000
"""Points built in all attempts. Beyond the limit no attempt starts, and values too dear are dropped all at once."""

SHORT_ENOUGH = 2048
"""Points that unrolling may add to a program; a program with more points may double."""

MOST_ADDED = 4096
"""Points that unrolling may add to any program, however long."""


class Pointing:
    """Search for the values to rename, attempt by attempt, each from the copies left in the last buffer assignment.

    `plain` is the assignment without renaming. `reusable(first, second)` is true if `second` may overwrite `first` in
    `plain`. `known` maps values excluded from renaming to the reason. The parameters in `wanted` are renamed as far as
    possible, copied or not.
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
        self._points = 0  # built so far, discarded points included

    def flow(self, current: Layout) -> Flow | None:
        """Return the control flow with more renamed values than `current`; None at the end of the search.

        The search ends if no further value can be renamed, or if another attempt would take too long.
        """
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
            except Refused as refusal:
                self._points += refusal.points
                halving = attempt < MOST_TRIES and self._points <= MOST_LAID_OUT
                pointers = roles.without(refusal, pointers, self.refused, halving=halving)
        raise AssertionError("unreachable")


def carried_rows(graph: Graph, may_be_window: Callable[[Value, Value, int], bool]) -> Iterator[Value]:
    """Yield the loop parameters updated by a row that may be a view, as `may_be_window(row, whole, axis)` decides."""
    for node in graph.walk():
        if isinstance(node, While):
            for kind, part, whole, axis, _ in steps(node):
                if kind == "row" and may_be_window(part, whole, axis):
                    ends = zip(node.parameters, node.updates, strict=True)
                    yield from (parameter for parameter, update in ends if update == part)


def reusable_in(plain: Layout) -> Reusable:
    """Return a predicate of two values: True if the second may overwrite the first within an iteration.

    The predicate reads live ranges and streams of `plain`, the assignment without renaming. Views of the first value
    count as uses of the first value. A move to a renamed value writes no bytes: a value may end at the move where
    another begins.
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
    """The values assigned by control flow: loop parameters with their finals, and branch outputs."""

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
        """Return the outputs possibly bound to an input or weight updated before the outputs are read."""
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
        """Return `pointers` without the refused values, and with the parameters that must be renamed too.

        `refused` receives the refused values with the reasons. With `halving`, only the cheaper half of the values
        refused for their cost is dropped.
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
        """Return `parameter` and the parameters of the same loop flowing into `parameter` over iterations.

        A value may flow directly or through renamed values.
        """
        parameters, todo, seen = {parameter}, [self._sources[parameter][1]], set[Value]()
        for value in todo:
            if value in seen:
                continue
            seen.add(value)
            if value in self._beside[parameter] and value not in parameters:
                parameters.add(value)
                todo.append(self._sources[value][1])
            elif value in pointers:
                todo += self._sources[value]
        return parameters

    def _cheaper_half(self, pointers: Iterable[Value]) -> list[Value]:
        """Return half of the connected groups of renamed values: the groups with fewer bytes."""
        groups: dict[Value, list[Value]] = {}
        for pointer in pointers:
            groups.setdefault(self._linked(pointer), []).append(pointer)
        by_bytes = sorted(groups.values(), key=lambda group: -sum(value.nbytes for value in group))
        return [value for group in by_bytes[len(by_bytes) // 2 :] for value in group]

    def _linked(self, value: Value) -> Value:
        """Return the representative of all control-flow values connected to `value` by assignments (union-find)."""
        if not self._links:
            for to, sources in self._sources.items():
                for source in sources[1:] if to in self._beside else sources:
                    if source in self._sources:
                        self._links[self._top(source)] = self._top(to)
        return self._top(value)

    def _top(self, value: Value) -> Value:
        """Return the union-find root of `value`, and shorten the path."""
        while (above := self._links.setdefault(value, value)) != value:
            self._links[value] = self._links.setdefault(above, above)
            value = above
        return value

    def with_finals(self, wanted: Iterable[Value], refused: Mapping[Value, str]) -> frozenset[Value]:
        """Return the plannable values of `wanted` not in `refused`; a parameter and its final only together."""
        together = [self._with_final(value) for value in wanted]
        kept = [both for both in together if both.isdisjoint(refused) and all(value.plannable for value in both)]
        return frozenset().union(*kept)

    def _with_final(self, value: Value) -> frozenset[Value]:
        """Return a parameter and the matching final, given either; a branch output alone."""
        parameter = self._parameter.get(value, value)
        return frozenset((parameter, self._final.get(parameter, parameter)))

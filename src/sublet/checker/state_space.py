"""State-space exploration of a plan: the placement of each value, in every reachable binding of renamed values.

A `PointState` is a point with a binding state. The binding state records the placement bound to each pointer (renamed
value), and the exits of loops and branches, as far as a later point depends on the record. A program without
pointers has one state a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sublet.checker.timeline import CheckerTimeline, TimelineMoment
from sublet.ir.graph import Value, While
from sublet.plan import POINTER, Context, MemoryPlan, Placement

MOST_VISITS = 1 << 15
"""Point states, or MOST_VISITS_A_POINT a point if more. Beyond the limit the claims of the plan stay unproven."""

MOST_VISITS_A_POINT = 4

Name = tuple[str, str]
"""("pointer", value) or ("way", node): a component of a binding state."""
BindingState = tuple[tuple[Name, int], ...]
"""A binding state: the placement bound to each pointer, and the exit taken from each node."""

NO_REQUESTS: Mapping[int, frozenset[Name]] = {}


class TooManyStatesError(Exception):
    """The exploration exceeds the limit of states."""


class PlacementIndex:
    """An index of the placements of a plan, by value and context (the body versions of the enclosing loops)."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.placements = plan.placements
        self.pointers = frozenset(place.value for place in plan.placements if place.how == POINTER)
        self._by_context: dict[tuple[str, Context], int] = {}
        for i, place in enumerate(plan.placements):
            if place.how != POINTER:
                self._by_context.update(((place.value, context), i) for context in place.copies or ((),))

    def find_placement(self, value: Value, context: Context) -> tuple[int, Context] | None:
        """Return the placement of a value with own bytes in a context, and the context prefix of the placement."""
        for length in range(len(context), -1, -1):
            if (i := self._by_context.get((value.name, context[:length]))) is not None:
                return i, context[:length]
        return None


@dataclass
class PointState:
    """A point in a binding state, with the placements read and written."""

    point: int
    state: dict[Name, int]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    followers: list[int] = field(default_factory=list)


class StateSpace:
    """All reachable point states of a plan. Raises TooManyStatesError.

    `requested` are pointers and exits requested at points without a read of the pointers.
    """

    def __init__(
        self, timeline: CheckerTimeline, places: PlacementIndex, requested: Mapping[int, frozenset[Name]] = NO_REQUESTS
    ) -> None:
        self.timeline = timeline
        self.places = places
        self.visits: list[PointState] = []
        self._later = _names_used_later(timeline, places.pointers, requested)
        self._known: dict[tuple[int, BindingState], int] = {}
        self._explore()

    def placement_of(self, value: Value, visit: PointState) -> int | None:
        """Return the placement of a value in a point state; None for a value without a placement."""
        if value.name in self.places.pointers:
            return visit.state.get(("pointer", value.name))
        entry = self.places.find_placement(value, self.timeline.moments[visit.point].context)
        return None if entry is None else entry[0]

    def moment_of(self, visit: PointState) -> TimelineMoment:
        """Return the event of a point state."""
        return self.timeline.moments[visit.point]

    def placement_by_number(self, number: int) -> Placement:
        """Return the placement with a number."""
        return self.places.placements[number]

    def _explore(self) -> None:
        """Visit all reachable point states, depth first."""
        todo = [self._number_of_state(0, {})]
        while todo:
            number = todo.pop()
            visit = self.visits[number]
            after, following = self._successors_of(visit)
            for point in following:
                count = len(self.visits)
                follower = self._number_of_state(point, after)
                visit.followers.append(follower)
                if follower == count:
                    todo.append(follower)

    def _number_of_state(self, point: int, state: dict[Name, int]) -> int:
        """Return the number of a point state, created on first use. Raises TooManyStatesError beyond the limit."""
        key = (point, tuple(sorted(state.items())) if state else ())
        if key not in self._known:
            if len(self.visits) == max(MOST_VISITS, MOST_VISITS_A_POINT * len(self.timeline.moments)):
                raise TooManyStatesError
            self._known[key] = len(self.visits)
            visit = PointState(point, state, (), ())
            moment = self.timeline.moments[point]
            visit.reads = tuple(self._placements(moment.reads, visit))
            visit.writes = tuple(self._placements(moment.writes, visit))
            self.visits.append(visit)
        return self._known[key]

    def _placements(self, values: Iterable[Value], visit: PointState) -> Iterator[int]:
        """Yield the placements of values in a point state."""
        for value in values:
            if (number := self.placement_of(value, visit)) is not None:
                yield number

    def _successors_of(self, visit: PointState) -> tuple[dict[Name, int], list[int]]:
        """Return the binding state after a point state, and the points that follow."""
        moment, turn = self.moment_of(visit), self.timeline.iteration_ends.get(visit.point)
        following = self.timeline.followers[visit.point]
        if turn is not None:
            following = [turn.successor({name: way for (kind, name), way in visit.state.items() if kind == "way"})]
        if not self._later:
            return {}, following
        state = dict(visit.state)
        for source, pointer in moment.pointed:
            target = self.placement_of(source, visit)
            state.pop(("pointer", pointer.name), None)
            if target is not None:
                state["pointer", pointer.name] = target
        if moment.way is not None:
            state["way", moment.way[0]] = moment.way[1]
        asked = self._later[visit.point]
        return {name: what for name, what in state.items() if name in asked}, following


def _names_used_later(
    timeline: CheckerTimeline, pointers: frozenset[str], requested: Mapping[int, frozenset[Name]]
) -> list[frozenset[Name]]:
    """Return, for each point, the pointers and exits with a later use; empty without pointers and deciding exits.

    Computed by backward liveness.
    """
    deciding = {
        name
        for turn in timeline.iteration_ends.values()
        if turn.record
        for jump in turn.record.jumps
        for name, _ in jump.ways
    }
    if not pointers and not deciding:
        return []
    count = len(timeline.moments)
    asks = [_names_used(timeline, point, pointers) | requested.get(point, frozenset()) for point in range(count)]
    forgets = [_names_killed(timeline, point, deciding) for point in range(count)]
    before: list[frozenset[Name]] = [frozenset()] * count
    after: list[frozenset[Name]] = [frozenset()] * count
    changed = True
    while changed:
        changed = False
        for point in reversed(range(count)):
            after[point] = frozenset().union(*(before[other] for other in timeline.followers[point]))
            wanted = asks[point] | (after[point] - forgets[point])
            changed = changed or wanted != before[point]
            before[point] = wanted
    return [later if point not in timeline.iteration_ends else later - _finished_exits(timeline, point, deciding)
            for point, later in enumerate(after)]  # fmt: skip


def _names_used(timeline: CheckerTimeline, point: int, pointers: frozenset[str]) -> frozenset[Name]:
    """Return the pointers and exits used at a point."""
    moment, turn = timeline.moments[point], timeline.iteration_ends.get(point)
    asked: set[Name] = {("pointer", value.name) for value in moment.reads if value.name in pointers}
    if turn is not None and turn.record is not None:
        asked.update(("way", name) for jump in turn.record.jumps if jump.copy == turn.copy for name, _ in jump.ways)
    return frozenset(asked)


def _names_killed(timeline: CheckerTimeline, point: int, deciding: set[str]) -> frozenset[Name]:
    """Return the pointers and exits killed at a point."""
    moment = timeline.moments[point]
    forgotten: set[Name] = {("pointer", pointer.name) for _, pointer in moment.pointed}
    if moment.way is not None:
        forgotten.add(("way", moment.way[0]))
    return frozenset(forgotten | _finished_exits(timeline, point, deciding))


def _finished_exits(timeline: CheckerTimeline, point: int, deciding: set[str]) -> set[Name]:
    """Return the exits inside a loop at the end of an iteration: later iterations do not depend on the exits."""
    node = timeline.moments[point].node
    if point not in timeline.iteration_ends or not deciding or not isinstance(node, While):
        return set()
    return {("way", inner.name) for inner in node.body.walk() if inner.name in deciding}

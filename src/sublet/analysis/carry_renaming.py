"""Carry renaming: the choice of loop-carried values and branch outputs to bind to other values instead of copying.

At first no value is renamed, and buffer sharing gives most moves the same bytes at both ends. The destination of every
move still copying bytes is then renamed, the loop is unrolled into body versions, and buffers are assigned again, until
the renamed values no longer change. A value beyond the limits of versions, bindings and points is copied instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import count

from sublet.analysis.byte_provenance import compute_provenance
from sublet.analysis.coalescing import have_disjoint_live_ranges
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.control_flow_builder import build_control_flow
from sublet.analysis.sharing import BufferAssignment, allowed_overwrites
from sublet.analysis.streams import Concurrency
from sublet.analysis.value_versions import MustRenameToo, NotRenamable, RenamingRefused, ReusePredicate
from sublet.base.disjoint_sets import DisjointSets
from sublet.ir.dataflow import assignments, slices_and_rows
from sublet.ir.graph import Graph, Value, While
from sublet.plan.schedule import Schedule

MAX_ATTEMPTS = 8
"""Attempts to rename more values in a program. Moves still copying after the last attempt stay copies."""

MAX_POINTS_TO_RENAME = 4_000
"""Points of a program. A longer program is planned without renaming, so that planning takes seconds."""

PROGRAM_TOO_LONG = f"the program has more than {MAX_POINTS_TO_RENAME:,} points, the limit for renaming"

MAX_POINTS_BUILT = 9_000
"""Points built in all attempts. Beyond the limit no attempt starts, and values too dear are dropped all at once."""

MIN_ADDED_POINTS = 2048
"""Points that unrolling may add to a program; a program with more points may double."""

MAX_ADDED_POINTS = 4096
"""Points that unrolling may add to any program, however long."""

MAX_RING_POINTS = 4096
"""Points that unrolling may add for delay lines and rotations: 64 rows in a body of 8 nodes, 8 rows in one of 250."""


class CarryRenaming:
    """Search for the values to rename, attempt by attempt, each from the copies left in the last buffer assignment.

    `plain` is the assignment without renaming. `reusable(first, second)` is true if `second` may overwrite `first` in
    `plain`. `known` maps values excluded from renaming to the reason. The parameters in `wanted` are renamed as far as
    possible, copied or not.
    """

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        plain: BufferAssignment,
        reusable: ReusePredicate,
        known: Mapping[Value, str],
        wanted: Collection[Value],
    ) -> None:
        self._graph = graph
        self._schedule = schedule
        self._wanted = wanted
        self._assigned_values = _AssignedValues(graph)
        outside = (*graph.updated_values, *self._assigned_values.outputs_of_updated(graph))
        self.renaming_obstacles = {**known, **dict.fromkeys(outside, "")}
        self._too_long = len(plain.flow.points) > MAX_POINTS_TO_RENAME
        if self._too_long:
            bases = plain.flow.unrolling.versions
            self.renaming_obstacles = {
                **dict.fromkeys((bases[to].base for _, _, to in plain.residual_copies), PROGRAM_TOO_LONG),
                **self.renaming_obstacles,
            }
        self._reusable = reusable
        self._max_added = min(max(len(plain.flow.points), MIN_ADDED_POINTS), MAX_ADDED_POINTS)
        self._facts = plain.flow.unrolling.facts
        self._ring_places: dict[Value, int] = {}
        self._attempts = 0
        self._points_built = 0  # built so far, discarded points included

    def next_control_flow(self, current: BufferAssignment) -> ControlFlowGraph | None:
        """Return the control flow with more renamed values than `current`; None at the end of the search.

        The search ends if no further value can be renamed, or if another attempt would take too long.
        """
        self._points_built += len(current.flow.points)
        if (
            self._too_long
            or self._attempts == MAX_ATTEMPTS
            or (self._attempts and self._points_built > MAX_POINTS_BUILT)
        ):
            return None
        self._attempts += 1
        roles, bases = self._assigned_values, current.flow.unrolling.versions
        wanted = {bases[to].base for _, _, to in current.residual_copies}
        pointers = roles.select_with_finals(
            {*current.flow.unrolling.renamed_values, *wanted, *self._wanted}, self.renaming_obstacles
        )
        if pointers == current.flow.unrolling.renamed_values:
            return None
        for attempt in count():
            try:
                return build_control_flow(
                    self._graph,
                    self._schedule,
                    pointers,
                    self._reusable,
                    self._max_added,
                    self._facts,
                    most_in_rings=MAX_RING_POINTS,
                    ring_places=self._ring_places,
                )
            except RenamingRefused as refusal:
                self._points_built += refusal.points
                halving = attempt < MAX_ATTEMPTS and self._points_built <= MAX_POINTS_BUILT
                if halving:
                    reasons = [self._align_rings(reason) for reason in refusal.reasons]
                    refusal = RenamingRefused(reasons, refusal.points)
                pointers = roles.drop_refused(refusal, pointers, self.renaming_obstacles, halving=halving)
        raise AssertionError("unreachable")

    def _align_rings(self, reason: MustRenameToo | NotRenamable) -> MustRenameToo | NotRenamable:
        """Lengthen the rings of a loop with too many body versions, and refuse only the carries without a place.

        The reason is returned unchanged if the rings already have these lengths: another cost is too high.
        """
        if isinstance(reason, MustRenameToo) or reason.alignment is None:
            return reason
        alignment = reason.alignment
        if not alignment.copied and alignment.places.items() <= self._ring_places.items():
            return reason
        self._ring_places.update(alignment.places)
        return NotRenamable(alignment.copied, reason.why, reason.loop)


def row_carries(graph: Graph, may_be_window: Callable[[Value, Value, int], bool]) -> Iterator[Value]:
    """Yield the loop parameters updated by a row that may be a view, as `may_be_window(row, whole, axis)` decides."""
    for node in graph.walk():
        if isinstance(node, While):
            for kind, part, whole, axis, _ in slices_and_rows(node):
                if kind == "row" and may_be_window(part, whole, axis):
                    ends = zip(node.parameters, node.updates, strict=True)
                    yield from (parameter for parameter, update in ends if update == part)


def reuse_predicate(plain: BufferAssignment) -> ReusePredicate:
    """Return a predicate of two values: True if the second may overwrite the first within an iteration.

    The predicate reads live ranges and streams of `plain`, the assignment without renaming. Views of the first value
    count as uses of the first value. A move to a renamed value writes no bytes: a value may end at the move where
    another begins.
    """
    base, ranges = plain.flow, plain.ranges
    ends = {(t, s, d) for t, point in enumerate(base.points) for s, _ in point.moves for _, d in point.moves}
    rules, concurrency = allowed_overwrites(base), Concurrency(base)
    allowed = replace(rules, listed=rules.listed | ends)
    views: dict[Value, list[Value]] = {}
    for value, content in compute_provenance(base).items():
        tokens = {segment.origin for segment in content}
        if len(tokens) == 1:
            views.setdefault(tokens.pop(), []).append(value)

    def reusable(first: Value, second: Value) -> bool:
        users = [value for value in views.get(first, [first]) if value != second]
        return all(
            not concurrency.may_access_together(value, second)
            and have_disjoint_live_ranges(ranges, allowed, value, second)
            for value in users
        )

    return reusable


class _AssignedValues:
    """The values assigned by control flow: loop parameters with their finals, and branch outputs."""

    def __init__(self, graph: Graph) -> None:
        self._final: dict[Value, Value] = {}
        self._parameter: dict[Value, Value] = {}
        self._same_loop: dict[Value, frozenset[Value]] = {}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        for node in graph.walk():
            self._sources.update(assignments(node))
            if isinstance(node, While):
                self._same_loop |= dict.fromkeys(node.parameters, frozenset(node.parameters))
                ends = [(p, final) for p, final in zip(node.parameters, node.finals, strict=True) if final is not None]
                self._final.update(ends)
                self._parameter.update((final, parameter) for parameter, final in ends)

    def outputs_of_updated(self, graph: Graph) -> set[Value]:
        """Return the outputs possibly bound to an input or weight updated before the outputs are read."""
        found: set[Value] = set()
        for output in graph.outputs:
            reached = {output: None}
            for value in (todo := [output]):
                fresh = [source for source in self._sources.get(value, ()) if source not in reached]
                reached.update(dict.fromkeys(fresh))
                todo += fresh
            if any(target in reached for target in graph.updated_values):
                found.add(output)
        return found

    def drop_refused(
        self, refusal: RenamingRefused, pointers: frozenset[Value], refused: dict[Value, str], *, halving: bool
    ) -> frozenset[Value]:
        """Return `pointers` without the refused values, and with the parameters that must be renamed too.

        `refused` receives the refused values with the reasons. With `halving`, only the cheaper half of the values
        refused for their cost is dropped.
        """
        wanted = set(pointers)
        for reason in refusal.reasons:
            if isinstance(reason, MustRenameToo):
                also = self._parameters_flowing_into(reason.parameter, pointers)
                if also <= self.select_with_finals(also, refused):
                    wanted |= also
                    continue
                why = f"%{reason.parameter.name}, which it would be bound to, cannot be renamed"
                gone: Iterable[Value] = pointers & self._same_loop[reason.parameter]
            else:
                why = reason.why
                gone = self._cheaper_half(reason.pointers) if reason.some and halving else reason.pointers
            refused |= dict.fromkeys((value for one in gone for value in (one, self._final.get(one, one))), why)
        return self.select_with_finals(wanted, refused)

    def _parameters_flowing_into(self, parameter: Value, pointers: frozenset[Value]) -> set[Value]:
        """Return `parameter` and the parameters of the same loop flowing into `parameter` over iterations.

        A value may flow directly or through renamed values.
        """
        parameters, todo, seen = {parameter}, [self._sources[parameter][1]], set[Value]()
        for value in todo:
            if value in seen:
                continue
            seen.add(value)
            if value in self._same_loop[parameter] and value not in parameters:
                parameters.add(value)
                todo.append(self._sources[value][1])
            elif value in pointers:
                todo += self._sources[value]
        return parameters

    def _cheaper_half(self, pointers: Iterable[Value]) -> list[Value]:
        """Return half of the connected groups of renamed values: the groups with fewer bytes."""
        groups: dict[Value, list[Value]] = {}
        for pointer in pointers:
            groups.setdefault(self._connected_values.find(pointer), []).append(pointer)
        by_bytes = sorted(groups.values(), key=lambda group: -sum(value.nbytes for value in group))
        return [value for group in by_bytes[len(by_bytes) // 2 :] for value in group]

    @cached_property
    def _connected_values(self) -> DisjointSets[Value]:
        """The sets of control-flow values connected by assignments."""
        sets = DisjointSets[Value]()
        for to, sources in self._sources.items():
            for source in sources[1:] if to in self._same_loop else sources:
                if source in self._sources:
                    sets.union(to, source)
        return sets

    def select_with_finals(self, wanted: Iterable[Value], refused: Mapping[Value, str]) -> frozenset[Value]:
        """Return the plannable values of `wanted` not in `refused`, and their finals; a final never alone.

        A refused final is copied when the loop ends, in a single iteration.
        """
        parameters = {self._parameter.get(value, value) for value in wanted}
        kept = {value for value in parameters if value.plannable and value not in refused}
        return frozenset(kept | {self._final[value] for value in kept & self._final.keys()} - refused.keys())

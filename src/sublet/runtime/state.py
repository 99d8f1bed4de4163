"""Persistent state of an executable: inputs and weights updated by the graph, kept from run to run.

The state after a failed run follows from the values read and written at each point of the plan. Observers and checkers
of a run use the same accesses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from sublet.base.errors import PlanError, RunError
from sublet.base.formatting import abbreviated_list, printable
from sublet.base.interrupts import defer_interrupts
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Node, Value, While
from sublet.plan import RUN, UPDATE, Context, MemoryPlan, PlanPoint, Region
from sublet.plan.schedule import graph_with_swapped_updates
from sublet.runtime.memory import ExecutableMemory, Raw


@dataclass(frozen=True, slots=True)
class PointAccesses:
    """A point of a plan with its node, and the program values that the point may read and writes.

    Renamed carries are not written: a renamed carry has no bytes. At the end of a branch, `reads` lists the
    results of all arms.
    """

    point: PlanPoint
    node: Node | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """The kind of the point."""
        return self.point.kind

    @property
    def copies(self) -> Context:
        """The versions of the enclosing loop bodies."""
        return self.point.copies

    def __str__(self) -> str:
        return str(self.point)


def accesses_of_points(graph: Graph, plan: MemoryPlan, pointers: frozenset[str]) -> tuple[PointAccesses, ...]:
    """Return the accesses of all points of a plan. Raises PlanError for a point without a node of the graph."""
    nodes = {node.name: node for node in graph.walk()}
    accesses: list[PointAccesses] = []
    for point in plan.points:
        node = nodes.get(point.node)
        if node is None and point.node:
            raise PlanError(f"the plan of {plan.graph!r} has a point for {point.node!r}, which is no node of the graph")
        reads, writes = _reads_and_writes(graph, node, point.kind)
        written = tuple(value for value in writes if value is not None and value.name not in pointers)
        accesses.append(PointAccesses(point, node, tuple(reads), written))
    return tuple(accesses)


def _reads_and_writes(graph: Graph, node: Node | None, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    """Return the values read and the values written at a point of the given kind."""
    if node is None:
        return {
            UPDATE: ([source for _, source in graph.updates], graph.updated_values),
            "start": ((), (*graph.inputs, *graph.weights)),
        }.get(kind, ((*graph.outputs, *graph.updated_values), ()))
    if isinstance(node, While):
        return _loop_reads_and_writes(node, kind)
    if kind == RUN:
        return node.uses, node.defs
    if kind == "yield":
        return [source for _, sources in assignments(node) for source in sources], node.defs
    return node.uses, ()


def _loop_reads_and_writes(node: While, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    """Return the values read and the values written at a point of a loop."""
    stacked = [value for value in node.stacked_outputs if value is not None]
    return {
        "enter": (node.inits, (*node.parameters, *stacked)),
        "round": ((), (node.counter,)),
        "check": ((node.condition,), ()),
        "fetch": (node.sequences, node.slices),
        "next": ((*node.updates, *node.rows, *stacked), (*node.parameters, *stacked)),
        "exit": ((*node.parameters, *stacked), node.finals),
    }[kind]


# State of the updated values after a failed run, derived from the plan; a run records nothing.
#
# The bytes of an updated value are written at known points: at the definition of every other value in the same bytes,
# and at the end, unless the new content is already in place. Swapped storages change hands after all points. Before the
# first of these points the value is unchanged; after the last the value is updated.

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class PointRange:
    """The half-open range [begin, end) of points run by one call."""

    begin: int
    end: int


NO_POINTS = PointRange(0, 0)
"""The range before the first point: no point has run."""


@dataclass(frozen=True, slots=True)
class StateAfterFailure:
    """The updated values, by content after a failed run.

    as_before   unchanged since the run began
    updated     fully updated by the run
    uncertain   possibly half-written, or other content
    """

    as_before: tuple[Value, ...]
    updated: tuple[Value, ...]
    uncertain: tuple[Value, ...]

    @property
    def sentence(self) -> str:
        """A sentence for the error message."""
        parts = [
            f"{len(values)} {what}"
            for values, what in ((self.as_before, "as before the run"), (self.updated, "updated by the run"))
            if values
        ]
        if self.uncertain:
            names = [repr(printable(value.name)) for value in self.uncertain]
            parts.append(f"{len(names)} possibly half-written: {abbreviated_list(names, MAX_NAMED)}")
        return f"state: {', '.join(parts)}"


def state_after_failure(
    graph: Graph, plan: MemoryPlan, points: Sequence[PointAccesses], failed: PointRange
) -> StateAfterFailure:
    """Return the state after a failed run: points before `failed` have run, points in `failed` may have run."""
    by_content: dict[str, list[Value]] = {"as_before": [], "updated": [], "uncertain": []}
    writes = _write_points(graph, plan, points)
    for target in graph.updated_values:
        if all(point >= failed.end for point in writes[target]):
            by_content["as_before"].append(target)
        elif all(point < failed.begin for point in writes[target]):
            by_content["updated"].append(target)
        else:
            by_content["uncertain"].append(target)
    return StateAfterFailure(**{what: tuple(values) for what, values in by_content.items()})


def _write_points(graph: Graph, plan: MemoryPlan, points: Sequence[PointAccesses]) -> dict[Value, list[int]]:
    """Return the points that may write bytes of each updated value, writes by the caller excluded."""
    homes = {placement.value: placement.region for placement in plan.placements}
    defined: dict[str, list[int]] = {}
    for number, point in enumerate(points[1:], 1):
        if point.kind != UPDATE:
            for value in point.writes:
                defined.setdefault(value.name, []).append(number)
    last = next(number for number, point in enumerate(points) if point.kind == UPDATE)
    writes: dict[Value, list[int]] = {}
    exchanged = {name for cycle in plan.exchanged for name in cycle}
    for target, source in graph_with_swapped_updates(graph, plan.exchanged).updates:
        home = homes.get(target.name)
        writes[target] = [
            number
            for placement in plan.placements
            if home is not None and placement.value != target.name and _regions_overlap(placement.region, home)
            for number in defined.get(placement.value, ())
        ]
        if home is None or homes.get(source.name) != home:
            writes[target].append(last)
        if target.name in exchanged:  # swapped after all points: until then the storage holds another value
            writes[target].append(len(points))
    return writes


def _regions_overlap(one: Region, other: Region) -> bool:
    return one.storage == other.storage and one.offset < other.end and other.offset < one.end


SavedContents = Mapping[Value, Raw]
"""Copies of the bytes of all values with a known content."""


@dataclass
class StateRecord:
    """A state outside the storages: the known contents, and the values with a known or uncertain content."""

    contents: SavedContents
    known: set[Value]
    uncertain: set[Value]

    @property
    def nbytes(self) -> int:
        """The bytes of the contents."""
        return sum(content.nbytes for content in self.contents.values())


class ExecutableState:
    """The set of updated values with a known content.

    A failed run leaves each value unchanged, updated, or possibly half-written. A half-written value can be read, but
    the next run starts only after the caller has set the value.
    """

    def __init__(self, graph: Graph, memory: ExecutableMemory) -> None:
        self.values = graph.updated_values
        self._memory = memory
        self._known: set[Value] = set()
        self._uncertain: set[Value] = set()

    def has_content(self, value: Value) -> bool:
        """True if the value is updated by the graph and has a content."""
        return value in self._known

    def set(self, value: Value) -> None:
        """Note that an updated value has received a content; no effect for other values."""
        if value in self.values:
            self._known.add(value)
            self._uncertain.discard(value)

    def writing(self, value: Value) -> AbstractContextManager[None]:
        """Return a context for writing a content of a value; an interrupt may leave an updated value half-written."""
        return self._writing_updated(value) if value in self.values else nullcontext()

    @contextmanager
    def _writing_updated(self, value: Value) -> Iterator[None]:
        """Mark an updated value uncertain inside the block."""
        self._known.discard(value)
        self._uncertain.add(value)
        yield
        self.set(value)

    def save(self) -> SavedContents:
        """Return a copy of all known contents, for `restore`."""
        return self._contents_of(self._known)

    def _contents_of(self, values: Collection[Value]) -> SavedContents:
        places = self._memory.places_at()
        return {value: places.bytes_of(value).copy() for value in self.values if value in values and value.nbytes}

    def restore(self, saved: SavedContents) -> None:
        """Write the contents returned by `save` to the current storages."""
        places = self._memory.places_at()
        for value, content in saved.items():
            places.bytes_of(value)[:] = content

    @contextmanager
    def restoring(self) -> Iterator[SavedContents]:
        """Restore contents and flags after the block, also after an error; the storages must then be the same."""
        saved, known, uncertain = self.save(), set(self._known), set(self._uncertain)
        try:
            yield saved
        finally:
            self._known, self._uncertain = known, uncertain
            self.restore(saved)

    def record(self) -> StateRecord:
        """Return a record of the present state."""
        return StateRecord(self._contents_of(self._known | self._uncertain), set(self._known), set(self._uncertain))

    def forget(self, values: Iterable[Value]) -> None:
        """Mark values as never having received a content."""
        self._known.difference_update(values)
        self._uncertain.difference_update(values)

    @contextmanager
    def exchanged(self, record: StateRecord) -> Iterator[None]:
        """Exchange the state with a record, and back after the block, also after an error or an interrupt."""
        is_exchanged = False
        try:
            with defer_interrupts():
                self._exchange(record)
                is_exchanged = True
            yield
        finally:
            if is_exchanged:
                with defer_interrupts():
                    self._exchange(record)

    def _exchange(self, record: StateRecord) -> None:
        present = self.record()
        self._known, self._uncertain = record.known, record.uncertain
        self.restore(record.contents)
        record.contents, record.known, record.uncertain = present.contents, present.known, present.uncertain

    def note_failure(self, found: StateAfterFailure, error: BaseException) -> None:
        """Note the state found after a failed run, and add the state to the error."""
        self._known.difference_update(found.uncertain)
        self._uncertain.update(found.uncertain)
        error.add_note(found.sentence)

    def mark_overwritten(self) -> None:
        """Mark the known values in an arena uncertain: another executable has used the bytes."""
        places = self._memory.places_at()
        lost = {value for value in self._known if value.nbytes and places.region(value).storage in self._memory.arenas}
        self._known -= lost
        self._uncertain |= lost

    def mark_all_uncertain(self) -> None:
        """Mark all known values uncertain: a fork left a run behind at an unknown point."""
        self._uncertain.update(self._known)
        self._known.clear()

    def require(self, value: Value, name: str) -> None:
        """Raise RunError, naming the value `name`, unless a run may start from its content."""
        self.require_certain(value, name)
        self.require_readable(value, name)

    def require_certain(self, value: Value, name: str) -> None:
        """Raise RunError if a failed run may have left the value half-written."""
        if value in self._uncertain:
            raise RunError(
                f"the content of {printable(name)!r} is uncertain: a run failed during the update, the process forked "
                "during a run, or another executable ran in the arena. Set it with `set_state`, or "
                "keep the current content with set_state(name, executable.state(name))."
            )

    def require_readable(self, value: Value, name: str) -> Value:
        """Return the value. Raises RunError if the value never received a content."""
        if value not in self._known and value not in self._uncertain:
            raise RunError(f"{printable(name)!r} has no content yet. Pass it as an input or with `set_state`.")
        return value

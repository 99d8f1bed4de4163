"""Loops at run time: bound body versions, and transitions between body versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sublet.base.errors import RunError
from sublet.ir.dataflow import max_trip_count
from sublet.ir.graph import CaseOf, Graph, Value, While
from sublet.plan import Context, Region
from sublet.runtime.kernel import Array, Call, Operand, UnplannedCell, no_op
from sublet.runtime.memory import ExecutableMemory, ValuePlaces
from sublet.runtime.moves import CopyCounter, close_rows

# Regions bound to renamed carries, as far as known when a program is bound.


@dataclass(frozen=True, slots=True)
class CurrentRow:
    """The region of a row in the iteration that assigns the row to a renamed carry."""

    row: Value
    context: Context


Target = Region | Value | CurrentRow
"""The binding of a renamed carry: a region, the current binding of another renamed carry, or the current row."""

NOWHERE = Region("", 0, 0)
"""The target of a value that is no renamed carry."""


def resolve_target(target: Target, memory: ExecutableMemory) -> Region:
    """Return the region of a target at the current point of the run."""
    if isinstance(target, Region):
        return target
    if isinstance(target, Value):
        return memory.pointed[target.name]
    return memory.region(target.row, target.context)


@dataclass
class BoundBodyVersion:
    """A body version of a loop, bound; actions with a parameter `k` receive the number of the iteration.

    `nbytes` counts the bytes of slices and rows copied per iteration.
    """

    begin: Callable[[int], None] | None
    body_before_check: tuple[Call, ...]
    condition: Call
    fetch: Callable[[int], None] | None
    body_after_check: tuple[Call, ...]
    end: Callable[[int], None] | None
    nbytes: int
    exit_call: Call = no_op


@dataclass(eq=False)
class BoundBranch:
    """A branch, bound: a call runs the arm of the index, then its exit; `bypass` is for an index below 0."""

    node: CaseOf
    index: Call
    arms: Sequence[tuple[Sequence[Call], Call]]
    bypass: tuple[Sequence[Call], Call] | None

    def __call__(self) -> None:
        """Run one arm, or none."""
        calls, leave = taken_arm(self.node, int(self.index()), self.arms, self.bypass)
        for call in calls:
            call()
        leave()


Arm = TypeVar("Arm")


def taken_arm(node: CaseOf, index: int, arms: Sequence[Arm], bypass: Arm | None) -> Arm:
    """Return the arm of an index. Raises RunError for an index without an arm."""
    if index < 0 and bypass is not None:
        return bypass
    if not 0 <= index < len(arms):
        raise RunError(f"branch {node.name}: the index is {index}, expected 0 to {len(arms) - 1}")
    return arms[index]


def require_iteration(node: While, number: int, limit: int | None) -> None:
    """Raise RunError if a loop may not run iteration `number`: the planned trip count is `limit`."""
    if number == limit:
        what = f"runs more than the planned {limit} iterations"
        raise RunError(f"loop {node.name}: {what}. Plan the model with a larger --max-trips.")


@dataclass(eq=False)
class BoundLoop:
    """A loop, bound. `next_version[c]` gives the body version after version c; `collecting` cells collect rows."""

    node: While
    enter: Call
    versions: Sequence[BoundBodyVersion]
    next_version: Sequence[int | Callable[[], int]]
    collecting: Sequence[UnplannedCell]
    places: ValuePlaces
    moved: CopyCounter

    def __call__(self) -> None:
        """Run the iterations of the loop."""
        for cell in self.collecting:
            cell.content = []
        self.enter()
        versions, following, limit = self.versions, self.next_version, max_trip_count(self.node)
        memory, name = self.places.memory, self.node.name
        current_round, moves = memory.current_iterations, name in memory.striding_loops
        k = version = nbytes = 0
        while True:
            current = versions[version]
            if current.begin:
                current.begin(k)
            for call in current.body_before_check:
                call()
            if not current.condition():
                break
            require_iteration(self.node, k, limit)
            if moves:
                current_round[name] = k
            if current.fetch:
                current.fetch(k)
            for call in current.body_after_check:
                call()
            if current.end:
                current.end(k)
            nbytes += current.nbytes
            after = following[version]
            version = after if isinstance(after, int) else after()
            k += 1
        memory.trip_counts[name] = k
        self.moved.add(nbytes)
        current.exit_call()
        if self.collecting:
            close_rows(self.node, self.places.operand)


@dataclass(frozen=True, slots=True)
class StackedOutput:
    """An output of the graph stacked by a loop: row k along `axis`, counted from the far end if `backwards`."""

    loop: str
    axis: int
    backwards: bool

    def computed_rows(self, whole: Array, rounds: Mapping[str, int]) -> Array:
        """Return the rows of the iterations run; the other rows are undefined."""
        count = rounds[self.loop]
        extent = whole.shape[self.axis]
        rows = slice(extent - count, extent) if self.backwards else slice(count)
        return whole[(slice(None),) * self.axis + (rows,)]


def stacked_outputs(graph: Graph) -> dict[Value, StackedOutput]:
    """Return the outputs of a graph stacked by its loops."""
    stacked: dict[Value, StackedOutput] = {}
    for node in graph.nodes:
        if isinstance(node, While):
            for value, axis, backwards in zip(node.stacked_outputs, node.row_axes, node.row_reversed, strict=True):
                if value is not None and value in graph.outputs:
                    stacked[value] = StackedOutput(node.name, axis, backwards)
    return stacked


def store_then_carry(store: Callable[[int], None] | None, carry: Call) -> Callable[[int], None] | None:
    """Return an action storing the rows, then moving the carried values."""
    if carry is no_op:
        return store
    if store is None:
        return lambda k: carry()

    def end_round(k: int) -> None:
        store(k)
        carry()

    return end_round


def counter_writer(operand: Operand) -> Callable[[int], None]:
    """Return an action writing the number of the iteration to the operand."""
    if isinstance(operand, UnplannedCell):
        cell = operand

        def count_cell(k: int) -> None:
            cell.content = k

        return count_cell
    array = operand.reshape(())

    def count(k: int) -> None:
        array[()] = k

    return count


def scalar_reader(operand: Operand) -> Callable[[], Any]:
    """Return a call returning the single element of an operand."""
    if isinstance(operand, UnplannedCell):
        cell = operand
        return lambda: cell.content.item()
    return operand.item

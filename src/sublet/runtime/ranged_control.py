"""Loops and branches over ranges: steps that read the shapes and addresses of the current point.

The base program gives the order of the calls, with kernels merged. A program at a point has other operands: each plain
call is bound to the point, and moves, slices, rows, counters and conditions read the tables of the program when they
run. A loop with extents that grow moves the program to each iteration. Nothing is renamed over ranges, so every value
has one place in all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ctypes import memmove, string_at
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from sublet.base.boxes import Range
from sublet.base.errors import RunError
from sublet.base.extents import Dimension
from sublet.base.formatting import printable
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.dataflow import conflict_in, slices_and_rows
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ops import measured_axes
from sublet.ops.op import MEASURE
from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.kernel import Array, Call, PlaceNumbers, Ranged, UnplannedCell, array_at, no_op, store
from sublet.runtime.loop import BoundBranch, BoundLoop, require_iteration, taken_arm
from sublet.runtime.moves import ByteCopies, axis_first
from sublet.runtime.ranged_places import Literal, RangedProgram, Step

PlaceOf = Callable[[Value], PlaceNumbers]
"""A value -> the numbers of its shape and address."""

Lanes = tuple[Array, Array]
"""A slice or row, and its whole with the axis of the loop first."""


@dataclass(frozen=True)
class _Operand:
    """A value read or written by control flow: its place and type."""

    place: PlaceNumbers
    dtype: np.dtype[Any]

    def at(self, program: RangedProgram) -> Array:
        """Return the array at the current point."""
        return array_at(program.addresses[self.place[1]], program.shapes[self.place[0]], self.dtype)


@dataclass(frozen=True)
class _Moves:
    """A parallel assignment: the places of each source and destination, and the bytes of an element."""

    pairs: Sequence[tuple[PlaceNumbers, PlaceNumbers, int]]

    def __call__(self, program: RangedProgram) -> None:
        """Copy the contents that are not in place, as if all at once."""
        self.at(program)()

    def at(self, program: RangedProgram) -> Call:
        """Return the call that copies at the current point."""
        shapes, addresses = program.shapes, program.addresses
        whole = [(addresses[b], addresses[a], prod(shapes[n]) * size) for (n, a), (_, b), size in self.pairs]
        work = [(to, source, nbytes) for to, source, nbytes in whole if nbytes and source != to]
        clash = any(to < begin + size and begin < to + nbytes for to, _, nbytes in work for _, begin, size in work)

        def copy() -> None:
            for to, source, nbytes in work:
                memmove(to, source, nbytes)

        def read_all_first() -> None:
            contents = [string_at(source, nbytes) for _, source, nbytes in work]
            for (to, _, nbytes), content in zip(work, contents, strict=True):
                memmove(to, content, nbytes)

        return read_all_first if clash else copy if work else no_op


@dataclass(frozen=True)
class _LaneCopies:
    """Copies of the slices, or of the rows, of an iteration: part, whole, axis, and direction."""

    parts: Sequence[tuple[_Operand, _Operand, int, bool]]

    def at(self, program: RangedProgram) -> list[Lanes]:
        """Return the arrays at the current point."""
        found: list[Lanes] = []
        for part, whole, axis, backwards in self.parts:
            lanes = axis_first(whole.at(program), axis)
            found.append((part.at(program), lanes[::-1] if backwards else lanes))
        return found


@dataclass(frozen=True)
class _LoopStep:
    """A loop at the current point, see `loop.BoundLoop`."""

    node: While
    counter: _Operand
    condition: _Operand
    before: Sequence[Step]
    after: Sequence[Step]
    slices: _LaneCopies
    rows: _LaneCopies
    enter: _Moves
    carry: _Moves
    leave: _Moves
    iteration: Dimension | None

    def __call__(self, program: RangedProgram) -> None:
        """Run the iterations."""
        self.enter(program)
        fetched, stored, carry = self.slices.at(program), self.rows.at(program), self.carry.at(program)
        maxima = [len(lanes) for _, lanes in (*fetched, *stored)]
        limit = min([*maxima, self.iteration.high + 1] if self.iteration else maxima, default=None)
        counter, condition = self.counter.at(program), self.condition.at(program)
        number = 0
        while True:
            counter[()] = number
            for step in self.before:
                step(program)
            if not condition.item():
                break
            require_iteration(self.node, number, limit)
            if self.iteration:
                program.move_to_iteration(self.iteration.name, number)
            for part, lanes in fetched:
                part[...] = lanes[number]
            for step in self.after:
                step(program)
            for part, lanes in stored:
                lanes[number] = part
            carry()
            number += 1
        program.trip_counts[self.node.name] = number
        self.leave(program)


@dataclass(frozen=True)
class _BranchStep:
    """A branch at the current point: the steps of each arm, and of the fallbacks."""

    node: CaseOf
    index: _Operand
    arms: Sequence[Sequence[Step]]
    bypass: Sequence[Step] | None

    def __call__(self, program: RangedProgram) -> None:
        """Run one arm, or none."""
        for step in taken_arm(self.node, int(self.index.at(program).item()), self.arms, self.bypass):
            step(program)


@dataclass(frozen=True)
class _ContentStep:
    """A node whose results follow from the point, such as the shape of a tensor: their contents are written."""

    number: int
    literals: Sequence[Literal]

    def __call__(self, program: RangedProgram) -> None:
        """Write the contents at the current point."""
        for address, content in program.contents_of(self.number, self.literals):
            memmove(program.addresses[address], content, len(content))


@dataclass(frozen=True)
class _Measurement:
    """A measurement of extents that depend on data: the program moves to the point with these extents.

    number      the number of the measurement
    source      the planned input, or the cell of an input outside the plan
    dimensions  the axis of each extent, None for the element of the input, and the range
    inputs      the names of the dimensions of inputs, known before the run
    """

    node: Node
    number: int
    source: _Operand | UnplannedCell
    target: _Operand
    dimensions: Sequence[tuple[int | None, Range]]
    inputs: Collection[str]

    def __call__(self, program: RangedProgram) -> None:
        """Measure, move the program, and copy the input. Raises RunError for an extent outside its range."""
        cell = self.source if isinstance(self.source, UnplannedCell) else None
        content = cell.content if cell else cast(_Operand, self.source).at(program)
        for axis, found in self.dimensions:
            what = printable(self.node.uses[0].name) + ("" if axis is None else f", axis {axis}")
            number = found.number_of(content.item() if axis is None else content.shape[axis], what)
            first = program.measured.setdefault(found.name, "an input" if found.name in self.inputs else what)
            if first == what:
                program.move_dimension(found.name, number)
            elif program.number_of(found.name) != number:
                known = found.extent_of(program.number_of(found.name))
                raise RunError(f"{what}: is {found.extent_of(number)}, but {first}, is {known}; both are {found.name}")
        target = self.target.at(program)
        if cell:
            store(content, target, self.node.outputs[0])
            cell.content = None
        elif target.ctypes.data != content.ctypes.data:
            target[...] = content
        program.begin_segment(self.number + 1)


class StepBuilder:
    """Builds the steps of a program over ranges from the calls of the base program.

    literals    the elements of values with known contents, by name
    ranges      the ranges of all dimensions, by name
    iterations  the dimension of the iterations of each loop with extents that grow, by the name of the loop
    cells       the values outside the plan, by name
    inputs      the names of the dimensions of inputs
    calls       the plain calls of all steps, in the order of their numbers
    measured    the number of calls before each measurement
    """

    def __init__(
        self,
        place_of: PlaceOf,
        literals: Mapping[str, Sequence[Any]],
        ranges: Mapping[str, Range],
        iterations: Mapping[str, Dimension],
        cells: Mapping[str, UnplannedCell],
        inputs: Collection[str],
    ) -> None:
        self._literals = literals
        self._ranges = ranges
        self._iterations = iterations
        self._cells = cells
        self._inputs = inputs
        self.calls: list[ErrorContext] = []
        self.measured: list[int] = []
        self._place_of = place_of
        self._content_steps = 0

    def steps_of(self, calls: Iterable[Call]) -> list[Step]:
        """Return a step for each call. Raises RunError for a call that cannot be bound to other shapes."""
        steps: list[Step] = []
        for call in calls:
            if isinstance(call, BoundLoop):
                steps.append(self._loop(call))
            elif isinstance(call, BoundBranch):
                steps.append(self._branch(call))
            elif isinstance(call, ErrorContext) and call.nodes[0].op == MEASURE:
                steps.append(self._measurement(call.nodes[0]))
            elif isinstance(call, ErrorContext) and len(call.nodes) == 1 and self._is_known(call.nodes[0]):
                steps.append(self._contents(call.nodes[0]))
            else:
                self.calls.append(_require_ranged(call))
                steps.append(_step_of_call(len(self.calls) - 1))
        return steps

    def _loop(self, loop: BoundLoop) -> Step:
        """Return the step of a loop, which has a single body version."""
        node, (version,) = loop.node, loop.versions
        parts: dict[str, list[Any]] = {"slice": [], "row": []}
        for kind, part, whole, axis, backwards in slices_and_rows(node):
            parts[kind].append((self._operand(part), self._operand(whole), axis, backwards))
        return _LoopStep(
            node,
            self._operand(node.counter),
            self._operand(node.condition),
            self.steps_of(version.body_before_check),
            self.steps_of(version.body_after_check),
            _LaneCopies(parts["slice"]),
            _LaneCopies(parts["row"]),
            enter=self._moves(node.inits, node.parameters),
            carry=self._moves(node.updates, node.parameters),
            leave=self._moves(node.parameters, node.finals),
            iteration=self._iterations.get(node.name),
        )

    def _branch(self, branch: BoundBranch) -> Step:
        """Return the step of a branch. An arm with a shape conflict is one step that raises RunError."""
        node, arms = branch.node, list[Sequence[Step]]()
        for arm, (calls, _) in zip(node.arms, branch.arms, strict=True):
            if conflict := conflict_in(arm):
                what = f"branch {node.name}: {arm.name} runs for no shape of the plan: {conflict}"
                arms.append([_failing_step(what)])
            else:
                arms.append([*self.steps_of(calls), self._moves(arm.outputs, node.outputs)])
        bypass = [self._moves(node.fallbacks, node.outputs)] if node.fallbacks else None
        return _BranchStep(node, self._operand(node.index), arms, bypass)

    def _is_known(self, node: Node) -> bool:
        """True if the node has results, and the contents of all are known at every point."""
        return bool(node.defs) and all(value.name in self._literals for value in node.defs)

    def _contents(self, node: Node) -> Step:
        """Return the step of a node with known results: no kernel runs."""
        literals = [(self._place_of(value), _dtype_of(value), self._literals[value.name]) for value in node.defs]
        self._content_steps += 1
        return _ContentStep(self._content_steps, literals)

    def _measurement(self, node: Node) -> Step:
        """Return the step of a measurement."""
        (source,), (target,) = node.uses, node.defs
        found = [(axis, self._ranges[name]) for axis, name in measured_axes(node)]
        operand = self._operand(source) if source.plannable else self._cells[source.name]
        self.measured.append(len(self.calls))
        return _Measurement(node, len(self.measured) - 1, operand, self._operand(target), found, self._inputs)

    def _operand(self, value: Value) -> _Operand:
        return _Operand(self._place_of(value), _dtype_of(value))

    def _moves(self, sources: Sequence[Value], targets: Sequence[Value | None]) -> _Moves:
        """Return the parallel assignment of sources to targets."""
        pairs = [(source, to) for source, to in zip(sources, targets, strict=True) if to is not None]
        return _Moves([(self._place_of(s), self._place_of(to), _dtype_of(to).itemsize) for s, to in pairs])


def _dtype_of(value: Value) -> np.dtype[Any]:
    """Return the element type of a planned value."""
    return NUMPY[cast(TensorSpec, value.spec).dtype]


def _step_of_call(number: int) -> Step:
    return lambda program: program.calls[number]()  # type: ignore[misc]


def _failing_step(message: str) -> Step:
    def fail(program: RangedProgram) -> None:
        raise RunError(message)

    return fail


def _require_ranged(call: Call) -> ErrorContext:
    """Return a call of the base program. Raises RunError for a call that cannot be bound to other shapes."""
    if isinstance(call, ErrorContext) and isinstance(call.call, Ranged | ByteCopies):
        return call
    what = f"node {call.nodes[0].name}, {call.nodes[0].op}" if isinstance(call, ErrorContext) else "a step of the plan"
    raise RunError(
        f"ranges of dimensions: {what}, has a kernel for one shape only. "
        "Compile for single shapes, or with backend='onnxruntime'"
    )

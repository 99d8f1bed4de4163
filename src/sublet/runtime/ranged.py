"""An executable over ranges of dimensions: one plan, one arena and one set of kernels for every shape.

The program is bound once, at the *base point*, where the ops have exactly the facts of the whole box. Each further
point is the same program with other shapes and addresses: the kernels stay, so nothing is planned or compiled.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from sublet.base.errors import RunError
from sublet.base.extents import bounds_at, extent_at
from sublet.base.formatting import known_names, printable
from sublet.base.ranges import merge
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.dataflow import iteration_of
from sublet.ir.graph import Node, Value
from sublet.ops import dimensions_of, measured_dimensions
from sublet.plan import MemoryPlan
from sublet.plan.ranges import RangedPlan
from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.caller_memory import aligned_or_copy, as_numpy, content_for, inputs_by_name, output_form
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, BindAtPoint, PlaceNumbers, Ranged
from sublet.runtime.loop import StackedOutput, stacked_outputs
from sublet.runtime.moves import ByteCopies, Copy
from sublet.runtime.ranged_control import StepBuilder
from sublet.runtime.ranged_inputs import (
    ShapeMatcher,
    Window,
    literal_at,
    require_state,
    require_whole_bytes,
    shape_of,
    windows_of,
)
from sublet.runtime.ranged_places import (
    ArrayPlace,
    Block,
    Places,
    PointCopies,
    RangedProgram,
    block_of,
    copies_over_box,
    new_block,
    state_block,
)
from sublet.runtime.ranged_session import RangedSession

MOST_POINTS = 32
"""Points with a bound program, the latest ones."""

BINDING_BYTES = 240
"""Bytes of ONNX Runtime's record of a bound operand, measured."""

CALLER_KINDS = ("input", "output")
"""Kinds of the storages of bound inputs and outputs."""

NOWHERE: Mapping[str, Block] = {}
"""No memory for outputs."""

NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
"""No input with a content in place."""

NO_UPDATES: Mapping[str, str] = {}
"""No output in the memory of an input."""

Point = Mapping[str, int]
"""The numbers of the dimensions, by name."""


class RunOutputs(Mapping[str, Array]):
    """The outputs of a run by name, as arrays made at each request: in the arena, or in memory of the caller."""

    def __init__(
        self,
        places: Mapping[str, ArrayPlace],
        program: RangedProgram,
        memory: Mapping[str, Block],
        stacked: Mapping[str, StackedOutput],
    ) -> None:
        self._places, self._program, self._memory, self._stacked = places, program, memory, stacked

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an output."""
        return self._program.shapes[self._places[name].shape]

    def __getitem__(self, name: str) -> Array:
        place = self._places[name]
        array = (
            place.array_in(self._memory[place.storage], self.shape_of(name))
            if place.storage
            else place.array_at(self._program)
        )
        rows = self._stacked.get(name)
        return array if rows is None else rows.computed_rows(array, self._program.trip_counts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class RangedExecutable:
    """Runs a planned graph at every point of its ranges, in one arena.

    A call takes inputs of any shape within the ranges. The first call at a shape binds the program to the shape; the
    latest `MOST_POINTS` shapes stay bound. With caches that grow in place each new row makes another shape, which
    rarely recurs: a single program then moves from shape to shape. A lock is held during a run. With inputs and outputs
    in the arena, a call copies both; with bound inputs and outputs, kernels read the arrays of the caller, and write
    new arrays.

    plan    the plan of the upper bounds of all sizes: the arena serves every point
    ranges  the ranges of the dimensions of inputs, by name
    measured  the ranges of extents that depend on data, by name: each run measures them
    memory  the storages: arena and weights
    form    the function that makes the outputs of calls from arrays, see `outputs_as`
    outputs_outside  the outputs in memory of the caller, without outputs that are an input
    in_place         the outputs computed in the memory of an input, by the name of the input
    windows          the inputs in place that are the first rows of a buffer, by name
    why_not_in_place  the reason for each other input of the state, by name
    """

    def __init__(
        self, ranged: RangedPlan, base: Executable, state: Mapping[str, str], in_place: Mapping[str, str] = NO_UPDATES
    ) -> None:
        """Create the executable.

        base      the executable of the base point, in the arena of the plan
        state     the outputs that update inputs between the calls of a session, by the name of the input
        in_place  the outputs computed in the memory of an input, by the name of the input: the updates of the graph

        Raises RunError for a state of unknown names or different types.
        """
        self.plan: MemoryPlan = ranged.worst
        graph = ranged.graph
        iterations = {node.name: each for node in graph.walk() if (each := iteration_of(node)) is not None}
        self._iterations = {each.name: each for each in iterations.values()}
        inputs = dict(zip(base.inputs, graph.inputs, strict=True))
        of_inputs = dimensions_of(graph.inputs)
        ranges = {each.name: each for each in ranged.ranges if each.name not in self._iterations}
        measured = measured_dimensions(graph)
        self.ranges = {name: each for name, each in ranges.items() if name not in measured}
        self.measured = {name: each for name, each in ranges.items() if name in measured}
        self._most_measured = {name: each.high // each.step for name, each in self.measured.items()}
        self.memory = base.planned_memory
        self.form: Callable[[Any], Any] = as_numpy
        self.why_not_in_place: Mapping[str, str] = {}
        self._state = dict(state)
        self._process = os.getpid()
        self._spares: dict[int, list[Block]] = {}  # by number of bytes
        self._points: OrderedDict[tuple[int, ...], RangedProgram] = OrderedDict()
        self._numbers_of_shapes: OrderedDict[tuple[Any, ...], tuple[int, ...]] = OrderedDict()
        self._outputs = dict(zip(base.outputs, graph.outputs, strict=True))
        rows = stacked_outputs(graph)
        self._stacked = {name: rows[value] for name, value in self._outputs.items() if value in rows}
        self.in_place = dict(in_place)
        sources = dict(graph.updates)
        self._outputs.update({result: sources[inputs[name]] for name, result in in_place.items()})
        self._measured_outputs = {n for n, value in self._outputs.items() if dimensions_of([value]) & measured}
        require_whole_bytes((*graph.inputs, *graph.outputs))
        windows = windows_of(graph)
        self.windows = {name: windows[value] for name, value in inputs.items() if value in windows}
        for name, window in self.windows.items():
            inputs[name], self._outputs[in_place[name]] = window.before, window.after
        self._filled = {name: value for name, value in inputs.items() if value.literal is not None}
        self._inputs = {name: value for name, value in inputs.items() if name not in self._filled}
        require_state(self._state, self._inputs, self._outputs)
        self._shapes = ShapeMatcher(self._inputs, self.ranges, base.fixed)
        self._regions = {place.value: place.region for place in ranged.over.placements}
        self._values = {value.name: value for value in graph.values() if value.plannable}
        self._copies = {node.name: found for node in graph.walk() if (found := self._copies_apart(node)) is not None}
        self._places = Places(self.memory, {each.name for each in self.plan.storages if each.kind in CALLER_KINDS})
        place_of, cells = lambda value: self._numbers_of_place(self._values[value.name]), self.memory.cells
        literals = {name: value.literal for name, value in self._values.items() if value.literal is not None}
        builder = StepBuilder(place_of, literals, ranges, iterations, cells, of_inputs)
        self._steps, self._calls = builder.steps_of(base.bound_program().calls), builder.calls
        self._segments = [*builder.measured, len(self._calls)]
        self._binders = [self._binder_of(call) for call in self._calls]
        self._input_places = {n: self._array_place(value, self.windows.get(n)) for n, value in inputs.items()}
        of_results = {in_place[name]: window for name, window in self.windows.items()}
        self._output_places = {n: self._array_place(value, of_results.get(n)) for n, value in self._outputs.items()}
        self._table = self._places.tabulate()
        self._updated_storages = {self._input_places[name].storage for name in in_place} - {""}
        of_inputs = {"", *(place.storage for name, place in self._input_places.items() if name not in in_place)}
        self.outputs_outside = frozenset(n for n, each in self._output_places.items() if each.storage not in of_inputs)

    def __repr__(self) -> str:
        shown = ", ".join(map(str, (*self.ranges.values(), *self.measured.values()))) or "one shape"
        return f"<{type(self).__name__} {printable(self.plan.graph)}: arena {self.arena_bytes:,} bytes for {shown}>"

    def _repr_html_(self) -> str:
        """Return the figures and a memory map of the largest point for a notebook."""
        return self.plan._repr_html_()

    @property
    def inputs(self) -> dict[str, Value]:
        """The inputs by name; extents of their types are expressions."""
        return dict(self._inputs)

    @property
    def outputs(self) -> dict[str, Value]:
        """The outputs by name; extents of their types are expressions."""
        return dict(self._outputs)

    @property
    def state_pairs(self) -> dict[str, str]:
        """The outputs that update inputs between the calls of a session, by the name of the input."""
        return dict(self._state)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena in bytes, for all points."""
        return self.plan.arena_bytes

    @property
    def bound_points(self) -> int:
        """The number of shapes with a bound program."""
        return len(self._points)

    @property
    def binding_bytes(self) -> int:
        """The bytes of the programs bound to the latest shapes, about."""
        operands = sum(len(node.uses) + len(node.defs) for call in self._calls for node in call.nodes)
        return len(self._points) * operands * BINDING_BYTES

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once. Inputs by name, as a mapping or as keywords; returns the outputs by name, in memory of their own.

        Raises RunError for a wrong input or a shape outside the ranges, before any byte is written; KernelError when a
        kernel fails.
        """
        with self.run_in_arena(inputs_by_name(inputs, named)) as outputs:
            return {name: self.result(name, array) for name, array in outputs.items()}

    def result(self, name: str, array: Array) -> Any:
        """Return an output of `run_in_arena` for the caller, copied out of the arena or out of an input."""
        return self.form(array if name in self.outputs_outside else array.copy())

    def run_in_arena(
        self,
        given: Mapping[str, Any],
        into: Mapping[str, Block] = NOWHERE,
        kept: Mapping[str, tuple[int, ...]] = NO_SHAPES,
    ) -> AbstractContextManager[RunOutputs]:
        """Run once, and keep the outputs in the arena for the block. Raises the errors of a call.

        Outputs outside the arena are in new memory, or in the memory that `into` has for the name of the output. An
        input that the run updates in place is copied first, to memory that `into` may have for its name. Inputs of
        `kept`, with their shapes, are not given: their content is in the memory of `into` already.
        """
        return self.run_at(self._numbers_of(given, kept), given, into)

    @contextmanager
    def run_at(
        self, numbers: tuple[int, ...], given: Mapping[str, Any], into: Mapping[str, Block]
    ) -> Iterator[RunOutputs]:
        """Run once as `run_in_arena`, given the numbers of the dimensions at the shapes of the inputs."""
        locks = self.memory.locks
        with self.exclusive(), locks.shared_lock(), locks.running(self.plan.graph):
            program = self._program_at(numbers)
            contents = {name: self._content_of(name, content, program) for name, content in given.items()}
            if self._filled:
                point = self._point_of(numbers)
                contents.update({name: literal_at(value, point) for name, value in self._filled.items()})
            memory = self._memory_outside(contents, program, into)
            program.bind({name: block.address for name, block in memory.items()})
            for name, place in self._input_places.items():
                if not place.storage:
                    place.array_at(program)[...] = contents[name]
            program.run()
            yield RunOutputs(self._output_places, program, memory, self._stacked)

    def _memory_outside(
        self, contents: Mapping[str, Any], program: RangedProgram, into: Mapping[str, Block]
    ) -> dict[str, Block]:
        """Return the memory of each storage of the caller; the memory must live until the end of the run.

        An input keeps the memory of the caller, unless it is updated in place, not contiguous or not aligned. An output
        that is an input has no memory of its own.
        """
        memory: dict[str, Block] = {}
        alignment = self.plan.alignment
        for name, place in self._input_places.items():
            if place.storage in self._updated_storages:
                is_kept = name not in contents
                memory[place.storage] = (
                    into[name] if is_kept else place.block_with(contents[name], into.get(name), alignment)
                )
            elif place.storage:
                memory[place.storage] = block_of(aligned_or_copy(np.asarray(contents[name]), alignment))
        for name, place in self._output_places.items():
            if place.storage and place.storage not in memory:
                nbytes = place.dtype.itemsize * prod(program.shapes[place.shape])
                if name in self._measured_outputs:
                    nbytes = program.most_bytes_of(self._outputs[name], self.measured)
                memory[place.storage] = into[name] if name in into else new_block(nbytes, alignment)
        return memory

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the executable. Raises RunError in the child of a fork, where a lock may never be free."""
        if os.getpid() != self._process:
            raise RunError("the kernels have threads of the parent process: compile in the child of a fork")
        with self.memory.locks.own:
            yield

    def apart_from_inputs(self, name: str, outputs: RunOutputs) -> Array:
        """Return an output of `run_in_arena`, copied if the output is an input in memory of the caller."""
        shared = self._output_places[name].storage and name not in self.outputs_outside
        return outputs[name].copy() if shared else outputs[name]

    def content_in(self, name: str, block: Block, shape: tuple[int, ...]) -> Array:
        """Return the content of an input, of a shape, as an array over other memory."""
        return self._input_places[name].array_in(block, shape)

    def take_spare(self, like: Block) -> Block:
        """Return spare memory of as many bytes as `like`, for the next state of a session. The caller is exclusive."""
        found = self._spares.get(like.raw.nbytes)
        return found.pop() if found else state_block(like.raw.nbytes)

    def return_spares(self, spares: Iterable[Block]) -> None:
        """Keep spare memory for the next call of a session. The caller is exclusive."""
        for each in spares:
            self._spares.setdefault(each.raw.nbytes, []).append(each)

    def session(self) -> RangedSession:
        """Return a session: calls with a state of their own, over the same plan, weights, kernels and arena.

        Raises RunError for an executable without declared state.
        """
        if not self._state:
            raise RunError("the executable has no state: pass state={INPUT: OUTPUT} to `compile_ranges`")
        return RangedSession(self, self._state)

    def shape_of_start(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of an input at the start of a session: extents of `shapes` by input, else the least extents.

        Raises RunError for shapes that do not fit.
        """
        numbers = self._point_of(tuple(each.low // each.step for each in self.ranges.values()))
        numbers.update(self._shapes.match(shapes))
        spec = self._inputs[name].spec
        assert isinstance(spec, TensorSpec)
        return tuple(extent_at(extent, numbers) for extent in spec.shape)

    def outputs_as(self, form: str | Callable[[Any], Any]) -> RangedExecutable:
        """Set the array type of outputs, see `Executable.outputs_as`. Return self."""
        self.form = output_form(form)
        return self

    def prepare(self, **extents: int) -> None:
        """Bind the program to a shape, as the first call at the shape does otherwise; extents by name of dimension."""
        with self.exclusive():
            self._program_at(self._numbers_at(extents)).bind(self._table.begins)

    def forget_points(self) -> None:
        """Drop the programs bound to the latest shapes."""
        with self.exclusive():
            self._points.clear()

    def bytes_at(self, **extents: int) -> int:
        """Return the bytes of the arena touched by a run at a point; extents by name of dimension.

        For a value that grows in a loop, the bytes of all iterations count. Extents measured in a run may be left out:
        the bytes are then an upper bound for all extents.
        """
        numbers = dict(zip(self.ranges, self._numbers_at(extents), strict=True))
        numbers.update({n: each.number_of(extents[n]) for n, each in self.measured.items() if n in extents})
        arenas = {storage.name for storage in self.plan.arenas}
        regions = [region for region in self._regions.values() if region.storage in arenas]
        touched = merge((bounds_at(each.offset, numbers)[0], bounds_at(each.end, numbers)[1]) for each in regions)
        return sum(end - begin for begin, end in touched)

    def _numbers_at(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Return the numbers of the dimensions for extents by name. Raises RunError for missing or wrong extents.

        Dimensions without a range may be named too, with their extent in the plan, and measured extents with any.
        """
        for name in self.measured.keys() & extents.keys():
            self.measured[name].number_of(extents[name])
        extents = {name: extent for name, extent in extents.items() if name not in self.measured}
        fixed = {name: extent for name, extent in self.plan.dims if name not in self.ranges}
        for name in fixed.keys() & extents.keys():
            if extents[name] != fixed[name]:
                raise RunError(f"{name} = {extents[name]}: the plan has the single extent {fixed[name]}")
        missing, unknown = self.ranges.keys() - extents.keys(), extents.keys() - self.ranges.keys() - fixed.keys()
        if missing or unknown:
            raise RunError(
                f"extents of {known_names(sorted(extents)) if extents else 'no dimension'}; "
                f"expected one for each of {known_names(self.ranges)}"
            )
        return tuple(each.number_of(extents[name]) for name, each in self.ranges.items())

    def _numbers_of(self, given: Mapping[str, Any], kept: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the numbers of the dimensions at the shapes of the inputs, those of `kept` known.

        Raises RunError for inputs that do not fit.
        """
        shapes = {name: shape_of(content, name) for name, content in given.items()}
        shapes.update(kept)
        key = (*shapes, *shapes.values())
        numbers = self._numbers_of_shapes.get(key)
        if numbers is None:
            found = self._shapes.match(shapes)
            missing = sorted(self._inputs.keys() - shapes.keys())
            if missing:
                hint = "; a call of `session()` may leave out the state" if self._state.keys() & missing else ""
                raise RunError(f"the inputs are {known_names(self._inputs)}; missing: {known_names(missing)}{hint}")
            numbers = tuple(found.get(name, each.low // each.step) for name, each in self.ranges.items())
            self._numbers_of_shapes[key] = numbers
            if len(self._numbers_of_shapes) > MOST_POINTS:
                self._numbers_of_shapes.popitem(last=False)
        return numbers

    def _point_of(self, numbers: tuple[int, ...]) -> dict[str, int]:
        """Return the numbers of the dimensions by name: the first iteration of loops, the most of measured extents."""
        others = {**dict.fromkeys(self._iterations, 0), **self._most_measured}
        return {**dict(zip(self.ranges, numbers, strict=True)), **others}

    def _content_of(self, name: str, given: Any, program: RangedProgram) -> Any:
        """Return the content for an input at its shape. Raises RunError for another type."""
        place = self._input_places[name]
        if type(given) is np.ndarray and given.dtype == place.dtype:
            return given
        spec = self._inputs[name].spec
        assert isinstance(spec, TensorSpec)
        return content_for(Value(name, TensorSpec(spec.dtype, program.shapes[place.shape])), given, name)

    def _program_at(self, numbers: tuple[int, ...]) -> RangedProgram:
        """Return the program at a point; the least recent program moves to a new point."""
        program = self._points.pop(numbers, None)
        if program is None:
            if len(self._points) < (1 if self.windows else MOST_POINTS):
                program = RangedProgram(self._table, self._steps, self._calls, self._binders, self._segments)
            else:
                _, program = self._points.popitem(last=False)
            program.move_to(self._point_of(numbers))
        self._points[numbers] = program
        return program

    def _array_place(self, value: Value, window: Window | None) -> ArrayPlace:
        """Return the place of the array of an input or output."""
        assert isinstance(value.spec, TensorSpec)
        storage = self._regions[value.name].storage
        block, numbers = block_of(self.memory.raw(storage)), self._numbers_of_place(value)
        own = storage if storage in self._places.outside else ""
        return ArrayPlace(NUMPY[value.spec.dtype], block, *numbers, own, window)

    def _binder_of(self, call: ErrorContext) -> BindAtPoint:
        """Return the function that binds a call of the base program to a point."""
        if isinstance(call.call, ByteCopies):
            (node,) = call.nodes
            return partial(PointCopies, self._copied_places(node))
        assert isinstance(call.call, Ranged)
        operands = [value for node in call.nodes for value in (*node.uses, *node.defs) if value.name in self._values]
        places = {value.name: self._numbers_of_place(self._values[value.name]) for value in operands}
        copied = {i: self._copied_places(node) for i, node in enumerate(call.nodes) if node.name in self._copies}
        return call.call.over_ranges(places, copied)

    def _numbers_of_place(self, value: Value) -> PlaceNumbers:
        """Return the numbers of shape and address of a value."""
        region = self._regions[value.name]
        assert isinstance(value.spec, TensorSpec)
        return self._places.number(value.spec.shape, region.storage, region.offset)

    def _copied_places(self, node: Node) -> list[PlaceNumbers]:
        """Return the places of the source and target of each copy of a node."""
        found: list[PlaceNumbers] = []
        for source, begin, output, at, nbytes in self._copies[node.name]:
            for value, first in ((source, begin), (output, at)):
                region = self._regions[value.name]
                found.append(self._places.number((nbytes,), region.storage, region.offset + first))
        return found

    def _copies_apart(self, node: Node) -> list[Copy] | None:
        """Return the copies of a node that copies bytes, without those in place at every point; None for a kernel."""
        copies = copies_over_box(node)
        if copies is None:
            return None
        apart: list[Copy] = []
        for source, begin, output, at, nbytes in copies:
            read, written = self._regions[source.name], self._regions[output.name]
            if (read.storage, read.offset + begin) != (written.storage, written.offset + at):
                apart.append((source, begin, output, at, nbytes))
        return apart

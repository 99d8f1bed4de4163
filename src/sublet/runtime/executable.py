"""The Executable: a graph, its plan and its kernels, bound to memory and ready to run [NNC: computation graph]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self
from weakref import WeakMethod

import numpy as np

from sublet.base.arrays import array_of, contiguous, is_packed, unpacked_elements
from sublet.base.errors import RunError
from sublet.base.formatting import known_names, printable
from sublet.base.interrupts import renew_in_children
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.plan import Context, MemoryPlan, Region, bound_storage_name
from sublet.runtime.caller_memory import CallerContents, Form, Views, as_numpy, inputs_by_name, output_form
from sublet.runtime.kernel import Array, Operand, UnplannedCell
from sublet.runtime.kernel_choice import Kernels, bind_node
from sublet.runtime.loop import stacked_outputs
from sublet.runtime.memory import ExecutableMemory, Raw, aligned_bytes, raw_bytes
from sublet.runtime.program import BoundProgram, ProgramCache, Watch, build_program, pass_through
from sublet.runtime.state import NO_POINTS, ExecutableState, StateRecord, accesses_of_points, state_after_failure
from sublet.runtime.streams import Workers
from sublet.runtime.weights import ExecutableWeights
from sublet.runtime.workspace import (
    NOT_YET,
    Allocated,
    Workspace,
    bytes_in_use,
    content_bytes,
    growth_since,
    measure_peak,
    returning_freed_memory,
    workspace_of,
)

MakeKernels = Callable[[Mapping[Value, Array]], Kernels]
"""Chooses the kernels, given the weights in memory."""


class Executable:
    """Runs a planned graph in exactly the memory of its plan.

    A call copies the inputs to their storages, runs, and returns copies of the outputs. After the first
    run, only the copies are allocated. A lock is held during a run: calls from several threads
    run one after another. After an error or an interrupt, the executable can be called again.

    The values updated by the graph are the state of the executable: their contents persist from run to run, in memory
    owned by the executable (initial weights are copied), or in bound memory of the caller. An updated input may be
    omitted in later calls. A failed run leaves each updated value unchanged or updated, and the error says which;
    a possibly half-written value can be read, and must be set before the next run.
    """

    def __init__(
        self,
        graph: Graph,
        plan: MemoryPlan,
        make_kernels: MakeKernels,
        weights: Mapping[Value, Any],
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        kept_bytes: int | None = 0,
        remark: str = "",
        constants: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        """Create the executable.

        `weights` are the contents of `graph.weights`; `inputs` and `outputs` rename the inputs and outputs of `graph`.
        `kept_bytes` is the memory allocated and kept by backends before, None if unknown; `remark` is a note on the
        model for the user; `constants` names the weights that are constants of the program. `defaults` are the
        contents of inputs left out by a call; `fixed` are inputs of the file that are constants, each with a remark.
        The caller guarantees that `plan` is a valid plan of `graph`.
        """
        self.graph = graph
        self.plan = plan
        self.inputs = dict(zip(inputs or [v.name for v in graph.inputs], graph.inputs, strict=True))
        self.outputs = dict(zip(outputs or [v.name for v in graph.outputs], graph.outputs, strict=True))
        self.remark = remark
        self._make_kernels = make_kernels
        self._kernels: Kernels | None = None
        self.planned_memory = ExecutableMemory(graph, plan)
        self._locks = self.planned_memory.locks
        self.point_accesses = accesses_of_points(graph, plan, self.planned_memory.pointers)
        self._state = ExecutableState(graph, self.planned_memory)
        self.fixed = dict(fixed or {})
        self._contents = CallerContents(
            graph, self.planned_memory, self._state, weights, self.inputs, self.outputs, defaults or {}, self.fixed
        )
        self._stacked = stacked_outputs(graph)
        self._workers = Workers(self)
        self._program: BoundProgram | None = None  # the latest program
        self._programs = ProgramCache(self.planned_memory)
        self._form: Form = as_numpy
        self._runs = 0  # number of runs and rebinds: views of an older count are invalid
        self._has_outputs = False  # True if the storages hold outputs of a run
        self._kept_bytes = kept_bytes
        parts = self._contents, self.planned_memory, self._state
        self.weights = ExecutableWeights(graph, *parts, constants, self.inputs, WeakMethod(self._forget_programs))
        self._allocated = Allocated(reason=NOT_YET)
        renew_in_children(self)

    def __repr__(self) -> str:
        counts = f"inputs {len(self.inputs)}, outputs {len(self.outputs)}"
        return f"<Executable {printable(self.graph.name)}: arena {self.arena_bytes:,} bytes, {counts}>"

    def _repr_html_(self) -> str:
        """Return the figures and a memory map for a notebook."""
        return self.plan._repr_html_()

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once. Inputs by name, as a mapping or as keywords; returns copies of the outputs by name.

        Raises RunError for a wrong input, KernelError when a kernel fails.
        """
        with self._locks.own, self._locks.shared_lock():
            self._run(inputs_by_name(inputs, named))
            return self._outputs_for_caller(copy=True)

    def views(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Views:
        """Run once, and return outputs as views of the planned memory: valid until the next run."""
        with self._locks.own, self._locks.shared_lock():
            self._run(inputs_by_name(inputs, named))
            return Views(self._outputs_for_caller(copy=False), lambda: self._runs, self.hold, self)

    def outputs_as(self, form: str | Callable[[Any], Any]) -> Self:
        """Set the array type of outputs of calls, `views`, `hold` and `state`; the memory stays the same. Return self.

        "numpy", "torch", "dlpack" (`Shared`, accepted by any library with DLPack), or a function of a `Shared`,
        such as `jax.dlpack.from_dlpack`.
        """
        self._form = output_form(form)
        return self

    def hold(self, name: str) -> Any:
        """Return an output of the latest run for permanent use; the executable gets new memory in its place.

        Nothing is copied. The output must have been planned with `io="bound"`, and so have separate memory.
        Raises RunError for other outputs; calls return copies of those.
        """
        with self._locks.own:
            value = self.outputs.get(name)
            if value is None:
                raise RunError(f"there is no output {printable(name)!r}; there are {known_names(self.outputs)}")
            storage, memory = bound_storage_name(value.name), self.planned_memory
            apart = storage in memory.storages and memory.places_after_run().region(value).storage == storage
            exchanged = any(value.name in cycle for cycle in self.plan.exchanged)
            if not apart or exchanged or value in self.graph.updated_values:
                hint = "plan with io='bound', or use the copy that a call returns"
                raise RunError(f"{name!r} has no memory of its own: {hint}")
            if not self._has_outputs:
                raise RunError(f"{name!r} has no content: run first, and hold it before binding other memory")
            found = self._form(self._result(value, memory.places_after_run().operand(value), copy=False))
            memory.adopt_bytes(storage, aligned_bytes(value.nbytes, self.plan.alignment), name, 1)
            self._rebind(storage)
            return found

    def prepare(self) -> None:
        """Choose the kernels, allocate and bind, as the first run does otherwise."""
        self.bound_program()

    def bound_program(self) -> BoundProgram:
        """Return the program of the next run, bound to kernels and memory."""
        with self._locks.own:
            self._program = program = self._programs.current_program(self._build_program)
            return program

    def bind(self, name: str, memory: Any) -> None:
        """Use memory of the caller for an input, output or weight, or for a whole arena.

        The arena is named "arena"; in a plan with memory regions, each arena has the name of its region. `memory`
        has the buffer protocol or DLPack, and is used in place: each run reads a bound input there. An input
        or output can be bound if planned with `io="bound"`. Raises RunError when name, size, alignment,
        type or layout do not fit.
        """
        with self._locks.own:
            self._invalidate_views()
            if self._programs.try_repoint(name, memory):
                return
            if name in self.planned_memory.arenas and name not in (*self.inputs, *self.outputs):
                with self._locks.shared_lock():
                    self._contents.enter_arena()
                    saved = self._state.save()
                raw = raw_bytes(contiguous(array_of(memory, f"the {name}"), f"the {name}"))
                self.planned_memory.adopt_bytes(name, raw, f"the {name}", self.plan.alignment)
                with self._locks.shared_lock():  # possibly another lock: the lock shared over the new memory
                    self._contents.enter_arena()
                    self._contents.load_weights()
                    self._state.restore(saved)
                self._forget_programs()
                return
            value, other_weight = self._contents.bind(name, memory)
            if other_weight:
                self._forget_programs(content=True)
            elif self._rebind(bound_storage_name(value.name)) and value not in self.graph.updated_values:
                self._programs.learn(name, value)

    @property
    def updated(self) -> tuple[str, ...]:
        """The names of the inputs and weights forming the state."""
        names = {value: name for name, value in self.inputs.items()}
        return tuple(names.get(value, value.name) for value in self.graph.updated_values)

    def state(self, name: str) -> Any:
        """Return a copy of the content of an updated input or weight: the content at the start of the next run.

        After a failed run the content may be half-written: the note of the error names the values. Raises RunError
        when `name` is not updated, or was never given a content.
        """
        with self._locks.own, self._locks.shared_lock():
            self._contents.enter_arena()
            found = self._copy_of_state(self._state.require_readable(self._updated_value(name), name))
            return self._form(found) if isinstance(found, np.ndarray) else found

    def set_state(self, name: str, content: Any) -> None:
        """Set the content of an updated input or weight for the next run; the content is copied.

        Raises RunError when `name` is not updated, or when type or shape do not fit.
        """
        with self._locks.own, self._locks.shared_lock():
            self._contents.enter_arena()
            self._contents.set_content(self._updated_value(name), content, f"state {printable(name)}")

    def reset(self) -> None:
        """Forget the contents of all updated inputs, as before the first run: defaults apply again, if there are any.

        Updated weights keep their contents.
        """
        with self._locks.own, self._locks.shared_lock():
            self._state.forget(self.inputs.values())

    def session(self) -> Session:
        """Return a session: calls with a state of their own, over the same plan, weights, kernels and arena.

        The session starts from the present state of the executable.
        """
        with self._locks.own, self._locks.shared_lock():
            self._contents.enter_arena()
            return Session(self, self._state.record())

    @contextmanager
    def with_state_of(self, record: StateRecord) -> Iterator[None]:
        """Exchange the state of the executable with a record of a session during the block, under the locks."""
        with self._locks.own, self._locks.shared_lock():
            self._contents.enter_arena()
            with self._state.exchanged(record):
                self._invalidate_views()
                yield

    @property
    def arena_bytes(self) -> int:
        """The size of the arena in bytes."""
        return self.plan.arena_bytes

    @property
    def copied_bytes(self) -> int:
        """The bytes copied by loops, branches and updates in the latest run."""
        return self._program.moved.nbytes if self._program else 0

    @property
    def nodes_of_backends(self) -> dict[str, int]:
        """The number of nodes computed by each backend, sub-graphs included; under "" nodes that only copy bytes."""
        with self._locks.own:
            names = [chosen.backend if chosen else "" for chosen in self._chosen_kernels().values()]
        return dict(Counter(names))

    @property
    def memory(self) -> Workspace:
        """All memory needed to run; allocations of libraries are known only after `measured`."""
        with self._locks.own:
            scratch = [chosen.kernel.scratch for chosen in self._chosen_kernels().values() if chosen]
            contents = [cell.content for cell in self.planned_memory.cells.values()]
            return workspace_of(self.plan, scratch, contents, self._allocated)

    def measured(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once, and measure the allocations of libraries during the run; `memory` returns the result.

        Kept bytes are measured around the very first run, temporary bytes around a second run from
        the same state.
        """
        given = inputs_by_name(inputs, named)
        with self._locks.own, self._locks.shared_lock(), returning_freed_memory():
            self._contents.enter_arena()
            saved = self._state.save()
            self._run(given)
            self._state.restore(saved)
            self._contents.load_inputs(given)
            peak, reason = measure_peak(self._execute, self.planned_memory.written_storages())
            self._allocated = replace(self._allocated, peak_bytes=peak, reason=reason)
            return self._outputs_for_caller(copy=True)

    def bytes_of(self, value: Value, copies: Context = ()) -> Raw:
        """Return the current bytes of a value; a copy where only each row is contiguous."""
        region = self.region_of(value, copies)
        runs = [self.planned_memory.bytes_at(run) for run in region.runs] if region else [np.empty(0, np.uint8)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def region_of(self, value: Value, copies: Context = ()) -> Region | None:
        """Return the current region of a value in the body versions `copies`; None for a value without bytes.

        A value moving from iteration to iteration lies at its place in the current iteration, a renamed carry in the
        region bound to it.
        """
        return self.planned_memory.region(value, copies) if value.nbytes else None

    def close(self) -> None:
        """Let the threads of the streams end."""
        self._workers.close()

    def run_watched(
        self,
        inputs: Mapping[str, Any],
        watch: Watch,
        *,
        arenas: Mapping[str, Raw] | None = None,
        serial: bool = False,
        left: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run once with the action of every point wrapped by `watch`; return copies of the outputs.

        `arenas` replaces arenas, or storages of updated values, by name, for this run. `serial` runs several streams in
        one thread. The run starts from the current state without changing the state; the state after the run is stored
        in `left`.
        """
        arenas = arenas or {}
        with self._locks.own, self._locks.shared_lock(), self._locks.running(self.graph.name):
            self._contents.enter_arena()
            with self._state.restoring() as saved:
                self._invalidate_views()
                before = {name: self.planned_memory.raw(name) for name in arenas}
                try:
                    for name, arena in arenas.items():
                        self.planned_memory.adopt_bytes(name, arena, f"the {name}", self.plan.alignment)
                    self._contents.load_weights()
                    self._state.restore(saved)
                    self._contents.load_inputs(inputs)
                    program = self._build_program(watch, serial)
                    program.run()
                    if left is not None:
                        left.update((name, self._copy_of_state(self._updated_value(name))) for name in self.updated)
                    return self._results(copy=True)
                finally:
                    for name, arena in before.items():
                        self.planned_memory.adopt_bytes(name, arena, f"the {name}", 1)

    def renew_in_child(self) -> None:
        """Free the locks in the child of a fork, and drop everything with threads of the parent."""
        if self._locks.renew_locks():
            self._state.mark_all_uncertain()
        self._forget_programs(content=True)

    def _forget_programs(self, content: bool = False) -> None:
        """Drop all programs; with `content`, also drop the kernels, which depend on contents of weights."""
        self._program = None
        self._programs.forget()
        if content:
            self._kernels = None

    def _rebind(self, storage: str) -> bool:
        """Rebind programs to the current memory of a storage; True if only some calls were rebound."""
        done = self._programs.rebind(storage, lambda: partial(bind_node, kernels=self._chosen_kernels()))
        self._program = self._program if done else None
        return done

    def _build_program(self, watch: Watch = pass_through, serial: bool = False) -> BoundProgram:
        """Return a program bound with the chosen kernels."""
        bind, workers = partial(bind_node, kernels=self._chosen_kernels()), None if serial else self._workers
        return build_program(self.graph, self.plan.schedule, self.planned_memory, bind, workers, watch)

    def _outputs_for_caller(self, *, copy: bool) -> dict[str, Any]:
        """Return the outputs in the array type set by the caller; contents other than arrays stay unchanged."""
        found, form = self._results(copy=copy), self._form
        if form is as_numpy:
            return found
        return {name: form(content) if isinstance(content, np.ndarray) else content for name, content in found.items()}

    def _results(self, *, copy: bool) -> dict[str, Any]:
        """Return the outputs by name, as NumPy arrays."""
        memory = self.planned_memory
        operand = memory.places_after_run().operand if self.plan.exchanged else memory.outer_operand
        return {name: self._result(value, operand(value), copy=copy) for name, value in self.outputs.items()}

    def _chosen_kernels(self) -> Kernels:
        """Return the kernels, chosen on first use."""
        if self._kernels is None:
            here, known = self.planned_memory.places_at(), self.graph.constants
            self._kernels = self._make_kernels({v: here.array(v) for v in known if isinstance(v.spec, TensorSpec)})
        return self._kernels

    def _invalidate_views(self) -> None:
        """Invalidate all views."""
        self._runs += 1
        self._has_outputs = False

    def _run(self, inputs: Mapping[str, Any]) -> None:
        self._contents.enter_arena()
        with self._locks.running(self.graph.name):
            self._run_alone(inputs)

    def _run_alone(self, inputs: Mapping[str, Any]) -> None:
        """Run once, under the locks; the first run also measures the bytes kept by libraries."""
        self._invalidate_views()
        self._contents.load_inputs(inputs)
        if self._allocated.held_bytes is not None or self._kept_bytes is None:
            self._execute()
            return
        before, own = bytes_in_use(), self._own_bytes()
        self._execute()
        grown = growth_since(before)
        if grown is not None:
            held = max(0, self._kept_bytes + grown - (self._own_bytes() - own))
            self._allocated = replace(self._allocated, held_bytes=held)

    def _own_bytes(self) -> int:
        """Return the bytes held by the executable: storages, and contents outside the plan."""
        contents = (cell.content for cell in self.planned_memory.cells.values())
        return self.planned_memory.allocated_bytes + sum(map(content_bytes, contents))

    def _execute(self) -> None:
        """Run the current program on the present contents."""
        program = self._program = self._programs.current_program(self._build_program)
        program.failed = NO_POINTS
        try:
            program.run()
        except BaseException as error:
            if self._state.values:
                left = state_after_failure(self.graph, self.plan, self.point_accesses, program.failed)
                self._state.note_failure(left, error)
            raise
        self._has_outputs = True

    def _copy_of_state(self, value: Value) -> Any:
        """Return a copy of the current content of a value."""
        return self._result(value, self.planned_memory.outer_operand(value), copy=True)

    def _result(self, value: Value, operand: Operand, *, copy: bool) -> Any:
        """Return the content of an operand: an array, or the object of a value outside the plan."""
        if isinstance(operand, UnplannedCell):
            return operand.content
        assert isinstance(value.spec, TensorSpec)
        if value in self._stacked:
            operand = self._stacked[value].computed_rows(operand, self.planned_memory.trip_counts)
        if is_packed(value.spec):
            return unpacked_elements(operand, value.spec)
        return operand.copy() if copy else operand.view()  # a caller may reshape a view in place

    def _updated_value(self, name: str) -> Value:
        """Return the updated value with the given name. Raises RunError for another name."""
        for known, value in zip(self.updated, self.graph.updated_values, strict=True):
            if name == known:
                return value
        raise RunError(f"no run updates {printable(name)!r}; updated values: {known_names(self.updated)}")


class Session:
    """Calls of an executable with a state of their own, from `Executable.session`.

    Sessions share plan, weights, kernels and arena, so a session costs only the bytes of its state. A call takes the
    lock of the executable, and copies the state in before the run and out after the run. Sessions of several threads
    run one after another.
    """

    def __init__(self, executable: Executable, record: StateRecord) -> None:
        self._executable = executable
        self._record = record

    def __repr__(self) -> str:
        return f"<Session of {self._executable!r}: state {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The bytes held by the session for its state."""
        return self._record.nbytes

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once from the state of the session, like a call of the executable; the session keeps the new state."""
        with self._executable.with_state_of(self._record):
            return self._executable(inputs, **named)

    def state(self, name: str) -> Any:
        """Return a copy of the content of an updated input or weight, see `Executable.state`."""
        with self._executable.with_state_of(self._record):
            return self._executable.state(name)

    def set_state(self, name: str, content: Any) -> None:
        """Set the content of an updated input or weight for the next call, see `Executable.set_state`."""
        with self._executable.with_state_of(self._record):
            self._executable.set_state(name, content)

    def reset(self) -> None:
        """Forget the contents of all updated inputs, see `Executable.reset`."""
        with self._executable.with_state_of(self._record):
            self._executable.reset()

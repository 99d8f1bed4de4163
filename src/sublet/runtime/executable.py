"""The Executable: a graph, its plan and its kernels, bound to memory and ready to run [NNC: computation graph]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from sublet.base.arrays import array_of, contiguous
from sublet.base.errors import RunError
from sublet.base.forks import renew_in_children
from sublet.base.printable import known_names, printable
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.plan import Context, MemoryPlan, Region, bound_to
from sublet.runtime.contents import Contents
from sublet.runtime.dtypes import packed, plain
from sublet.runtime.given import by_name
from sublet.runtime.kernel import Array, Cell
from sublet.runtime.kernels import Kernels, bind_node
from sublet.runtime.left import UNBEGUN, left_by
from sublet.runtime.memory import Memory, Places, Raw, aligned_bytes, raw_bytes
from sublet.runtime.moments import moments
from sublet.runtime.program import Program, Watch, build, unwatched
from sublet.runtime.programs import Programs
from sublet.runtime.results import Form, Views, as_it_is, form_of
from sublet.runtime.rounds import stacked_outputs
from sublet.runtime.state import State
from sublet.runtime.streams import Workers
from sublet.runtime.weights import Weights
from sublet.runtime.workspace import (
    NOT_YET,
    Allocated,
    Workspace,
    bytes_in_use,
    content_bytes,
    giving_back,
    growth,
    peak_of,
    workspace,
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
    ) -> None:
        """Create the executable.

        `weights` are the contents of `graph.weights`; `inputs` and `outputs` rename the inputs and outputs of `graph`.
        `kept_bytes` is the memory allocated and kept by backends before, None if unknown; `remark` is a note on the
        model for the user; `constants` names the weights that are constants of the program. The caller guarantees
        that `plan` is a valid plan of `graph`.
        """
        self.graph = graph
        self.plan = plan
        self.inputs = dict(zip(inputs or [v.name for v in graph.inputs], graph.inputs, strict=True))
        self.outputs = dict(zip(outputs or [v.name for v in graph.outputs], graph.outputs, strict=True))
        self.remark = remark
        self._make_kernels = make_kernels
        self._kernels: Kernels | None = None
        self._memory = Memory(graph, plan)
        self._turn = self._memory.turns
        self.moments = moments(graph, plan, self._memory.pointers)
        self._state = State(graph, self._memory)
        self._contents = Contents(graph, self._memory, self._state, weights, self.inputs, self.outputs)
        self._stacked = stacked_outputs(graph)
        self._workers = Workers()
        self._program: Program | None = None  # the latest program
        self._programs = Programs(self._memory, lambda: self._built(unwatched, self._workers))
        self._form: Form = as_it_is
        self._runs = 0  # number of runs and rebinds: views of an older count are invalid
        self._there = False  # True if the storages hold outputs of a run
        self._kept = kept_bytes
        parts = self._contents, self._memory, self._state
        self.weights = Weights(graph, *parts, constants, self.inputs, self._forget)
        self._allocated = Allocated(reason=NOT_YET)
        renew_in_children(self)

    def __repr__(self) -> str:
        counts = f"inputs {len(self.inputs)}, outputs {len(self.outputs)}"
        return f"<Executable {printable(self.graph.name)}: arena {self.arena_bytes:,} bytes, {counts}>"

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once. Inputs by name, as a mapping or as keywords; returns copies of the outputs by name.

        Raises RunError for a wrong input, KernelError when a kernel fails.
        """
        with self._turn.own, self._turn.shared():
            self._run(by_name(inputs, named))
            return self._given(copy=True)

    def views(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Views:
        """Run once, and return outputs as views of the planned memory: valid until the next run."""
        with self._turn.own, self._turn.shared():
            self._run(by_name(inputs, named))
            return Views(self._given(copy=False), lambda: self._runs, self.hold, repr(self))

    def outputs_as(self, form: str | Callable[[Any], Any]) -> Self:
        """Set the array type of outputs of calls, `views`, `hold` and `state`; the memory stays the same. Return self.

        "numpy", "torch", "dlpack" (`Shared`, accepted by any library with DLPack), or a function of a `Shared`,
        such as `jax.dlpack.from_dlpack`.
        """
        self._form = form_of(form)
        return self

    def hold(self, name: str) -> Any:
        """Return an output of the latest run for permanent use; the executable gets new memory in its place.

        Nothing is copied. The output must have been planned with `io="bound"`, and so have separate memory.
        Raises RunError for other outputs; calls return copies of those.
        """
        with self._turn.own:
            value = self.outputs.get(name)
            if value is None:
                raise RunError(f"there is no output {printable(name)!r}; there are {known_names(self.outputs)}")
            storage = bound_to(value.name)
            apart = storage in self._memory.storages and self._memory.ended().region(value).storage == storage
            exchanged = any(value.name in cycle for cycle in self.plan.exchanged)
            if not apart or exchanged or value in self.graph.updated:
                hint = "plan with io='bound', or take the copy a call gives"
                raise RunError(f"{name!r} has no memory of its own: {hint}")
            if not self._there:
                raise RunError(f"{name!r} is not there: run first, and hold it before other memory is bound")
            found = self._form(self._result(value, self._memory.ended(), copy=False))
            self._memory.bring(storage, aligned_bytes(value.nbytes, self.plan.alignment), name, 1)
            self._rebind(storage)
            return found

    def prepare(self) -> None:
        """Choose the kernels, allocate and bind, as the first run does otherwise."""
        with self._turn.own:
            self._program = self._programs.current()

    def bind(self, name: str, memory: Any) -> None:
        """Use memory of the caller for an input, output or weight, or for a whole arena.

        The arena is named "arena"; in a plan with memory regions, each arena has the name of its region. `memory`
        has the buffer protocol or DLPack, and is used in place: each run reads a bound input there. An input
        or output can be bound if planned with `io="bound"`. Raises RunError when name, size, alignment,
        type or layout do not fit.
        """
        with self._turn.own:
            self._begin()
            if self._programs.patched(name, memory):
                return
            if name in self._memory.arenas and name not in (*self.inputs, *self.outputs):
                with self._turn.shared():
                    saved = self._state.save()
                raw = raw_bytes(contiguous(array_of(memory, f"the {name}"), f"the {name}"))
                self._memory.bring(name, raw, f"the {name}", self.plan.alignment)
                with self._turn.shared():  # possibly another lock: the lock shared over the new memory
                    self._contents.load_weights()
                    self._state.restore(saved)
                self._forget()
                return
            value, other_weight = self._contents.bind(name, memory)
            if other_weight:
                self._forget(content=True)
            elif self._rebind(bound_to(value.name)) and value not in self.graph.updated:
                self._programs.learn(name, value)

    @property
    def updated(self) -> tuple[str, ...]:
        """The names of the inputs and weights forming the state."""
        names = {value: name for name, value in self.inputs.items()}
        return tuple(names.get(value, value.name) for value in self.graph.updated)

    def state(self, name: str) -> Any:
        """Return a copy of the content of an updated input or weight: the content at the start of the next run.

        After a failed run the content may be half-written: the note of the error names the values. Raises RunError
        when `name` is not updated, or was never given a content.
        """
        with self._turn.own, self._turn.shared():
            found = self._held(self._state.readable(self._updated(name), name))
            return self._form(found) if isinstance(found, np.ndarray) else found

    def set_state(self, name: str, content: Any) -> None:
        """Set the content of an updated input or weight for the next run; the content is copied.

        Raises RunError when `name` is not updated, or when type or shape do not fit.
        """
        with self._turn.own, self._turn.shared():
            self._contents.give(self._updated(name), content, f"state {printable(name)}")

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
        with self._turn.own:
            names = [chosen.backend if chosen else "" for chosen in self._chosen().values()]
        return dict(Counter(names))

    @property
    def memory(self) -> Workspace:
        """All memory needed to run; allocations of libraries are known only after `measured`."""
        with self._turn.own:
            scratch = [chosen.kernel.scratch for chosen in self._chosen().values() if chosen]
            contents = [cell.content for cell in self._memory.cells.values()]
            return workspace(self.plan, scratch, contents, self._allocated)

    def measured(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once, and measure the allocations of libraries during the run; `memory` returns the result.

        Kept bytes are measured around the very first run, temporary bytes around a second run from
        the same state.
        """
        given = by_name(inputs, named)
        with self._turn.own, self._turn.shared(), giving_back():
            saved = self._state.save()
            self._run(given)
            self._state.restore(saved)
            self._contents.feed(given)
            peak, reason = peak_of(self._execute, self._memory.written())
            self._allocated = replace(self._allocated, peak_bytes=peak, reason=reason)
            return self._given(copy=True)

    def bytes_of(self, value: Value, copies: Context = ()) -> Raw:
        """Return the current bytes of a value."""
        region = self.region_of(value, copies)
        return self._memory.bytes_at(region) if region else np.empty(0, np.uint8)

    def region_of(self, value: Value, copies: Context = ()) -> Region | None:
        """Return the current region of a value in the body versions `copies`; None for a value without bytes.

        A value moving from iteration to iteration lies at its place in the current iteration, a renamed carry in the
        region bound to it.
        """
        return self._memory.region(value, copies) if value.nbytes else None

    def close(self) -> None:
        """Let the threads of the streams end."""
        self._workers.close()

    def watched(
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
        with self._turn.own, self._turn.shared(), self._turn.running(self.graph.name), self._state.kept() as saved:
            self._begin()
            before = {name: self._memory.raw(name) for name in arenas}
            try:
                for name, arena in arenas.items():
                    self._memory.bring(name, arena, f"the {name}", self.plan.alignment)
                self._contents.load_weights()
                self._state.restore(saved)
                self._contents.feed(inputs)
                program = self._built(watch, None if serial else self._workers)
                program.run()
                if left is not None:
                    left.update((name, self._held(self._updated(name))) for name in self.updated)
                return self._results(copy=True)
            finally:
                for name, arena in before.items():
                    self._memory.bring(name, arena, f"the {name}", 1)

    def renew_in_child(self) -> None:
        """Free the locks in the child of a fork, and drop everything with threads of the parent."""
        if self._turn.renewed():
            self._state.interrupted()
        self._forget(content=True)

    def _forget(self, content: bool = False) -> None:
        """Drop all programs; with `content`, also drop the kernels, which depend on contents of weights."""
        self._program = None
        self._programs.forget()
        if content:
            self._kernels = None

    def _rebind(self, storage: str) -> bool:
        """Rebind programs to the current memory of a storage; True if only some calls were rebound."""
        done = self._programs.rebind(storage, lambda: partial(bind_node, kernels=self._chosen()))
        self._program = self._program if done else None
        return done

    def _built(self, watch: Watch, workers: Workers | None) -> Program:
        """Return a program bound with the chosen kernels."""
        bind = partial(bind_node, kernels=self._chosen())
        return build(self.graph, self.plan.schedule, self._memory, bind, workers, watch)

    def _given(self, *, copy: bool) -> dict[str, Any]:
        """Return the outputs in the array type set by the caller; contents other than arrays stay unchanged."""
        found, form = self._results(copy=copy), self._form
        if form is as_it_is:
            return found
        return {name: form(content) if isinstance(content, np.ndarray) else content for name, content in found.items()}

    def _results(self, *, copy: bool) -> dict[str, Any]:
        """Return the outputs by name, as NumPy arrays."""
        places = self._memory.ended()
        return {name: self._result(value, places, copy=copy) for name, value in self.outputs.items()}

    def _chosen(self) -> Kernels:
        """Return the kernels, chosen on first use."""
        if self._kernels is None:
            here, known = self._memory.here(), self.graph.constants
            self._kernels = self._make_kernels({v: here.array(v) for v in known if isinstance(v.spec, TensorSpec)})
        return self._kernels

    def _begin(self) -> None:
        """Invalidate all views."""
        self._runs += 1
        self._there = False

    def _run(self, given: Mapping[str, Any]) -> None:
        with self._turn.running(self.graph.name):
            self._run_alone(given)

    def _run_alone(self, given: Mapping[str, Any]) -> None:
        """Run once, under the locks; the first run also measures the bytes kept by libraries."""
        self._begin()
        self._contents.feed(given)
        if self._allocated.held_bytes is not None or self._kept is None:
            self._execute()
            return
        before, own = bytes_in_use(), self._own_bytes()
        self._execute()
        grown = growth(before)
        if grown is not None:
            held = max(0, self._kept + grown - (self._own_bytes() - own))
            self._allocated = replace(self._allocated, held_bytes=held)

    def _own_bytes(self) -> int:
        """Return the bytes held by the executable: storages, and contents outside the plan."""
        return self._memory.present_bytes + sum(content_bytes(cell.content) for cell in self._memory.cells.values())

    def _execute(self) -> None:
        """Run the current program on the present contents."""
        program = self._program = self._programs.current()
        program.failed = UNBEGUN
        with self._state.running(lambda: left_by(self.graph, self.plan, self.moments, program.failed)):
            program.run()
        self._there = True

    def _held(self, value: Value) -> Any:
        """Return a copy of the current content of a value."""
        return self._result(value, self._memory.here(), copy=True)

    def _result(self, value: Value, places: Places, *, copy: bool) -> Any:
        operand = places.operand(value)
        if isinstance(operand, Cell):
            return operand.content
        assert isinstance(value.spec, TensorSpec)
        if value in self._stacked:
            operand = self._stacked[value].made(operand, self._memory.rounds)
        if packed(value.spec):
            return plain(operand, value.spec)
        return operand.copy() if copy else operand

    def _updated(self, name: str) -> Value:
        """Return the updated value with the given name. Raises RunError for another name."""
        for known, value in zip(self.updated, self.graph.updated, strict=True):
            if name == known:
                return value
        raise RunError(f"no run updates {printable(name)!r}; updated are {known_names(self.updated)}")

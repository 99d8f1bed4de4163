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
"""Chooses the kernels, given the weights that lie in memory."""


class Executable:
    """Runs a planned graph in exactly the memory of its plan.

    Calling it copies the inputs to their places, runs, and returns copies of the outputs. After the first
    run nothing is allocated but those copies. It holds a lock while it runs: calls from several threads
    come one after another. After an error or an interrupt it can be called again.

    What the graph updates is the state of the executable: its content stays from run to run, in memory of the
    executable's own (the weights given are copied), or in the caller's where it is bound. An updated input need not be
    given again. A run that fails leaves each as it was or updated, and tells so; what it may have left half written can
    be read, and must be set anew.
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
        """`weights` are the contents of `graph.weights`; `inputs` and `outputs` name those of the graph anew.

        `kept_bytes` is what backends allocated and kept before, None when nobody could tell; `remark` is what its
        user should be told about the model; `constants` names weights that the program itself contains. That the plan
        is of this graph and right is for the caller to know.
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
        self._program: Program | None = None  # the one that ran last
        self._programs = Programs(self._memory, lambda: self._built(unwatched, self._workers))
        self._form: Form = as_it_is
        self._runs = 0  # how often what lies in its memory became something else
        self._there = False  # whether outputs of a run lie there
        self._kept = kept_bytes
        parts = self._contents, self._memory, self._state
        self.weights = Weights(graph, *parts, constants, self.inputs, self._forget)
        self._allocated = Allocated(reason=NOT_YET)
        renew_in_children(self)

    def __repr__(self) -> str:
        counts = f"inputs {len(self.inputs)}, outputs {len(self.outputs)}"
        return f"<Executable {printable(self.graph.name)}: arena {self.arena_bytes:,} bytes, {counts}>"

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once. Inputs by name, as a mapping or as keywords; the outputs by name, as copies.

        Raises RunError for a wrong input, KernelError when a kernel fails.
        """
        with self._turn.own, self._turn.shared():
            self._run(by_name(inputs, named))
            return self._given(copy=True)

    def views(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Views:
        """Like a call, but the outputs lie in the memory of the plan itself: they are good until the next run."""
        with self._turn.own, self._turn.shared():
            self._run(by_name(inputs, named))
            return Views(self._given(copy=False), lambda: self._runs, self.hold, repr(self))

    def outputs_as(self, form: str | Callable[[Any], Any]) -> Self:
        """Let calls, `views`, `hold` and `state` give tensors of another library, over the same memory.

        "numpy", "torch", "dlpack" (`Shared`: any library with DLPack takes it), or a function that is given such a
        one, as `jax.dlpack.from_dlpack`.
        """
        self._form = form_of(form)
        return self

    def hold(self, name: str) -> Any:
        """The memory of an output as the latest run left it, to keep; the executable gets other memory in its place.

        Nothing is copied. It is for outputs that were planned so (`io="bound"`), as they have memory of their own.
        Raises RunError for others: what a call gives is a copy.
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
        """Choose the kernels, allocate and bind, which the first run would do otherwise."""
        with self._turn.own:
            self._program = self._programs.current()

    def bind(self, name: str, memory: Any) -> None:
        """Let an input, output or weight, or a whole arena, be the caller's memory.

        The arena is called "arena"; where a plan has memory regions, each is called by its own name. `memory`
        has the buffer protocol or DLPack, and is used where it is: an input is read there at each run. An input
        or output can be bound when it was planned so (`io="bound"`). Raises RunError when name, size, alignment,
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
                with self._turn.shared():  # maybe another lock: that of the memory brought
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
        """The names of the inputs and weights that are its state."""
        names = {value: name for name, value in self.inputs.items()}
        return tuple(names.get(value, value.name) for value in self.graph.updated)

    def state(self, name: str) -> Any:
        """A copy of what an updated input or weight holds now: what the next run starts from.

        After a run that failed it may be half of an update: the error's note names it. Raises RunError when `name`
        is not updated, or was not given yet.
        """
        with self._turn.own, self._turn.shared():
            found = self._held(self._state.readable(self._updated(name), name))
            return self._form(found) if isinstance(found, np.ndarray) else found

    def set_state(self, name: str, content: Any) -> None:
        """Let the next run start from another content of an updated input or weight, which is copied.

        Raises RunError when `name` is not updated, or when type or shape do not fit.
        """
        with self._turn.own, self._turn.shared():
            self._contents.give(self._updated(name), content, f"state {printable(name)}")

    @property
    def arena_bytes(self) -> int:
        """Size of the arena."""
        return self.plan.arena_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes that loops, branches and updates moved in the latest run."""
        return self._program.moved.nbytes if self._program else 0

    @property
    def nodes_of_backends(self) -> dict[str, int]:
        """How many nodes each backend computes, sub-graphs included; under "" those that only move bytes."""
        with self._turn.own:
            names = [chosen.backend if chosen else "" for chosen in self._chosen().values()]
        return dict(Counter(names))

    @property
    def memory(self) -> Workspace:
        """All memory that running takes; what libraries take on their own only after `measured`."""
        with self._turn.own:
            scratch = [chosen.kernel.scratch for chosen in self._chosen().values() if chosen]
            contents = [cell.content for cell in self._memory.cells.values()]
            return workspace(self.plan, scratch, contents, self._allocated)

    def measured(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Like a call, and measure what libraries allocate meanwhile: `memory` tells it afterwards.

        What they keep is counted around the first run of all; what comes and goes around a later one, which starts
        from the same state.
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
        """The bytes of a value, as they are now."""
        region = self.region_of(value, copies)
        return self._memory.bytes_at(region) if region else np.empty(0, np.uint8)

    def region_of(self, value: Value, copies: Context = ()) -> Region | None:
        """Where a value lies now, in copies of the bodies around it; None when it has no bytes.

        What moves from round to round lies where it is in the round that its loops make, a pointer where what it
        stands for is.
        """
        return self._memory.region(value, copies) if value.nbytes else None

    def close(self) -> None:
        """Let the threads of its streams end."""
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
        """Run once with the action of every point wrapped by `watch`; the outputs are copies.

        The run may have other `arenas`, or storages of updated values, by name; `serial` runs several streams in one
        thread. It starts from the state, which it does not change; what it would be afterwards comes into `left`.
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
        """Free the locks in the child of a fork, and open anew what holds threads of the parent."""
        if self._turn.renewed():
            self._state.interrupted()
        self._forget(content=True)

    def _forget(self, content: bool = False) -> None:
        """Programs, for memory is another one; and with another `content` of weights kernels, which know it."""
        self._program = None
        self._programs.forget()
        if content:
            self._kernels = None

    def _rebind(self, storage: str) -> bool:
        """Let programs find a storage where it is now; whether only calls that hold its address were bound anew."""
        done = self._programs.rebind(storage, lambda: partial(bind_node, kernels=self._chosen()))
        self._program = self._program if done else None
        return done

    def _built(self, watch: Watch, workers: Workers | None) -> Program:
        bind = partial(bind_node, kernels=self._chosen())
        return build(self.graph, self.plan.schedule, self._memory, bind, workers, watch)

    def _given(self, *, copy: bool) -> dict[str, Any]:
        """The outputs in the form that was asked for; what is outside the plan and no array is as it is."""
        found, form = self._results(copy=copy), self._form
        if form is as_it_is:
            return found
        return {name: form(content) if isinstance(content, np.ndarray) else content for name, content in found.items()}

    def _results(self, *, copy: bool) -> dict[str, Any]:
        places = self._memory.ended()
        return {name: self._result(value, places, copy=copy) for name, value in self.outputs.items()}

    def _chosen(self) -> Kernels:
        if self._kernels is None:
            here, known = self._memory.here(), self.graph.constants
            self._kernels = self._make_kernels({v: here.array(v) for v in known if isinstance(v.spec, TensorSpec)})
        return self._kernels

    def _begin(self) -> None:
        """From here on views are no longer good."""
        self._runs += 1
        self._there = False

    def _run(self, given: Mapping[str, Any]) -> None:
        with self._turn.running(self.graph.name):
            self._run_alone(given)

    def _run_alone(self, given: Mapping[str, Any]) -> None:
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
        """What it holds itself at the moment: storages, and values outside the plan."""
        return self._memory.present_bytes + sum(content_bytes(cell.content) for cell in self._memory.cells.values())

    def _execute(self) -> None:
        program = self._program = self._programs.current()
        program.failed = UNBEGUN
        with self._state.running(lambda: left_by(self.graph, self.plan, self.moments, program.failed)):
            program.run()
        self._there = True

    def _held(self, value: Value) -> Any:
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
        for known, value in zip(self.updated, self.graph.updated, strict=True):
            if name == known:
                return value
        raise RunError(f"no run updates {printable(name)!r}; updated are {known_names(self.updated)}")

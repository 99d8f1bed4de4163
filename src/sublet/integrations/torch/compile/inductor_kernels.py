"""`options={"kernels": "inductor"}`: Sublet divides a joint graph, Inductor generates the kernels.

Sublet lowers a graph several times without compiling kernels, once for each way to divide the graph into forward and
backward, and reads the peak of live bytes from the allocations of each wrapper. The division with the smallest peak is
compiled; with a budget, the first division within the budget, in the order of increasing recomputation.

Settings of PyTorch change for the calls of this module alone, and in the current thread alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from sublet.base.errors import SubletError
from sublet.base.formatting import human
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.compile_report import Compiled, add_record
from sublet.integrations.torch.compile.inductor_memory import (
    InductorObject,
    PassMemory,
    StepMemory,
    memory_in_code,
    read_wrappers,
    step_memory,
)
from sublet.integrations.torch.compile.joint_budget import RUNGS, ClonePairs, StoredTensors, TargetSearch, mark_saved
from sublet.integrations.torch.compile.joint_partition import (
    DividedGraphs,
    changed_arguments,
    partition_joint,
    rematerialize_cheap,
)
from sublet.integrations.torch.reader.exported_program import error_summary, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule

FREE_SHARE = 0.01
"""Predicted extra time, as a share of a step, of a recomputation made without a budget."""

Divide = Callable[..., DividedGraphs]
"""A partitioner: (joint graph module, example arguments, num_fwd_outputs=..., ...) -> (forward, backward)."""

Strides = list[tuple[int, ...] | None]
"""The strides of the results of a graph, None for numbers and for open strides."""


@dataclass(frozen=True)
class CompiledByInductor(Compiled):
    """The record of a graph with kernels of Inductor.

    peak_bytes      peak of live bytes of both passes, read from Inductor's allocations; without arguments, results of
                    the caller and gradients; None if unknown
    saved_bytes     bytes saved by the forward pass
    inductor_bytes  the peak of Inductor's own division; None if not measured
    division        the origin of the chosen division, see `Division`
    again           stored tensors computed again by the search
    why_unknown     the reason for an unknown peak
    """

    peak_bytes: int | None = None
    saved_bytes: int = 0
    inductor_bytes: int | None = None
    division: str = ""
    again: int = 0
    why_unknown: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: left to Inductor alone: {self.reason}"
        words = f"{self.name}: {self.nodes} operators by Inductor's kernels"
        if self.peak_bytes is None:
            return f"{words}, peak unknown: {self.why_unknown}"
        words += f", peak {human(self.peak_bytes)}"
        if self.inductor_bytes is not None:
            words += f" instead of {human(self.inductor_bytes)}, {human(self.saved_bytes)} saved for the backward"
        return words + (f"; {self.again} tensors are computed again" if self.again else "")


@dataclass
class Lowering:
    """The passes of a graph as lowered or compiled by Inductor.

    passes   memory of the forward pass and, if any, of the backward pass; None for an unknown memory
    saved    position of each saved result of the forward pass, by name of the argument of the backward pass
    results  number of results of the caller; None for an inference
    nodes    number of operators of the lowered passes
    """

    passes: list[PassMemory | None] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    results: int | None = None
    nodes: int = 0

    @property
    def pass_names(self) -> str:
        """ "forward", or "forward and backward"."""
        return "forward" if self.results is None else "forward and backward"

    @property
    def why_unknown(self) -> str:
        """The reason for an unknown memory; "" for a known memory."""
        if len(self.passes) != (1 if self.results is None else 2):
            return f"Inductor generated {len(self.passes)} functions"
        if any(each is None for each in self.passes):
            return "Inductor's allocations could not be read"
        return "extents change from call to call" if any(each.dynamic for each in self.passes if each) else ""

    @property
    def memory(self) -> StepMemory | None:
        """The live bytes of both passes; None if unknown."""
        known = [each for each in self.passes if each is not None]
        if self.why_unknown:
            return None
        backward = None if self.results is None else known[1]
        return step_memory(known[0], backward, self.saved, self.results or 0)


class _Lowered(BaseException):
    """Ends Inductor's work on a graph once the allocations are known. No `Exception`: Inductor would wrap the class."""

    def __init__(self, memory: PassMemory | None, strides: Strides) -> None:
        super().__init__()
        self.memory, self.strides = memory, strides


@dataclass(frozen=True)
class Division:
    """A way to divide the joint graph, with the lowering of the graph.

    origin  "sublet": cheap tensors are computed again; "inductor": the minimum cut of PyTorch; "free": also stored
            tensors that cost nearly no time are computed again; "budget": as many as the budget asks for
    again   stored tensors computed again by the search
    """

    origin: str
    divide: Divide
    lowering: Lowering
    again: int = 0

    @property
    def peak(self) -> int:
        """The peak of live bytes. Only for a lowering with known memory."""
        memory = self.lowering.memory
        assert memory is not None, self.lowering.why_unknown
        return memory.peak


class InductorCompilation:
    """The compilation of one graph of Dynamo by Inductor, with Sublet's division."""

    def __init__(self, module: GraphModule, example: Sequence[object]) -> None:
        self._module, self._example = module, example
        self._fx = require("torch._inductor.compile_fx", extra="torch")
        self._partitioners = require("torch._functorch.partitioners", extra="torch")
        self._search: TargetSearch | None = None
        self.messages: list[str] = []

    def compile(self, budget: int | None) -> Callable[..., object]:
        """Compile the graph, and add a record to `report`. Raises SubletError without a division within the budget."""
        divisions = self._own_divisions()
        chosen = min(divisions, key=lambda each: each.peak) if _are_known(divisions) else divisions[0]
        if budget is not None:
            chosen = self._division_within(budget, divisions, chosen)
        compiled, final = self._compile(chosen.divide, lazy=budget is None)
        lowering, memory = chosen.lowering, chosen.lowering.memory
        peaks = [each.peak for each in divisions if each.origin == "inductor"]
        record = CompiledByInductor(
            lowering.pass_names,
            lowering.nodes,
            peak_bytes=memory.peak if memory else None,
            saved_bytes=memory.saved if memory else 0,
            inductor_bytes=peaks[0] if peaks else None,
            division=chosen.origin,
            again=chosen.again,
            why_unknown=lowering.why_unknown,
        )
        if budget is not None and (final.memory is None or final.memory.peak > budget):
            found = f"{final.memory.peak:,} bytes after compilation" if final.memory else final.why_unknown
            raise SubletError(f"{lowering.pass_names}: the budget is {budget:,} bytes. Inductor needs {found}")
        add_record(record)
        return compiled

    def compile_plainly(self) -> Callable[..., object]:
        """Return the graph compiled as by `torch.compile(backend="inductor")`."""
        return self._fx.compile_fx(self._copied_module(), self._example)  # type: ignore[no-any-return]

    def _own_divisions(self) -> list[Division]:
        """Return Sublet's division and Inductor's own division; Sublet's alone for an inference or unknown memory."""
        ours: Divide = partial(partition_joint, warn=self.messages.append)
        first = Division("sublet", ours, self._lower(ours))
        if first.lowering.results is None or first.lowering.memory is None:
            return [first]
        theirs = self._partitioners.min_cut_rematerialization_partition
        second = Division("inductor", theirs, self._lower(theirs))
        search = self._target_search()
        pairs = () if search is None else search.smallest_for(FREE_SHARE)
        divisions = [first, second, *([self._with_clones(pairs, "free")] if pairs else [])]
        return [each for each in divisions if each.lowering.memory is not None]

    def _with_clones(self, pairs: ClonePairs, origin: str) -> Division:
        """Return the division with some nodes computed again."""
        divide = partial(divide_with_clones, pairs)
        return Division(origin, divide, self._lower(divide), len(pairs))

    def _division_within(self, budget: int, divisions: Sequence[Division], smallest: Division) -> Division:
        """Return the first division within the budget. Raises SubletError if none is found."""
        names = smallest.lowering.pass_names
        if not _are_known(divisions):
            raise SubletError(
                f"{names}: the budget is {budget:,} bytes, and the peak of Inductor's kernels is unknown: "
                f"{smallest.lowering.why_unknown}. Drop the budget, or drop options={{'kernels': 'inductor'}}"
            )
        if smallest.peak <= budget:
            return smallest
        least = smallest.peak
        if smallest.lowering.results is not None:
            for each in self._recomputing_divisions(budget, divisions[0].peak):
                if each.lowering.memory is not None:
                    if each.peak <= budget:
                        return each
                    least = min(least, each.peak)
        raise SubletError(
            f"{names}: the budget is {budget:,} bytes. The smallest peak found of Inductor's kernels is {least:,} "
            f"bytes, and {smallest.peak:,} bytes without further recomputation. Raise the budget to {least:,} bytes"
        )

    def _recomputing_divisions(self, budget: int, plain_peak: int) -> Iterator[Division]:
        """Yield divisions with more and more recomputation, as lowered by Inductor.

        The first target is the budget, scaled by the ratio of estimate and peak of the plain graph. Targets are
        multiples of the plain estimate by 1/20.
        """
        search = self._target_search()
        if search is None:
            return
        seen = set[ClonePairs]()
        first = next((i for i in range(1, RUNGS) if (RUNGS - i) * plain_peak <= RUNGS * budget), RUNGS)
        for i in range(first, RUNGS):
            found = search.solve(search.target(i))
            if found is None:
                return
            _, pairs = found
            if pairs not in seen:
                seen.add(pairs)
                yield self._with_clones(pairs, "budget")

    def _target_search(self) -> TargetSearch | None:
        """Return the search over the joint graph; None if the user has marked what to recompute."""
        if self._search is None:
            problems = []

            def note(
                joint: GraphModule, example: Sequence[object], *, num_fwd_outputs: int, **options: object
            ) -> DividedGraphs:
                if not any(node.meta.get("recompute") for node in joint.graph.nodes):
                    problems.append(stored_tensors(joint, num_fwd_outputs).problem())
                raise _Lowered(None, [])

            with suppress(_Lowered):
                self._compile(note)
            self._search = TargetSearch(problems[0]) if problems else None
        return self._search

    def _lower(self, divide: Divide) -> Lowering:
        """Lower the graph divided by `divide`, and read the allocations; no kernel is compiled."""

        def stop(memory: PassMemory | None, graph: InductorObject) -> None:
            raise _Lowered(memory, _output_strides(graph))

        lowering = Lowering()

        def inner(graph: GraphModule, example: Sequence[object], **options: object) -> object:
            lowering.nodes += count_operators(graph)
            try:
                self._fx.compile_fx_inner(graph, example, **options)
            except _Lowered as end:
                lowering.passes.append(end.memory)
                _report_strides(end.strides)
            return _boxed_stub

        with read_wrappers(stop):
            self._run(divide, inner, lowering, lazy=False, fx_graph_cache=False)
        return lowering

    def _compile(self, divide: Divide, lazy: bool = False) -> tuple[Callable[..., object], Lowering]:
        """Return the graph divided by `divide` and compiled, with the allocations noted in the generated code.

        With `lazy`, PyTorch compiles the backward pass at its first run, and knows then if the graph is retained. A
        retained graph must not overwrite saved tensors, and needs more bytes.
        """
        lowering = Lowering()

        def inner(graph: GraphModule, example: Sequence[object], **options: object) -> object:
            lowering.nodes += count_operators(graph)
            result = self._fx.compile_fx_inner(graph, example, **options)
            lowering.passes.append(memory_in_code(getattr(result, "source_code", "")))
            return result

        with read_wrappers(lambda memory, graph: None):
            return self._run(divide, inner, lowering, lazy), lowering

    def _run(
        self, divide: Divide, inner: Callable[..., object], lowering: Lowering, lazy: bool, **changes: object
    ) -> Callable[..., object]:
        """Run Inductor on a copy of the graph."""

        def divide_and_note(
            joint: GraphModule, example: Sequence[object], *, num_fwd_outputs: int, **options: object
        ) -> DividedGraphs:
            forward, backward = divide(joint, example, num_fwd_outputs=num_fwd_outputs, **options)
            lowering.results = num_fwd_outputs
            lowering.saved = saved_positions(forward, backward, num_fwd_outputs)
            return forward, backward

        aot = require("torch._functorch.config", extra="torch")
        settings = require("torch._inductor.config", extra="torch")
        with ExitStack() as stack:
            # A hit in AOTAutograd's cache would skip the division, and the record would miss.
            stack.enter_context(aot.patch(force_non_lazy_backward_lowering=not lazy, enable_autograd_cache=False))
            stack.enter_context(settings.patch(custom_partitioner_fn=as_partitioner(divide_and_note), **changes))
            compiled: Callable[..., object] = self._fx.compile_fx(
                self._copied_module(), self._example, inner_compile=inner
            )
            return compiled

    def _copied_module(self) -> GraphModule:
        """Return a copy of the graph module, over the same parameters: Inductor changes the graph."""
        module: GraphModule = torch().fx.GraphModule(self._module, copy.deepcopy(self._module.graph))
        module.meta.update(self._module.meta)
        return module


def compile_with_inductor(module: GraphModule, example: Sequence[object], budget: int | None) -> Callable[..., object]:
    """Return the callable for a graph of Dynamo: Sublet's division, Inductor's kernels.

    A graph without a possible division by Sublet is left to Inductor alone, with one warning.

    Args:
        module: the FX graph module captured by Dynamo.
        example: example arguments.
        budget: the largest peak of live bytes, or None.

    Raises:
        SubletError: without a division within the budget.
    """
    compilation = InductorCompilation(module, example)
    try:
        with silence_tracing():
            compiled = compilation.compile(budget)
    except SubletError:
        raise
    except Exception as error:  # an error in Sublet must not stop the program
        reason = error_summary(error)
        warnings.warn(f"sublet leaves a graph to Inductor: {reason}", stacklevel=2)
        compiled = compilation.compile_plainly()
        add_record(CompiledByInductor("forward and backward", count_operators(module), reason=reason))
    for words in dict.fromkeys(compilation.messages):
        warnings.warn(words, stacklevel=2)
    return compiled


def count_operators(graph: GraphModule) -> int:
    """Return the number of operators of a graph module."""
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def _are_known(divisions: Sequence[Division]) -> bool:
    """True if the memory of all divisions is known."""
    return all(each.lowering.memory is not None for each in divisions)


def as_partitioner(divide: Divide) -> object:
    """Return a partitioner in the form of Inductor's setting `custom_partitioner_fn`."""

    class SubletPartitioner(require("torch._inductor.custom_graph_pass", extra="torch").CustomPartitionerFn):  # type: ignore[misc]
        """A partitioner with the same key in PyTorch's cache for every division: the key has the divided graph too."""

        def __call__(self, joint: GraphModule, example: Sequence[object], **options: object) -> DividedGraphs:
            return divide(joint, example, **options)

        def uuid(self) -> str:
            return "sublet"

        def __reduce__(self) -> tuple[type[str], tuple[str]]:
            return str, (self.uuid(),)  # PyTorch pickles all settings for the key

    return SubletPartitioner()


def saved_positions(forward: GraphModule, backward: GraphModule, results: int) -> dict[str, int]:
    """Return the position of each saved result of a forward graph, by name of the argument of the backward graph."""
    arguments = {node.name for node in backward.graph.nodes if node.op == "placeholder"}
    outputs = next(node for node in forward.graph.nodes if node.op == "output").args[0]
    named = ((i, getattr(node, "name", "")) for i, node in enumerate(outputs) if i >= results)
    return {name: i for i, name in named if name in arguments}


def stored_tensors(joint: GraphModule, outputs: int) -> StoredTensors:
    """Rematerialize cheap tensors of a joint graph, and return the stored tensors; `joint` is changed."""
    changed = changed_arguments(joint.graph, outputs)
    joint.graph = require("torch._functorch.compile_utils", extra="torch").fx_graph_cse(joint.graph)
    rematerialize_cheap(joint, outputs)
    return StoredTensors(joint.graph, outputs, changed)


def divide_with_clones(
    pairs: ClonePairs, joint: GraphModule, example: Sequence[object], *, num_fwd_outputs: int, **options: object
) -> DividedGraphs:
    """Return the forward and the backward graph of a joint graph, with the nodes in `pairs` computed again."""
    stored_tensors(joint, num_fwd_outputs).write_clones(pairs)
    mark_saved(joint.graph, num_fwd_outputs)
    joint.graph.lint()
    joint.recompile()
    partitioners = require("torch._functorch.partitioners", extra="torch")
    with require("torch._functorch.config", extra="torch").patch(cse=False):  # CSE would merge clones and originals
        graphs: DividedGraphs = partitioners.min_cut_rematerialization_partition(
            joint, example, num_fwd_outputs=num_fwd_outputs, **options
        )
    return graphs


def _output_strides(graph: InductorObject) -> Strides:
    """Return the strides of the results of Inductor's graph, None for numbers and for open strides."""
    found: Strides = []
    for each in graph.graph_outputs or ():
        is_tensor = hasattr(each, "has_tensor_output") and each.has_tensor_output()
        strides = each.get_layout().stride if is_tensor else ()
        is_fixed = is_tensor and all(isinstance(s, int) or getattr(s, "is_number", False) for s in strides)
        found.append(tuple(map(int, strides)) if is_fixed else None)
    return found


def _report_strides(strides: Strides) -> None:
    """Pass the strides of the forward pass on to AOTAutograd, which lowers the backward pass for these strides."""
    context = torch()._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.extend(strides)


def _boxed_stub(args: list[object]) -> NoReturn:
    """Refuse a call: the graph was lowered only, without kernels."""
    raise SubletError("this graph was lowered to read its allocations, and has no kernels")


_boxed_stub._boxed_call = True  # type: ignore[attr-defined]

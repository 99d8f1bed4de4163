"""`options={"kernels": "inductor"}`: Sublet divides a joint graph, Inductor generates the kernels.

Without a budget, Sublet compares the bytes saved by two divisions into forward and backward, by Sublet and by Inductor,
and compiles Sublet's if it saves clearly less. Otherwise Sublet lowers the graph by each division without compiling
kernels, reads the peak of live bytes from the allocations of the wrapper, and compiles the division with the smaller
peak. With a budget, Sublet lowers divisions with more and more recomputation until a peak is within the budget.

Settings of PyTorch change for the calls of this module alone, and in the current thread alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from sublet.base.errors import SubletError
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.compile_report import CompiledByInductor, Lowering, add_record
from sublet.integrations.torch.compile.fx_queries import MIN_RECOMPUTED_BYTES, fix_extents
from sublet.integrations.torch.compile.inductor_memory import (
    InductorObject,
    PassMemory,
    forward_peak,
    is_fixed,
    memory_in_code,
    read_wrappers,
)
from sublet.integrations.torch.compile.joint_budget import (
    RUNGS,
    ClonePairs,
    StoredTensors,
    TargetSearch,
    mark_saved,
    saved_bytes,
)
from sublet.integrations.torch.compile.joint_partition import (
    DividedGraphs,
    changed_arguments,
    partition_joint,
    rematerialize_cheap,
    save_weights_as_given,
)
from sublet.integrations.torch.compile.loss_rows import merge_losses, write_rows
from sublet.integrations.torch.reader.exported_program import error_summary, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule

SURE_SHARE = 0.95
"""Sublet's division is taken without a look at the peaks if it saves at most this share of Inductor's saved bytes."""

KEY = "sublet 2"
"""Key of generated code in PyTorch's cache. The number grows with each change of the code, or of the noted memory."""

Divide = Callable[..., DividedGraphs]
"""A partitioner: (joint graph module, example arguments, num_fwd_outputs=..., ...) -> (forward, backward)."""

Strides = list[tuple[int, ...] | None]
"""The strides of the results of a graph, None for numbers and for open strides."""


class _Lowered(BaseException):
    """Ends Inductor's work on a graph. No `Exception`: Inductor would wrap the class.

    memory   the allocations, None for unknown allocations
    strides  the strides of the results
    """

    def __init__(self, memory: PassMemory | None = None, strides: Strides | None = None) -> None:
        super().__init__()
        self.memory, self.strides = memory, strides or []


@dataclass(frozen=True)
class Division:
    """A way to divide the joint graph, with the lowering of the graph.

    origin  "sublet": cheap tensors are computed again; "inductor": the minimum cut of PyTorch; "budget": stored
            tensors are computed again too, as many as the budget asks for
    again   stored tensors computed again by the search
    merges  True if large losses are computed in groups of rows, see `loss_rows.py`
    """

    origin: str
    divide: Divide
    lowering: Lowering
    again: int = 0
    merges: bool = True

    @property
    def peak(self) -> int:
        """The peak of live bytes. Only for a lowering with known memory."""
        memory = self.lowering.memory
        assert memory is not None, self.lowering.why_unknown
        return memory.peak


class InductorCompilation:
    """The compilation of one graph of Dynamo by Inductor, with Sublet's division."""

    def __init__(
        self, module: GraphModule, example: Sequence[object], budget: int | None = None, losses: str = "auto"
    ) -> None:
        self._module, self._example, self._budget, self._losses = module, example, budget, losses
        self._fx = require("torch._inductor.compile_fx", extra="torch")
        self._settings = require("torch._inductor.config", extra="torch")
        partitioners = require("torch._functorch.partitioners", extra="torch")
        self._theirs: Divide = partitioners.min_cut_rematerialization_partition
        self._search: TargetSearch | None = None
        self._saved: int | None = None
        self._inductor_saved: int | None = None
        self._merged_losses = 0
        self.messages: list[str] = []

    def compile(self) -> Callable[..., object]:
        """Compile the graph, and add a record to `report`. Raises SubletError without a division within the budget."""
        budget, compiled, origin, again = self._budget, None, "sublet", 0
        if budget is None:
            with suppress(_Lowered):
                compiled, final = self._compile(self._divide_surely, lazy=True, surely=True)
        if compiled is None:
            chosen = self.choose_division()
            origin, again = chosen.origin, chosen.again
            compiled, final = self._compile(chosen.divide, lazy=budget is None, merges=chosen.merges)
        if budget is not None and (final.memory is None or final.memory.peak > budget):
            found = f"{final.memory.peak:,} bytes after compilation" if final.memory else final.why_unknown
            raise SubletError(f"{final.pass_names}: the budget is {budget:,} bytes. Inductor needs {found}")
        add_record(
            CompiledByInductor(
                final.pass_names,
                final.nodes,
                lowering=final,
                inductor_saved=self._inductor_saved,
                division=origin,
                again=again,
                losses=self._merged_losses,
            )
        )
        return compiled

    def choose_division(self) -> Division:
        """Lower the graph without kernels, and return the division to compile.

        The memory of the division may be unknown. Raises SubletError without a division within the budget.
        """
        return self._smallest_division() if self._budget is None else self._division_within(self._budget)

    def compile_plainly(self) -> Callable[..., object]:
        """Return the graph compiled as by `torch.compile(backend="inductor")`."""
        return self._fx.compile_fx(self._copied_module(), self._example)  # type: ignore[no-any-return]

    def drop_example(self) -> None:
        """Drop the example arguments: PyTorch keeps the compilation for the backward pass."""
        self._example = ()

    def _divide(
        self, joint: GraphModule, example: Sequence[object], *, num_fwd_outputs: int, **options: object
    ) -> DividedGraphs:
        """Return Sublet's division, and note the saved bytes of both divisions and the search for further divisions."""
        # The user's marks leave no choice, and a comparison of bytes would fix extents that change.
        has_choice = not any(
            node.meta.get("recompute") or isinstance(node.meta.get("val"), torch().SymInt) for node in joint.graph.nodes
        )
        wanted = 0 if not has_choice else 1 if self._budget is None else 2
        copies = [torch().fx.GraphModule(joint, copy.deepcopy(joint.graph)) for _ in range(wanted)]
        ours = partition_joint(joint, example, num_fwd_outputs=num_fwd_outputs, warn=self.messages.append, **options)
        if copies:
            theirs = self._theirs(copies[0], example, num_fwd_outputs=num_fwd_outputs, **options)
            self._saved, self._inductor_saved = (saved_bytes(each, num_fwd_outputs) for each, _ in (ours, theirs))
        if wanted == 2:
            self._search = TargetSearch(stored_tensors(copies[1], num_fwd_outputs).problem())
        return ours

    def _divide_surely(self, joint: GraphModule, example: Sequence[object], **options: Any) -> DividedGraphs:
        """Return Sublet's division. Ends Inductor's work if the peak of Inductor's own division may be smaller."""
        graphs = self._divide(joint, example, **options)
        if not self._is_sure:
            raise _Lowered
        return graphs

    @property
    def _is_sure(self) -> bool:
        """True if Sublet's division saves clearly less than Inductor's, or next to nothing."""
        if self._saved is None or self._inductor_saved is None:
            return True
        return self._saved <= max(SURE_SHARE * self._inductor_saved, MIN_RECOMPUTED_BYTES)

    def _may_be_larger(self, forward: PassMemory | None, results: int | None) -> bool:
        """True if the peak of a forward pass is above the bytes that Inductor's own division saves.

        Otherwise the peak of Inductor's own division of the same graph is at least as large.
        """
        if forward is None or self._inductor_saved is None:
            return False
        return forward_peak(forward, results or 0)[0] > max(self._inductor_saved, MIN_RECOMPUTED_BYTES)

    def _own_divisions(self) -> list[Division]:
        """Return the divisions without further recomputation: Sublet's, and Inductor's if its peak may be smaller."""
        first = Division("sublet", self._divide, self._lower(self._divide))
        lowering = first.lowering
        is_sure = self._is_sure and not self._may_be_larger(next(iter(lowering.passes), None), lowering.results)
        if is_sure or lowering.memory is None:
            return [first]
        ways = (True, False) if self._merged_losses else (True,)
        others = [
            Division("inductor", self._theirs, self._lower(self._theirs, merges), merges=merges) for merges in ways
        ]
        return [first, *(each for each in others if each.lowering.memory is not None)]

    def _smallest_division(self) -> Division:
        """Return the division with the smallest peak, without further recomputation."""
        divisions = self._own_divisions()
        return divisions[0] if len(divisions) == 1 else min(divisions, key=lambda each: each.peak)

    def _division_within(self, budget: int) -> Division:
        """Return the first division within the budget. Raises SubletError if none is found."""
        divisions = self._own_divisions()
        lowering = divisions[0].lowering
        if lowering.memory is None:
            raise SubletError(
                f"{lowering.pass_names}: the budget is {budget:,} bytes, and the peak of Inductor's kernels is "
                f"unknown: {lowering.why_unknown}. Drop the budget, or drop options={{'kernels': 'inductor'}}"
            )
        smallest = min(divisions, key=lambda each: each.peak)
        if smallest.peak <= budget:
            return smallest
        least = smallest.peak
        for each in self._recomputing_divisions(budget, divisions[0].peak):
            if each.peak <= budget:
                return each
            least = min(least, each.peak)
        raise SubletError(
            f"{lowering.pass_names}: the budget is {budget:,} bytes. The smallest peak found of Inductor's kernels is "
            f"{least:,} bytes, and {smallest.peak:,} bytes without further recomputation. "
            f"Raise the budget to {least:,} bytes"
        )

    def _recomputing_divisions(self, budget: int, plain_peak: int) -> Iterator[Division]:
        """Yield divisions with recomputation, as lowered by Inductor, those predicted to fit first.

        Targets are multiples of the plain estimate by 1/20. The prediction of a peak is the target, scaled by the
        largest ratio of peak and target so far. All targets from the first prediction on are tried in the end, so a
        budget above a budget that fits fits too.
        """
        search = self._search
        if search is None:  # an inference, or the user has marked what to recompute
            return
        ratio = plain_peak / search.plain.peak
        seen = set[ClonePairs]()
        rungs = [i for i in range(1, RUNGS) if ratio * search.target(i) <= budget] or [RUNGS - 1]
        while rungs:
            rung = next((i for i in rungs if ratio * search.target(i) <= budget), rungs[-1])
            found = search.solve(search.target(rung))
            if found is None:
                rungs = [i for i in rungs if i < rung]
                continue
            rungs.remove(rung)
            pairs = found[1]
            if pairs in seen:
                continue
            seen.add(pairs)
            divide = partial(divide_with_clones, pairs)
            division = Division("budget", divide, self._lower(divide), len(pairs))
            if division.lowering.memory is not None:
                yield division
                ratio = max(ratio, division.peak / search.target(rung))

    def _lower(self, divide: Divide, merges: bool = True) -> Lowering:
        """Lower the graph divided by `divide`, and read the allocations; no kernel is compiled."""

        def stop(memory: PassMemory | None, graph: InductorObject) -> None:
            raise _Lowered(memory, _output_strides(graph))

        lowering = Lowering()

        def inner(graph: GraphModule, example: Sequence[object], **options: object) -> object:
            try:
                self._fx.compile_fx_inner(graph, example, **options)
            except _Lowered as end:
                lowering.passes.append(end.memory)
                _report_strides(end.strides)
            return _boxed_stub

        with read_wrappers(stop):
            self._run(divide, inner, lowering, lazy=False, merges=merges, fx_graph_cache=False)
        return lowering

    def _compile(
        self, divide: Divide, lazy: bool = False, merges: bool = True, surely: bool = False
    ) -> tuple[Callable[..., object], Lowering]:
        """Return the graph divided by `divide` and compiled, with the allocations noted in the generated code.

        With `lazy`, PyTorch compiles the backward pass at its first run, and knows then if the graph is retained. A
        retained graph must not overwrite saved tensors, and needs more bytes.

        With `surely`, raises _Lowered for a forward pass that may need more bytes than Inductor's own division.
        """
        lowering, partitioner = Lowering(), as_partitioner(divide)

        def end_if_larger(memory: PassMemory | None, graph: InductorObject = None) -> None:
            if surely and not lowering.passes and self._may_be_larger(memory, lowering.results):
                raise _Lowered

        def inner(graph: GraphModule, example: Sequence[object], **options: object) -> object:
            # PyTorch may run this function later, and outside of `_run`
            with read_wrappers(end_if_larger), self._settings.patch(custom_partitioner_fn=partitioner):
                result = self._fx.compile_fx_inner(graph, example, **options)
            memory = memory_in_code(getattr(result, "source_code", ""))
            end_if_larger(memory)
            lowering.passes.append(memory)
            return result

        return self._run(divide, inner, lowering, lazy, merges), lowering

    def _run(
        self,
        divide: Divide,
        inner: Callable[..., object],
        lowering: Lowering,
        lazy: bool,
        merges: bool,
        **changes: object,
    ) -> Callable[..., object]:
        """Run Inductor on a copy of the graph."""

        def divide_and_note(
            joint: GraphModule, example: Sequence[object], *, num_fwd_outputs: int, **options: object
        ) -> DividedGraphs:
            forward, backward = divide(joint, example, num_fwd_outputs=num_fwd_outputs, **options)
            lowering.results, lowering.nodes = num_fwd_outputs, count_operators(forward) + count_operators(backward)
            lowering.saved = saved_positions(forward, backward, num_fwd_outputs)
            for graph in (forward, backward) if self._merged_losses else ():
                write_rows(graph)
            return forward, backward

        def note_and_compile(graph: GraphModule, example: Sequence[object], **options: object) -> object:
            lowering.nodes = lowering.nodes or count_operators(graph)
            save_weights_as_given(graph)
            return inner(graph, example, **options)

        aot = require("torch._functorch.config", extra="torch")
        with ExitStack() as stack:
            # A hit in AOTAutograd's cache would skip the division, and the record would miss.
            stack.enter_context(aot.patch(force_non_lazy_backward_lowering=not lazy, enable_autograd_cache=False))
            stack.enter_context(self._settings.patch(custom_partitioner_fn=as_partitioner(divide_and_note), **changes))
            compiled: Callable[..., object] = self._fx.compile_fx(
                self._copied_module(merges), self._example, inner_compile=note_and_compile
            )
            return compiled

    def _copied_module(self, merges: bool = False) -> GraphModule:
        """Return a copy of the graph module, over the same parameters: Inductor changes the graph."""
        module: GraphModule = torch().fx.GraphModule(self._module, copy.deepcopy(self._module.graph))
        module.meta.update(self._module.meta)
        _copy_sources(self._module, module)
        self._merged_losses = merge_losses(module, self._losses) if merges else 0
        return module


def compile_with_inductor(
    module: GraphModule, example: Sequence[object], budget: int | None, losses: str
) -> Callable[..., object]:
    """Return the callable for a graph of Dynamo: Sublet's division, Inductor's kernels.

    A graph without a possible division by Sublet is left to Inductor alone, with one warning.

    Args:
        module: the FX graph module captured by Dynamo.
        example: example arguments.
        budget: the largest peak of live bytes, or None.
        losses: one of `loss_rows.LOSSES`.

    Raises:
        SubletError: without a division within the budget.
    """
    if budget is not None:
        fix_extents(example)
    compilation = InductorCompilation(module, example, budget, losses)
    try:
        with silence_tracing():
            compiled = compilation.compile()
    except SubletError:
        raise
    except Exception as error:  # an error in Sublet must not stop the program
        reason = error_summary(error)
        warnings.warn(f"sublet leaves a graph to Inductor: {reason}", stacklevel=2)
        compiled = compilation.compile_plainly()
        add_record(CompiledByInductor("forward and backward", count_operators(module), reason=reason))
    finally:
        compilation.drop_example()
    for words in dict.fromkeys(compilation.messages):
        warnings.warn(words, stacklevel=2)
    return compiled


def _copy_sources(module: GraphModule, copied: GraphModule) -> None:
    """Copy the sources of arguments and parameters, noted by Dynamo outside of `meta`.

    Without sources, Inductor counts parameters as freed during a call, and orders the backward pass for this.
    """
    for name in ("_param_name_to_source", "_source_to_user_stacks"):
        if hasattr(module, name):
            setattr(copied, name, getattr(module, name))
    arguments = (each.graph.find_nodes(op="placeholder") for each in (module, copied))
    for argument, same in zip(*arguments, strict=True):
        if hasattr(argument, "_dynamo_source"):
            same._dynamo_source = argument._dynamo_source


def count_operators(graph: GraphModule) -> int:
    """Return the number of operators of a graph module."""
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def as_partitioner(divide: Divide) -> object:
    """Return a partitioner in the form of Inductor's setting `custom_partitioner_fn`."""

    class SubletPartitioner(require("torch._inductor.custom_graph_pass", extra="torch").CustomPartitionerFn):  # type: ignore[misc]
        """A partitioner with the same key in PyTorch's cache for every division: the key has the divided graph too."""

        def __call__(self, joint: GraphModule, example: Sequence[object], **options: object) -> DividedGraphs:
            return divide(joint, example, **options)

        def uuid(self) -> str:
            return KEY

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
        found.append(tuple(map(int, strides)) if is_tensor and all(map(is_fixed, strides)) else None)
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

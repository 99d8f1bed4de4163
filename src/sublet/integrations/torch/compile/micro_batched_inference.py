"""Inference in micro-batches: a few samples at a time, all in the same arena.

    args (8 samples) -> [part of 1] -> arena for one sample -> rows of the results
                        [part of 1] -> the same arena       -> the next rows

Only graphs with large tensors and sample-wise operators run in micro-batches. The samples lie on one axis of each
batched tensor. The rewriter follows the batch axis from the arguments to the results, with the rules of
`batch_axis_rules.py`. A tensor independent of the samples is equal for all samples.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.fx_queries import tensor_bytes
from sublet.integrations.torch.compile.joint_graph import PassValue
from sublet.integrations.torch.reader.batch_axis import BatchAxis, BatchedCall, BatchSizes, OptionalBatchAxis
from sublet.integrations.torch.reader.batch_axis_rules import batch_axis_of_results
from sublet.integrations.torch.reader.fx_conversion import graph_results, placeholders, source_line
from sublet.integrations.torch.reader.traced_tensor import Extents, fixed_number, is_dense, layout_of, torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node

LARGE_TENSOR_BYTES = 1 << 21
"""Bytes of a tensor. Inferences with larger tensors run in micro-batches."""


@dataclass(frozen=True)
class SmallerBatch:
    """A graph for fewer samples.

    module         the FX graph module
    argument_axes  the batch axis of each argument, None for an argument without samples
    result_axes    the batch axis of each result
    """

    module: Any
    argument_axes: tuple[OptionalBatchAxis, ...]
    result_axes: tuple[OptionalBatchAxis, ...]


@dataclass(frozen=True)
class MicroBatches:
    """The split of an inference into micro-batches.

    count             number of micro-batches
    smaller           the graph of a single micro-batch
    like_results      tensors without bytes, with the layouts of the results for all samples; None for other results
    argument_results  argument positions by result position, for results equal to arguments
    """

    count: int
    smaller: SmallerBatch
    like_results: tuple[Tensor | None, ...]
    argument_results: Mapping[int, int]

    def run_all(
        self, run: Callable[[Sequence[PassValue], Mapping[int, Tensor]], Sequence[PassValue]], args: Sequence[PassValue]
    ) -> list[PassValue]:
        """Return the results for all samples, computed by one call of `run` for each micro-batch.

        `run` receives the arguments of a micro-batch, and places for results by position.
        """
        given, rows_of = self.smaller.argument_axes, self.smaller.result_axes
        places = {
            i: self._new_result(i)
            for i, rows in enumerate(rows_of)
            if rows is not None and i not in self.argument_results
        }
        results: Sequence[PassValue] = ()
        for number in range(self.count):
            part = [self._slice_of_part(each, rows, number) for each, rows in zip(args, given, strict=True)]
            results = run(part, {i: self._slice_of_part(place, rows_of[i], number) for i, place in places.items()})
        wholes = {**places, **{i: args[position] for i, position in self.argument_results.items()}}
        return [wholes.get(i, each) for i, each in enumerate(results)]

    def _new_result(self, position: int) -> Tensor:
        """Return a new tensor for a result of all samples."""
        fake = self.like_results[position]
        assert fake is not None
        whole: Tensor = torch().empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
        return whole

    def _slice_of_part(self, tensor: Tensor, rows: OptionalBatchAxis, number: int) -> Tensor:
        """Return the rows of micro-batch `number`; the whole tensor if equal for all samples (`rows` is None)."""
        if rows is None:
            return tensor
        extent = tensor.shape[rows.axis] // self.count
        return tensor.narrow(rows.axis, number * extent, extent)


def split_in_micro_batches(
    module: GraphModule, static: Collection[int], at_once: int | None, extents: Extents
) -> MicroBatches | None:
    """Return the split of an inference graph into micro-batches; None to compute all samples at once.

    The samples lie on the first axis of the arguments not in `static`.

    Args:
        module: FX graph module of the inference.
        static: positions of parameters and buffers.
        at_once: samples of a micro-batch, a divisor of all samples; None to choose the most samples with small tensors.
        extents: extents of the graph's symbols.

    Raises:
        ModelError: if the graph does not compute sample by sample.
    """
    module = with_extents(module, extents) if extents else module
    nodes = placeholders(module)
    fakes = [node.meta["val"] for node in nodes]
    given = [i for i, fake in enumerate(fakes) if i not in static and hasattr(fake, "stride") and fake.dim()]
    leading = Counter(fakes[i].shape[0] for i in given if isinstance(fakes[i].shape[0], int))
    error: ModelError | None = None
    for samples, _ in leading.most_common():
        part = _part_samples(module, nodes, samples) if at_once is None else at_once
        if samples < 2 or part >= samples or samples % part:
            continue
        states = [BatchAxis(0) if i in given and fakes[i].shape[0] == samples else None for i in range(len(fakes))]
        try:
            fewer = with_smaller_batch(module, states, samples, part)
            return MicroBatches(
                samples // part, fewer, _traced_results(module, fewer), _argument_results(module, nodes)
            )
        except ModelError as refused:
            error = error or refused
    if error is not None:
        raise error
    return None


def _part_samples(module: GraphModule, given: Collection[Node], samples: int) -> int:
    """Return the largest divisor of `samples` with all inner tensors small enough; 1 if no divisor fits.

    A tensor is small with at most `LARGE_TENSOR_BYTES` bytes.
    """
    outside = {*given, *(node for node in graph_results(module) if isinstance(node, torch().fx.Node))}
    largest = max((tensor_bytes(node) for node in module.graph.nodes if node not in outside), default=0)
    fitting = (
        part for part in range(samples, 0, -1) if samples % part == 0 and largest * part <= LARGE_TENSOR_BYTES * samples
    )
    return next(fitting, 1)


def _traced_results(module: GraphModule, fewer: SmallerBatch) -> tuple[Tensor | None, ...]:
    """Return the traced results. Raises ModelError for a batched result with gaps between elements."""
    fakes = []
    for node, rows in zip(graph_results(module), fewer.result_axes, strict=True):
        fake: Tensor | None = node.meta["val"] if isinstance(node, torch().fx.Node) else None
        if rows is not None and not is_dense(fake):
            raise ModelError(f"{node.name}: a result with gaps")
        fakes.append(fake)
    return tuple(fakes)


def _argument_results(module: GraphModule, given: Sequence[Node]) -> dict[int, int]:
    """Return the argument position of each result equal to an argument, by result position."""
    return {i: given.index(node) for i, node in enumerate(graph_results(module)) if node in given}


# Rewriting of a graph for fewer samples.


def with_extents(module: Any, extents: Extents) -> Any:
    """Return the graph of a module with symbols replaced by the given extents.

    Raises ModelError if the extents do not determine all symbolic numbers.
    """
    return _BatchRewriter(module, None, extents).rewrite([None] * len(placeholders(module))).module


def with_smaller_batch(module: Any, given: Sequence[OptionalBatchAxis], samples: int, fewer: int) -> SmallerBatch:
    """Return the graph for `fewer` instead of `samples` samples; `given` are the batch axes of the arguments.

    A first attempt takes constants of `samples` rows for batched tensors; if the attempt fails, the second does not.

    Raises ModelError if an operator computes across samples, or has no rule.
    """
    try:
        return _BatchRewriter(module, BatchSizes(samples, fewer, guess_constants=True)).rewrite(given)
    except ModelError:  # the guess was wrong: an extent equals the batch by chance
        return _BatchRewriter(module, BatchSizes(samples, fewer, guess_constants=False)).rewrite(given)


class _BatchRewriter:
    """Rewriter of a graph for fewer samples; with `counts` None for the same samples with symbols replaced.

    _new_nodes  the new node of each old node, or the number replacing the old node
    _axes       the batch axis of each old node
    """

    def __init__(self, module: Any, counts: BatchSizes | None, extents: Extents | None = None) -> None:
        self._module, self._sizes, self._extents = module, counts, extents or {}
        self._axes: dict[Any, Any] = {}
        self._new_nodes: dict[Any, Any] = {}
        self._graph = torch().fx.Graph()
        self._fake_mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()

    def rewrite(self, given: Sequence[OptionalBatchAxis]) -> SmallerBatch:
        """Return the rewritten graph. Raises ModelError if the samples of a result are not slices of the result."""
        arguments = iter(given)
        results: Sequence[Any] = ()
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._add_argument(node, next(arguments))
            elif node.op == "get_attr":
                self._add_constant(node)
            elif node.op == "output":
                results = node.args[0]
                self._graph.node_copy(node, self._new_nodes.__getitem__)
            else:
                self._add_call(node)
        states: tuple[OptionalBatchAxis, ...] = tuple(
            self._axes.get(each) if hasattr(each, "meta") else None for each in results
        )
        if any(state is not None and (state.holds_indices or state.outer > 1) for state in states):
            raise ModelError("a result of which the samples are no slices")
        return SmallerBatch(torch().fx.GraphModule(self._module, self._graph), tuple(given), states)

    def _add_argument(self, node: Any, state: OptionalBatchAxis) -> None:
        """Add a placeholder with the extents of fewer samples, or the number of a symbolic argument."""
        new = self._graph.node_copy(node, self._new_nodes.__getitem__)
        fake = node.meta["val"]
        if hasattr(fake, "stride"):
            layout = layout_of(fake, self._extents, node.name)
            order = sorted(range(fake.dim()), key=lambda axis: -layout.stride[axis])
            shape = self._smaller_shape(fake, state)
            with self._fake_mode:
                dense = torch().empty([shape[axis] for axis in order], dtype=fake.dtype, device=fake.device)
                fake = dense.permute([order.index(axis) for axis in range(len(order))])
        elif isinstance(fake, (int, torch().SymInt)):
            new.meta["val"] = self._new_nodes[node] = fixed_number(fake, self._extents, node.name)
            return
        self._record_node(node, new, state, fake)

    def _add_constant(self, node: Any) -> None:
        """Add a constant tensor, equal for all samples."""
        tensor = self._module
        for part in node.target.split("."):
            tensor = getattr(tensor, part)
        if not hasattr(tensor, "stride"):
            raise ModelError(f"{source_line(node)}: a graph within a graph")
        self._record_node(node, self._graph.node_copy(node), None, self._fake_mode.from_tensor(tensor))

    def _add_call(self, node: Any) -> None:
        """Add an operator call with changed arguments, and the results as traced for fewer samples."""
        if node.target is operator.getitem:
            of, position = node.args
            states = self._axes[of]
            state = states[position] if isinstance(states, list) else states
            new = self._graph.node_copy(node, self._new_nodes.__getitem__)
            self._record_node(node, new, state, self._new_nodes[of].meta["val"][position])
            return
        if isinstance(node.meta["val"], (int, torch().SymInt)):
            self._new_nodes[node] = fixed_number(node.meta["val"], self._extents, source_line(node))
            return
        state, changed = None, {}
        if self._sizes is not None:
            call = BatchedCall(node, self._axes, self._new_nodes, self._sizes)
            state, changed = batch_axis_of_results(call), call.changed_arguments
        new = self._graph.node_copy(node, self._new_nodes.__getitem__)
        for name, (position, to) in changed.items():
            if position < len(new.args):
                new.update_arg(position, to)
            else:
                new.update_kwarg(name, to)
        args, kwargs = torch().fx.node.map_arg((new.args, new.kwargs), lambda each: each.meta["val"])
        try:
            with self._fake_mode:
                fake = new.target(*args, **kwargs)
        except Exception as error:  # valid for all samples, but not for fewer
            raise ModelError(
                f"{source_line(node)}: {node.target}: PyTorch does not take it for fewer samples"
            ) from error
        self._record_node(node, new, state, fake)

    def _record_node(self, node: Any, made: Any, state: Any, fake: Any) -> None:
        """Record the new node of an old node. Raises ModelError for results of unexpected extents."""
        made.meta["val"] = fake
        for old, new, one in zip(_as_list(node.meta["val"]), _as_list(fake), _as_list(state, fake), strict=True):
            if hasattr(old, "stride") and tuple(new.shape) != self._smaller_shape(old, one):
                raise ModelError(f"{source_line(node)}: {node.target}: {tuple(new.shape)} for fewer samples")
        self._axes[node], self._new_nodes[node] = state, made

    def _smaller_shape(self, fake: Any, state: OptionalBatchAxis) -> tuple[int, ...]:
        """Return the extents of a tensor for fewer samples. Raises ModelError for an axis without samples."""
        shape = [fixed_number(extent, self._extents, "a tensor") for extent in fake.shape]
        if state is not None and self._sizes is not None:
            if 0 in shape:
                raise ModelError("samples of no elements")
            others = state.outer * state.inner
            if not 0 <= state.axis < len(shape) or shape[state.axis] != self._sizes.full * others:
                raise ModelError(f"an axis of {shape} that does not hold samples")
            shape[state.axis] = self._sizes.smaller * others
        return tuple(shape)


def _as_list(found: Any, like: Any = None) -> list[Any]:
    """Return a list of the results; a single result is repeated for every element of `like`."""
    if isinstance(found, list | tuple):
        return list(found)
    return [found] * (len(like) if isinstance(like, list | tuple) else 1)

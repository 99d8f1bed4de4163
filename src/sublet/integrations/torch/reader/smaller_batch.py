"""Rewriting of an ATen graph for fewer samples, if the graph computes sample by sample.

The samples lie on one axis of each batched tensor. The rewriter follows the batch axis from the arguments to the
results, with the rules of `batch_axis_rules.py`. A tensor independent of the samples is equal for all samples.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.integrations.torch.reader.batch_axis import BatchedCall, BatchSizes, OptionalBatchAxis
from sublet.integrations.torch.reader.batch_axis_rules import batch_axis_of_results
from sublet.integrations.torch.reader.fx_conversion import placeholders, source_line
from sublet.integrations.torch.reader.traced_tensor import Extents, fixed_number, layout_of, torch


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

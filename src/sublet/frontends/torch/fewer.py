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
from sublet.base.extras import require
from sublet.frontends.torch.row_rules import rows_of
from sublet.frontends.torch.rows import Call, Counts, State
from sublet.frontends.torch.tensors import Extents, fixed, layout_of, torch
from sublet.frontends.torch.traced import placeholders, where


@dataclass(frozen=True)
class Fewer:
    """A graph for fewer samples.

    module         the FX graph module
    argument_axes  the batch axis of each argument, None for an argument without samples
    result_axes    the batch axis of each result
    """

    module: Any
    given: tuple[State, ...]
    results: tuple[State, ...]


def of_these_extents(module: Any, extents: Extents) -> Any:
    """Return the graph of a module with symbols replaced by the given extents.

    Raises ModelError if the extents do not determine all symbolic numbers.
    """
    return _Writer(module, None, extents).written([None] * len(placeholders(module))).module


def with_fewer_samples(module: Any, given: Sequence[State], samples: int, fewer: int) -> Fewer:
    """Return the graph for `fewer` instead of `samples` samples; `given` are the batch axes of the arguments.

    A first attempt takes constants of `samples` rows for batched tensors; if the attempt fails, the second does not.

    Raises ModelError if an operator computes across samples, or has no rule.
    """
    try:
        return _Writer(module, Counts(samples, fewer, guess=True)).written(given)
    except ModelError:  # the guess was wrong: an extent equals the batch by chance
        return _Writer(module, Counts(samples, fewer, guess=False)).written(given)


class _Writer:
    """Rewriter of a graph for fewer samples; with `counts` None for the same samples with symbols replaced.

    _new_nodes  the new node of each old node, or the number replacing the old node
    _axes       the batch axis of each old node
    """

    def __init__(self, module: Any, counts: Counts | None, extents: Extents | None = None) -> None:
        self._module, self._counts, self._extents = module, counts, extents or {}
        self._states: dict[Any, Any] = {}
        self._made: dict[Any, Any] = {}
        self._graph = torch().fx.Graph()
        self._fake = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()

    def written(self, given: Sequence[State]) -> Fewer:
        """Return the rewritten graph. Raises ModelError if the samples of a result are not slices of the result."""
        arguments = iter(given)
        results: Sequence[Any] = ()
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._given(node, next(arguments))
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "output":
                results = node.args[0]
                self._graph.node_copy(node, self._made.__getitem__)
            else:
                self._called(node)
        states: tuple[State, ...] = tuple(self._states.get(each) if hasattr(each, "meta") else None for each in results)
        if any(state is not None and (state.numbers or state.outer > 1) for state in states):
            raise ModelError("a result of which the samples are no slices")
        return Fewer(torch().fx.GraphModule(self._module, self._graph), tuple(given), states)

    def _given(self, node: Any, state: State) -> None:
        """Add a placeholder with the extents of fewer samples, or the number of a symbolic argument."""
        new = self._graph.node_copy(node, self._made.__getitem__)
        fake = node.meta["val"]
        if hasattr(fake, "stride"):
            layout = layout_of(fake, self._extents, node.name)
            order = sorted(range(fake.dim()), key=lambda axis: -layout.stride[axis])
            shape = self._shape(fake, state)
            with self._fake:
                dense = torch().empty([shape[axis] for axis in order], dtype=fake.dtype, device=fake.device)
                fake = dense.permute([order.index(axis) for axis in range(len(order))])
        elif isinstance(fake, (int, torch().SymInt)):
            new.meta["val"] = self._made[node] = fixed(fake, self._extents, node.name)
            return
        self._note(node, new, state, fake)

    def _constant(self, node: Any) -> None:
        """Add a constant tensor, equal for all samples."""
        tensor = self._module
        for part in node.target.split("."):
            tensor = getattr(tensor, part)
        if not hasattr(tensor, "stride"):
            raise ModelError(f"{where(node)}: a graph within a graph")
        self._note(node, self._graph.node_copy(node), None, self._fake.from_tensor(tensor))

    def _called(self, node: Any) -> None:
        """Add an operator call with changed arguments, and the results as traced for fewer samples."""
        if node.target is operator.getitem:
            of, position = node.args
            states = self._states[of]
            state = states[position] if isinstance(states, list) else states
            new = self._graph.node_copy(node, self._made.__getitem__)
            self._note(node, new, state, self._made[of].meta["val"][position])
            return
        if isinstance(node.meta["val"], (int, torch().SymInt)):
            self._made[node] = fixed(node.meta["val"], self._extents, where(node))
            return
        state, changed = None, {}
        if self._counts is not None:
            call = Call(node, self._states, self._made, self._counts)
            state, changed = rows_of(call), call.changed
        new = self._graph.node_copy(node, self._made.__getitem__)
        for name, (position, to) in changed.items():
            if position < len(new.args):
                new.update_arg(position, to)
            else:
                new.update_kwarg(name, to)
        args, kwargs = torch().fx.node.map_arg((new.args, new.kwargs), lambda each: each.meta["val"])
        try:
            with self._fake:
                fake = new.target(*args, **kwargs)
        except Exception as error:  # valid for all samples, but not for fewer
            raise ModelError(f"{where(node)}: {node.target}: PyTorch does not take it for fewer samples") from error
        self._note(node, new, state, fake)

    def _note(self, node: Any, made: Any, state: Any, fake: Any) -> None:
        """Record the new node of an old node. Raises ModelError for results of unexpected extents."""
        made.meta["val"] = fake
        for old, new, one in zip(_several(node.meta["val"]), _several(fake), _several(state, fake), strict=True):
            if hasattr(old, "stride") and tuple(new.shape) != self._shape(old, one):
                raise ModelError(f"{where(node)}: {node.target}: {tuple(new.shape)} for fewer samples")
        self._states[node], self._made[node] = state, made

    def _shape(self, fake: Any, state: State) -> tuple[int, ...]:
        """Return the extents of a tensor for fewer samples. Raises ModelError for an axis without samples."""
        shape = [fixed(extent, self._extents, "a tensor") for extent in fake.shape]
        if state is not None and self._counts is not None:
            if 0 in shape:
                raise ModelError("samples of no elements")
            others = state.outer * state.each
            if not 0 <= state.axis < len(shape) or shape[state.axis] != self._counts.samples * others:
                raise ModelError(f"an axis of {shape} that does not hold samples")
            shape[state.axis] = self._counts.fewer * others
        return tuple(shape)


def _several(found: Any, like: Any = None) -> list[Any]:
    """Return a list of the results; a single result is repeated for every element of `like`."""
    if isinstance(found, list | tuple):
        return list(found)
    return [found] * (len(like) if isinstance(like, list | tuple) else 1)

"""The same graph of ATen operators for fewer samples, if it computes sample by sample.

Samples lie one after another on an axis of each tensor, which is followed from the arguments to the results
(`row_rules.py`). What depends on no sample is the same for all.
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
    """A graph for fewer samples, and where samples lie in its arguments and results, by position."""

    module: Any
    given: tuple[State, ...]
    results: tuple[State, ...]


def of_these_extents(module: Any, extents: Extents) -> Any:
    """The graph of a module for arguments of one shape, where its symbols stand for these extents.

    Raises ModelError where they do not decide the others.
    """
    return _Writer(module, None, extents).written([None] * len(placeholders(module))).module


def with_fewer_samples(module: Any, given: Sequence[State], samples: int, fewer: int) -> Fewer:
    """The graph of a module whose arguments have samples where `given` says, for fewer of them.

    Raises ModelError where an operator computes across samples, or nobody knows that it does not.
    """
    try:
        return _Writer(module, Counts(samples, fewer, guess=True)).written(given)
    except ModelError:  # a number that is that of the samples by chance
        return _Writer(module, Counts(samples, fewer, guess=False)).written(given)


class _Writer:
    """Writes a graph anew: for fewer samples, or with `counts` None for as many.

    made   what each node becomes: a node, or the number that it stands for
    """

    def __init__(self, module: Any, counts: Counts | None, extents: Extents | None = None) -> None:
        self._module, self._counts, self._extents = module, counts, extents or {}
        self._states: dict[Any, Any] = {}
        self._made: dict[Any, Any] = {}
        self._graph = torch().fx.Graph()
        self._fake = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()

    def written(self, given: Sequence[State]) -> Fewer:
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
        states = tuple(self._states.get(each) if hasattr(each, "meta") else None for each in results)
        if any(state is not None and (state.numbers or state.outer > 1) for state in states):
            raise ModelError("a result of which the samples are no slices")
        return Fewer(torch().fx.GraphModule(self._module, self._graph), tuple(given), states)

    def _given(self, node: Any, state: State) -> None:
        made = self._graph.node_copy(node, self._made.__getitem__)
        fake = node.meta["val"]
        if hasattr(fake, "stride"):
            layout = layout_of(fake, self._extents, node.name)
            order = sorted(range(fake.dim()), key=lambda axis: -layout.stride[axis])
            shape = self._shape(fake, state)
            with self._fake:
                dense = torch().empty([shape[axis] for axis in order], dtype=fake.dtype, device=fake.device)
                fake = dense.permute([order.index(axis) for axis in range(len(order))])
        elif isinstance(fake, (int, torch().SymInt)):
            made.meta["val"] = self._made[node] = fixed(fake, self._extents, node.name)
            return
        self._note(node, made, state, fake)

    def _constant(self, node: Any) -> None:
        found = self._module
        for part in node.target.split("."):
            found = getattr(found, part)
        if not hasattr(found, "stride"):
            raise ModelError(f"{where(node)}: a graph within a graph")
        self._note(node, self._graph.node_copy(node), None, self._fake.from_tensor(found))

    def _called(self, node: Any) -> None:
        if node.target is operator.getitem:
            of, position = node.args
            states = self._states[of]
            state = states[position] if isinstance(states, list) else states
            made = self._graph.node_copy(node, self._made.__getitem__)
            self._note(node, made, state, self._made[of].meta["val"][position])
            return
        if isinstance(node.meta["val"], (int, torch().SymInt)):
            self._made[node] = fixed(node.meta["val"], self._extents, where(node))
            return
        state, changed = None, {}
        if self._counts is not None:
            call = Call(node, self._states, self._made, self._counts)
            state, changed = rows_of(call), call.changed
        made = self._graph.node_copy(node, self._made.__getitem__)
        for name, (position, to) in changed.items():
            if position < len(made.args):
                made.update_arg(position, to)
            else:
                made.update_kwarg(name, to)
        args, kwargs = torch().fx.node.map_arg((made.args, made.kwargs), lambda each: each.meta["val"])
        try:
            with self._fake:
                fake = made.target(*args, **kwargs)
        except Exception as error:  # whatever PyTorch makes of it: what it takes for all samples it need not for fewer
            raise ModelError(f"{where(node)}: {node.target}: PyTorch does not take it for fewer samples") from error
        self._note(node, made, state, fake)

    def _note(self, node: Any, made: Any, state: Any, fake: Any) -> None:
        """Remember what a node has become, which must have the extents of fewer samples."""
        made.meta["val"] = fake
        for old, new, one in zip(_several(node.meta["val"]), _several(fake), _several(state, fake), strict=True):
            if hasattr(old, "stride") and tuple(new.shape) != self._shape(old, one):
                raise ModelError(f"{where(node)}: {node.target}: {tuple(new.shape)} for fewer samples")
        self._states[node], self._made[node] = state, made

    def _shape(self, fake: Any, state: State) -> tuple[int, ...]:
        """The extents that a tensor has for fewer samples."""
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
    if isinstance(found, list | tuple):
        return list(found)
    return [found] * (len(like) if isinstance(like, list | tuple) else 1)

"""Where samples lie in what operators of a graph read: the axis that holds them one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.tensors import torch
from sublet.frontends.torch.traced import where


@dataclass(frozen=True)
class Rows:
    """The axis that samples lie on. Of a batch B that is

        (B, heads, n, n)    axis 0
        (B * heads, n, n)   axis 0, each = heads    a sample is so many of its elements, side by side
        (2 * B, n)          axis 0, outer = 2       samples lie in so many groups, each with all of them

    numbers   the elements are the samples' numbers, from 0 on, as those of arange(B)
    """

    axis: int
    each: int = 1
    outer: int = 1
    numbers: bool = False


State = Rows | None
"""None is the same for all samples."""


@dataclass(frozen=True)
class Counts:
    """Samples in the whole and in the part; whether a constant of as many rows is taken to have one for each.

    Whatever the constant is meant for, that computes nothing else: its rows are alike, so that fewer of them are rows
    of the whole; of numbers from 0 on, which are not, only a sample's own may be taken by them (`row_rules._own`).
    """

    samples: int
    fewer: int
    guess: bool


class Call:
    """A call of an operator: its arguments by name, and where samples lie in them."""

    def __init__(self, node: Any, states: Mapping[Any, Any], made: Mapping[Any, Any], counts: Counts) -> None:
        self.node, self._states, self._made, self.counts = node, states, made, counts
        self.changed: dict[str, tuple[int, Any]] = {}
        if not isinstance(node.target, torch()._ops.OpOverload):
            raise self.refused()
        schema = node.target._schema
        self._names = [argument.name for argument in schema.arguments]
        self._given = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        self._given |= dict(zip(self._names, node.args, strict=False)) | dict(node.kwargs)

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def has(self, name: str) -> bool:
        return name in self._given

    def refused(self) -> ModelError:
        return ModelError(f"{where(self.node)}: {self.node.target} may compute across samples")

    def demand(self, holds: bool) -> None:
        """Raise ModelError unless something holds that makes it compute sample by sample."""
        if not holds:
            raise self.refused()

    def change(self, name: str, to: Any) -> None:
        """Give the call for fewer samples another number."""
        self.changed[name] = self._names.index(name), to

    def state(self, node: Any) -> Any:
        """Where samples lie in what a node gives."""
        return self._states.get(node)

    def any_rows(self, name: str) -> State:
        """Where samples lie in an argument, whatever its elements are."""
        argument = self._given[name]
        return self.state(argument) if isinstance(argument, torch().fx.Node) else None

    def rows(self, name: str) -> State:
        """Where samples lie in an argument, whose elements are not their numbers."""
        return self.usable(self._given[name])

    def usable(self, argument: Any) -> State:
        """That of any node."""
        found: State = self.state(argument) if isinstance(argument, torch().fx.Node) else None
        self.demand(found is None or not found.numbers)
        return found

    def common(self, *names: str) -> None:
        """Raise ModelError unless these arguments are the same for all samples."""
        self.demand(all(self.any_rows(name) is None for name in names if self.has(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._given[name])

    def made(self, name: str) -> Any:
        """An argument as it is for fewer samples, without bytes."""
        return self._made[self._given[name]].meta["val"]

    def axis(self, name: str, rank: int) -> int:
        """An argument that is an axis of a tensor of this rank."""
        return int(self._given[name]) % max(rank, 1)

    def require_beside(self, found: State, shape: Sequence[int]) -> None:
        """Raise ModelError where the argument `dim`, an axis of a tensor of this shape, is that of samples."""
        self.demand(found is None or self.axis("dim", len(shape)) != found.axis)

    def aligned(self, operands: Iterable[Any], rank: int) -> State:
        """Where samples lie in what is computed place by place of operands that are broadcast to this rank."""
        nodes = [each for each in operands if isinstance(each, torch().fx.Node)]
        found = set()
        for node in nodes:
            state = self.usable(node)
            if state is not None:
                found.add(replace(state, axis=state.axis + rank - len(shape_of(node))))
        if not found:
            return None
        self.demand(len(found) == 1)
        (state,) = found
        for node in nodes:
            shape, axis = shape_of(node), state.axis - rank + len(shape_of(node))
            self.demand(self.state(node) is not None or axis < 0 or shape[axis] == 1)
        return state

    def fewer_of(self, sizes: Sequence[Any], axis: int) -> list[Any]:
        """Extents with those of fewer samples on an axis."""
        found = list(sizes)
        if found[axis] != -1:
            self.demand(isinstance(found[axis], int) and found[axis] % self.counts.samples == 0)
            found[axis] = found[axis] // self.counts.samples * self.counts.fewer
        return found

    def first(self, sizes: Sequence[Any]) -> int | None:
        """The first axis of more than one element of a constant, if it is taken for that of samples, see `Counts`."""
        axis = next((axis for axis, extent in enumerate(sizes) if extent != 1), None)
        return axis if self.counts.guess and axis is not None and sizes[axis] == self.counts.samples else None


def shape_of(node: Any) -> tuple[int, ...]:
    """The extents of what a node gives in the graph for all samples."""
    return tuple(node.meta["val"].shape)


def axes_of(found: Any, rank: int) -> set[int]:
    """An argument that is an axis, or several, of a tensor of this rank."""
    return {axis % max(rank, 1) for axis in ([found] if isinstance(found, int) else found)}


Rule = Callable[[Call], Any]
"""Where samples lie in what an operator gives: a state, or a list of them for several results."""

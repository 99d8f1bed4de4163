"""The batch axis of tensors in a graph: the axis with the samples; and operator calls with batched operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.tensors import torch
from sublet.frontends.torch.traced import where


@dataclass(frozen=True)
class Rows:
    """The batch axis of a tensor. For a batch of B samples:

        (B, heads, n, n)    axis 0
        (B * heads, n, n)   axis 0, inner = heads    a sample is `inner` adjacent elements of the axis
        (2 * B, n)          axis 0, outer = 2        the axis holds `outer` groups, each with all samples

    holds_indices  True if the elements are the indices of the samples, from 0 on, as arange(B)
    """

    axis: int
    each: int = 1
    outer: int = 1
    numbers: bool = False


State = Rows | None
"""The batch axis; None for a tensor equal for all samples."""


@dataclass(frozen=True)
class Counts:
    """The number of samples in the full and in the smaller batch.

    `guess_constants` True takes a constant of `full` rows for a batched tensor. The guess cannot change a result: the
    rows of the constant are equal, so fewer rows are rows of the whole. For the indices from 0 on, with different rows,
    only an index of a sample's own elements may use the guess (`batch_axis_rules._index_own_sample`).
    """

    samples: int
    fewer: int
    guess: bool


class Call:
    """A call of an operator: arguments by name, and the batch axis of each argument."""

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
        """Return an argument by name."""
        return self._given[name]

    def has(self, name: str) -> bool:
        """True if the operator has an argument of this name."""
        return name in self._given

    def refused(self) -> ModelError:
        """Return the error for an operator without proof of sample-wise computation."""
        return ModelError(f"{where(self.node)}: {self.node.target} may compute across samples")

    def demand(self, holds: bool) -> None:
        """Raise ModelError unless `holds`, a condition of sample-wise computation."""
        if not holds:
            raise self.refused()

    def change(self, name: str, to: Any) -> None:
        """Replace an argument in the call for fewer samples."""
        self.changed[name] = self._names.index(name), to

    def state(self, node: Any) -> Any:
        """Return the batch axis of a node's result."""
        return self._states.get(node)

    def any_rows(self, name: str) -> State:
        """Return the batch axis of an argument, also of sample indices."""
        argument = self._given[name]
        return self.state(argument) if isinstance(argument, torch().fx.Node) else None

    def rows(self, name: str) -> State:
        """Return the batch axis of an argument. Raises ModelError for sample indices."""
        return self.usable(self._given[name])

    def usable(self, argument: Any) -> State:
        """Return the batch axis of a node. Raises ModelError for sample indices."""
        axis: State = self.state(argument) if isinstance(argument, torch().fx.Node) else None
        self.demand(axis is None or not axis.numbers)
        return axis

    def common(self, *names: str) -> None:
        """Raise ModelError unless the arguments are equal for all samples."""
        self.demand(all(self.any_rows(name) is None for name in names if self.has(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the extents of an argument for all samples."""
        return shape_of(self._given[name])

    def made(self, name: str) -> Any:
        """Return an argument for fewer samples, a tensor without bytes."""
        return self._made[self._given[name]].meta["val"]

    def axis(self, name: str, rank: int) -> int:
        """Return an argument naming an axis of a tensor of this rank, as a number from 0 on."""
        return int(self._given[name]) % max(rank, 1)

    def require_beside(self, found: State, shape: Sequence[int]) -> None:
        """Raise ModelError if the argument `dim`, an axis of a tensor of this shape, is the batch axis."""
        self.demand(found is None or self.axis("dim", len(shape)) != found.axis)

    def elementwise_axis(self, operands: Iterable[Any], rank: int) -> State:
        """Return the batch axis of an element-wise result of operands broadcast to this rank.

        Raises ModelError for operands with different batch axes, or an unbatched operand with different rows on the
        batch axis.
        """
        nodes = [each for each in operands if isinstance(each, torch().fx.Node)]
        axes = set()
        for node in nodes:
            state = self.usable(node)
            if state is not None:
                axes.add(replace(state, axis=state.axis + rank - len(shape_of(node))))
        if not axes:
            return None
        self.demand(len(axes) == 1)
        (state,) = axes
        for node in nodes:
            shape, axis = shape_of(node), state.axis - rank + len(shape_of(node))
            self.demand(self.state(node) is not None or axis < 0 or shape[axis] == 1)
        return state

    def fewer_of(self, sizes: Sequence[Any], axis: int) -> list[Any]:
        """Return extents with the extent on `axis` changed to fewer samples; an extent of -1 stays."""
        smaller = list(sizes)
        if smaller[axis] != -1:
            self.demand(isinstance(smaller[axis], int) and smaller[axis] % self.counts.samples == 0)
            smaller[axis] = smaller[axis] // self.counts.samples * self.counts.fewer
        return smaller

    def first(self, sizes: Sequence[Any]) -> int | None:
        """Return the first axis of more than one element of a constant, if guessed to be the batch axis.

        See `BatchSizes` for the guess.
        """
        axis = next((axis for axis, extent in enumerate(sizes) if extent != 1), None)
        return axis if self.counts.guess and axis is not None and sizes[axis] == self.counts.samples else None


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the extents of a node's result in the graph for all samples."""
    return tuple(node.meta["val"].shape)


def axes_of(found: Any, rank: int) -> set[int]:
    """Return an argument naming one or more axes of a tensor of this rank, as numbers from 0 on."""
    return {axis % max(rank, 1) for axis in ([found] if isinstance(found, int) else found)}


Rule = Callable[[Call], Any]
"""(call) -> the batch axis of the result, or a list of axes for several results."""

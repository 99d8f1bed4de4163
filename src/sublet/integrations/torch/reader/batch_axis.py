"""The batch axis of tensors in a graph: the axis with the samples; and operator calls with batched operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.base.errors import ModelError
from sublet.integrations.torch.reader.fx_conversion import source_line
from sublet.integrations.torch.reader.traced_tensor import torch


@dataclass(frozen=True)
class BatchAxis:
    """The batch axis of a tensor. For a batch of B samples:

        (B, heads, n, n)    axis 0
        (B * heads, n, n)   axis 0, inner = heads    a sample is `inner` adjacent elements of the axis
        (2 * B, n)          axis 0, outer = 2        the axis holds `outer` groups, each with all samples

    holds_indices  True if the elements are the indices of the samples, from 0 on, as arange(B)
    """

    axis: int
    inner: int = 1
    outer: int = 1
    holds_indices: bool = False


OptionalBatchAxis = BatchAxis | None
"""The batch axis; None for a tensor equal for all samples."""


@dataclass(frozen=True)
class BatchSizes:
    """The number of samples in the full and in the smaller batch.

    `guess_constants` True takes a constant of `full` rows for a batched tensor. The guess cannot change a result: the
    rows of the constant are equal, so fewer rows are rows of the whole. For the indices from 0 on, with different rows,
    only an index of a sample's own elements may use the guess (`batch_axis_rules._index_own_sample`).
    """

    full: int
    smaller: int
    guess_constants: bool


class BatchedCall:
    """A call of an operator: arguments by name, and the batch axis of each argument."""

    def __init__(self, node: Any, states: Mapping[Any, Any], made: Mapping[Any, Any], counts: BatchSizes) -> None:
        self.node, self._axes, self._smaller_nodes, self.sizes = node, states, made, counts
        self.changed_arguments: dict[str, tuple[int, Any]] = {}
        if not isinstance(node.target, torch()._ops.OpOverload):
            raise self.refusal()
        schema = node.target._schema
        self._names = [argument.name for argument in schema.arguments]
        self._arguments = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        self._arguments |= dict(zip(self._names, node.args, strict=False)) | dict(node.kwargs)

    def __getitem__(self, name: str) -> Any:
        """Return an argument by name."""
        return self._arguments[name]

    def has_argument(self, name: str) -> bool:
        """True if the operator has an argument of this name."""
        return name in self._arguments

    def refusal(self) -> ModelError:
        """Return the error for an operator without proof of sample-wise computation."""
        return ModelError(f"{source_line(self.node)}: {self.node.target} may compute across samples")

    def require(self, holds: bool) -> None:
        """Raise ModelError unless `holds`, a condition of sample-wise computation."""
        if not holds:
            raise self.refusal()

    def change_argument(self, name: str, to: Any) -> None:
        """Replace an argument in the call for fewer samples."""
        self.changed_arguments[name] = self._names.index(name), to

    def axis_of(self, node: Any) -> Any:
        """Return the batch axis of a node's result."""
        return self._axes.get(node)

    def any_axis(self, name: str) -> OptionalBatchAxis:
        """Return the batch axis of an argument, also of sample indices."""
        argument = self._arguments[name]
        return self.axis_of(argument) if isinstance(argument, torch().fx.Node) else None

    def value_axis(self, name: str) -> OptionalBatchAxis:
        """Return the batch axis of an argument. Raises ModelError for sample indices."""
        return self.value_axis_of(self._arguments[name])

    def value_axis_of(self, argument: Any) -> OptionalBatchAxis:
        """Return the batch axis of a node. Raises ModelError for sample indices."""
        axis: OptionalBatchAxis = self.axis_of(argument) if isinstance(argument, torch().fx.Node) else None
        self.require(axis is None or not axis.holds_indices)
        return axis

    def require_unbatched(self, *names: str) -> None:
        """Raise ModelError unless the arguments are equal for all samples."""
        self.require(all(self.any_axis(name) is None for name in names if self.has_argument(name)))

    def argument_shape(self, name: str) -> tuple[int, ...]:
        """Return the extents of an argument for all samples."""
        return node_shape(self._arguments[name])

    def smaller_argument(self, name: str) -> Any:
        """Return an argument for fewer samples, a tensor without bytes."""
        return self._smaller_nodes[self._arguments[name]].meta["val"]

    def axis_argument(self, name: str, rank: int) -> int:
        """Return an argument naming an axis of a tensor of this rank, as a number from 0 on."""
        return int(self._arguments[name]) % max(rank, 1)

    def require_other_axis(self, found: OptionalBatchAxis, shape: Sequence[int]) -> None:
        """Raise ModelError if the argument `dim`, an axis of a tensor of this shape, is the batch axis."""
        self.require(found is None or self.axis_argument("dim", len(shape)) != found.axis)

    def elementwise_axis(self, operands: Iterable[Any], rank: int) -> OptionalBatchAxis:
        """Return the batch axis of an element-wise result of operands broadcast to this rank.

        Raises ModelError for operands with different batch axes, or an unbatched operand with different rows on the
        batch axis.
        """
        nodes = [each for each in operands if isinstance(each, torch().fx.Node)]
        axes = set()
        for node in nodes:
            state = self.value_axis_of(node)
            if state is not None:
                axes.add(replace(state, axis=state.axis + rank - len(node_shape(node))))
        if not axes:
            return None
        self.require(len(axes) == 1)
        (state,) = axes
        for node in nodes:
            shape, axis = node_shape(node), state.axis - rank + len(node_shape(node))
            self.require(self.axis_of(node) is not None or axis < 0 or shape[axis] == 1)
        return state

    def smaller_extents(self, sizes: Sequence[Any], axis: int) -> list[Any]:
        """Return extents with the extent on `axis` changed to fewer samples; an extent of -1 stays."""
        smaller = list(sizes)
        if smaller[axis] != -1:
            self.require(isinstance(smaller[axis], int) and smaller[axis] % self.sizes.full == 0)
            smaller[axis] = smaller[axis] // self.sizes.full * self.sizes.smaller
        return smaller

    def guessed_axis(self, sizes: Sequence[Any]) -> int | None:
        """Return the first axis of more than one element of a constant, if guessed to be the batch axis.

        See `BatchSizes` for the guess.
        """
        axis = next((axis for axis, extent in enumerate(sizes) if extent != 1), None)
        return axis if self.sizes.guess_constants and axis is not None and sizes[axis] == self.sizes.full else None


def node_shape(node: Any) -> tuple[int, ...]:
    """Return the extents of a node's result in the graph for all samples."""
    return tuple(node.meta["val"].shape)


def axes_argument(found: Any, rank: int) -> set[int]:
    """Return an argument naming one or more axes of a tensor of this rank, as numbers from 0 on."""
    return {axis % max(rank, 1) for axis in ([found] if isinstance(found, int) else found)}


BatchAxisRule = Callable[[BatchedCall], Any]
"""(call) -> the batch axis of the result, or a list of axes for several results."""

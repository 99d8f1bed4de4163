"""The batch axis of tensors in a graph: the axis with the samples; and operator calls with batched operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.reader.fx_conversion import source_line
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.ir.graph import Node, Value
from sublet.ops.slice_maps import Slices, elementwise_axes


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

    def axes_by(
        self, slices: Slices, arguments: Sequence[Any], shapes: Sequence[tuple[int, ...]]
    ) -> list[OptionalBatchAxis]:
        """Return the batch axes of results of the given extents, by slice maps of a node.

        The inputs of the node are `arguments`, its attributes all arguments of the call. Raises ModelError unless a map
        slices each batched input along the batch axis, and no other input.
        """
        axes = [self.value_axis_of(each) for each in arguments]
        states = {replace(each, axis=0) for each in axes if each is not None}
        if not states:
            return [None] * len(shapes)
        given = [node_shape(each) if isinstance(each, torch().fx.Node) else None for each in arguments]
        inputs, outputs = (
            tuple(None if shape is None else Value("", TensorSpec(DType.F32, shape)) for shape in part)
            for part in (given, shapes)
        )
        along = [each and each.axis for each in axes]
        maps = slices(Node("", str(self.node.target), inputs, outputs, self._arguments))
        fitting = [each.outputs for each in maps if [sliced and sliced.start for sliced in each.inputs] == along]
        self.require(len(states) == 1 and bool(fitting) and None not in fitting[0])
        return [replace(*states, axis=sliced.start) for sliced in fitting[0] if sliced is not None]

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

    def elementwise_axis(self, operands: Sequence[Any], shape: tuple[int, ...]) -> OptionalBatchAxis:
        """Return the batch axis of an element-wise result of these extents.

        Raises ModelError for operands with different batch axes, or an unbatched operand with different rows on the
        batch axis.
        """
        return self.axes_by(elementwise_axes, operands, [shape])[0]

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

"""Application of an operator, as input of a shape rule, and helpers for extents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims, format_dims

Extent = int | None
Values = tuple[int | None, ...] | None
"""The elements of a small integer tensor, as far as known."""


class UnknownRank(Exception):
    """The rank of an input is unknown, so a rule cannot infer any extents."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Known facts about an input.

    dims      the extents, None for an open extent; None if even the rank is unknown
    values    the elements of a small integer tensor, if known
    selected  True for rows selected from a tensor
    """

    dims: Dims
    values: Values = None
    selected: bool = False


@dataclass(frozen=True, slots=True)
class PaddleCall:
    """An operator with the operands of its slots and plain attributes.

    outputs     the number of names in each output slot
    sequences   the number of sequences in a tensor with a level of detail, if known
    """

    type: str
    attrs: Mapping[str, object]
    inputs: Mapping[str, Sequence[Operand]]
    outputs: Mapping[str, int]
    sequences: int | None = None

    def has_input(self, slot: str) -> bool:
        """Return True if the input slot has an operand."""
        return bool(self.inputs.get(slot))

    def dims(self, slot: str = "X", position: int = 0) -> tuple[Extent, ...]:
        """Return the extents of an input. Raises Open if the rank is unknown, SpecError if the input is missing."""
        operands = self.inputs.get(slot, ())
        if position >= len(operands):
            raise SpecError(f"has no input {slot}")
        dims = operands[position].dims
        if dims is None:
            raise UnknownRank
        return dims

    def values(self, slot: str) -> Values:
        """Return the elements of the single tensor in a slot, or None."""
        operands = self.inputs.get(slot, ())
        return operands[0].values if operands else None

    def first_elements(self, slot: str) -> Values:
        """Return the first element of each tensor in a slot."""
        return tuple(operand.values[0] if operand.values else None for operand in self.inputs.get(slot, ()))

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an attribute as integers; a single integer becomes a tuple. Raises SpecError for other values."""
        value = self.attrs.get(name, default)
        if isinstance(value, int):
            return (int(value),)
        if not isinstance(value, Sequence) or not all(isinstance(number, int) for number in value):
            raise SpecError(f"has {name}={value!r:.80}, which should be integers")
        return tuple(value)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute. Raises SpecError for other values."""
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise SpecError(f"has {name}={value!r:.80}, which should be an integer")
        return value

    def reals(self, name: str) -> tuple[float, ...]:
        """Return the numbers of an attribute; a single number becomes a tuple."""
        value = self.attrs.get(name, ())
        value = value if isinstance(value, Sequence) else (value,)
        return tuple(number for number in value if isinstance(number, int | float))

    def text(self, name: str, default: str = "") -> str:
        """Return a string attribute; `default` for other values."""
        value = self.attrs.get(name, default)
        return value if isinstance(value, str) else default

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """Return an axis attribute for a tensor of the given rank, counted from the front."""
        return axis_of(self.integer(name, default), rank)


Result = Mapping[str, Sequence[Dims]]
"""Extents by output slot and position."""
Rule = Callable[[PaddleCall], Result]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises SpecError for an axis out of range."""
    if not -rank <= axis < rank:
        raise SpecError(f"has no axis {axis} in a tensor of {rank} axes")
    return axis % rank if rank else 0


def element_count(extents: Sequence[Extent]) -> Extent:
    """Return the number of elements; None if open. An extent of 0 gives 0 even beside an open extent."""
    if 0 in extents:
        return 0
    known = [extent for extent in extents if extent is not None]
    return prod(known) if len(known) == len(extents) else None


def sum_of_extents(extents: Sequence[Extent]) -> Extent:
    """Return the sum of extents; None if any is open."""
    known = [extent for extent in extents if extent is not None]
    return sum(known) if len(known) == len(extents) else None


def common_extent(a: Extent, b: Extent, what: str) -> Extent:
    """Return the common extent of two tensors. Raises SpecError with the text `what` if the extents differ."""
    if a is not None and b is not None and a != b:
        raise SpecError(f"{what}: {a} and {b}")
    return b if a is None else a


def broadcast_shapes(a: Sequence[Extent], b: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the extents of an element-wise result, aligned at the last axis."""
    rank = max(len(a), len(b))
    pairs = zip([*[1] * (rank - len(a)), *a], [*[1] * (rank - len(b)), *b], strict=True)
    return tuple(_broadcast_extent(one, other, a, b) for one, other in pairs)


def _broadcast_extent(one: Extent, other: Extent, a: Sequence[Extent], b: Sequence[Extent]) -> Extent:
    """Return the broadcast of two extents. Raises SpecError if the extents do not match."""
    if one == 1:
        return other
    if other == 1:
        return one
    return common_extent(one, other, f"shapes {format_dims(a)} and {format_dims(b)} do not fit")

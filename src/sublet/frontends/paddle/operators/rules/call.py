"""One application of an operator as a shape rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims, shown

Extent = int | None
Values = tuple[int | None, ...] | None
"""The elements of a small integer tensor, as far as they are known."""


class Open(Exception):
    """The rank of an input is not known, so that a rule says nothing."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known of an input: extents, None for open ones, elements of a small integer tensor, whether it is rows
    that were selected from a tensor."""

    dims: Dims
    values: Values = None
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with the operands of its slots and plain attributes.

    outputs     how many names each output slot has
    sequences   how many sequences a tensor with a level of detail holds, where that is told
    """

    type: str
    attrs: Mapping[str, object]
    inputs: Mapping[str, Sequence[Operand]]
    outputs: Mapping[str, int]
    sequences: int | None = None

    def has(self, slot: str) -> bool:
        return bool(self.inputs.get(slot))

    def dims(self, slot: str = "X", position: int = 0) -> tuple[Extent, ...]:
        """Extents of an input. Raises Open when not even their number is known."""
        operands = self.inputs.get(slot, ())
        if position >= len(operands):
            raise SpecError(f"has no input {slot}")
        dims = operands[position].dims
        if dims is None:
            raise Open
        return dims

    def values(self, slot: str) -> Values:
        """The elements of the one tensor in a slot; None where they are not known."""
        operands = self.inputs.get(slot, ())
        return operands[0].values if operands else None

    def listed(self, slot: str) -> Values:
        """One element of each tensor in a slot."""
        return tuple(operand.values[0] if operand.values else None for operand in self.inputs.get(slot, ()))

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of integers; one integer is a list of it."""
        value = self.attrs.get(name, default)
        if isinstance(value, int):
            return (int(value),)
        if not isinstance(value, Sequence) or not all(isinstance(number, int) for number in value):
            raise SpecError(f"has {name}={value!r:.80}, which should be integers")
        return tuple(value)

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise SpecError(f"has {name}={value!r:.80}, which should be an integer")
        return value

    def reals(self, name: str) -> tuple[float, ...]:
        value = self.attrs.get(name, ())
        value = value if isinstance(value, Sequence) else (value,)
        return tuple(number for number in value if isinstance(number, int | float))

    def text(self, name: str, default: str = "") -> str:
        value = self.attrs.get(name, default)
        return value if isinstance(value, str) else default

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """An axis of a tensor of `rank`, counted from the front."""
        return axis_of(self.integer(name, default), rank)


Result = Mapping[str, Sequence[Dims]]
"""Extents by output slot and position."""
Rule = Callable[[Call], Result]


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises SpecError when there is none."""
    if not -rank <= axis < rank:
        raise SpecError(f"has no axis {axis} in a tensor of {rank} axes")
    return axis % rank if rank else 0


def product(extents: Sequence[Extent]) -> Extent:
    """The number of elements; 0 wins over an open extent."""
    if 0 in extents:
        return 0
    known = [extent for extent in extents if extent is not None]
    return prod(known) if len(known) == len(extents) else None


def total(extents: Sequence[Extent]) -> Extent:
    known = [extent for extent in extents if extent is not None]
    return sum(known) if len(known) == len(extents) else None


def same(a: Extent, b: Extent, what: str) -> Extent:
    """An extent that two tensors have in common."""
    if a is not None and b is not None and a != b:
        raise SpecError(f"{what}: {a} and {b}")
    return b if a is None else a


def broadcast(a: Sequence[Extent], b: Sequence[Extent]) -> tuple[Extent, ...]:
    """The extents of an element-wise result, aligned at the back."""
    rank = max(len(a), len(b))
    pairs = zip([*[1] * (rank - len(a)), *a], [*[1] * (rank - len(b)), *b], strict=True)
    return tuple(_broad(one, other, a, b) for one, other in pairs)


def _broad(one: Extent, other: Extent, a: Sequence[Extent], b: Sequence[Extent]) -> Extent:
    if one == 1:
        return other
    if other == 1:
        return one
    return same(one, other, f"shapes {shown(a)} and {shown(b)} do not fit")

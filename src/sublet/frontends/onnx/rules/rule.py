"""What a rule sees of a node, and how it says that shapes contradict each other.

An extent that is not known is None, and agrees with every other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sublet.base.tensor import shown

Extents = tuple[int | None, ...]
Attribute = int | float | str | tuple[int, ...]


class Contradiction(Exception):
    """Shapes that no run can have; the text says which."""


@dataclass(frozen=True)
class Seen:
    """A node as its rule sees it.

    inputs, outputs   the shapes, None for one of unknown rank or an operand left out
    given     whether each input is there
    numbers   the elements of inputs that are small integer constants, by position
    version   of the operator set
    """

    inputs: Sequence[Extents | None]
    outputs: Sequence[Extents | None]
    given: Sequence[bool]
    numbers: Mapping[int, tuple[int, ...]]
    attributes: Mapping[str, Attribute]
    version: int

    def shape(self, position: int) -> Extents | None:
        """The shape of an input, None where it is unknown or left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def present(self, position: int) -> bool:
        return position < len(self.given) and self.given[position]

    def whole(self, name: str, default: int = 0) -> int:
        found = self.attributes.get(name, default)
        return found if isinstance(found, int) else default

    def wholes(self, name: str) -> tuple[int, ...] | None:
        found = self.attributes.get(name)
        return found if isinstance(found, tuple) else None

    def text(self, name: str, default: str = "") -> str:
        found = self.attributes.get(name, default)
        return found if isinstance(found, str) else default

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """An axis counted from the front. Raises Contradiction when there is no such one."""
        return counted(self.whole(name, default), rank)


Rule = Callable[[Seen], None]
"""Raises Contradiction when the shapes of a node contradict what its operator demands."""


def counted(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises Contradiction when a tensor of that rank has none such."""
    if not -rank <= axis < rank:
        raise Contradiction(f"there is no axis {axis} in {rank} dimensions")
    return axis % rank


def size_of(shape: Extents) -> int | None:
    """The number of elements, None while an extent is not known."""
    known = [extent for extent in shape if extent is not None]
    return prod(known) if len(known) == len(shape) else (0 if 0 in known else None)


def differ(a: int | None, b: int | None) -> bool:
    """Whether two extents are known to be different."""
    return a is not None and b is not None and a != b


def alike(a: Extents, b: Extents) -> bool:
    """Whether two shapes may be the same."""
    return len(a) == len(b) and not any(differ(x, y) for x, y in zip(a, b, strict=True))


def demand(holds: bool, what: str) -> None:
    """Raise Contradiction with `what` unless it holds."""
    if not holds:
        raise Contradiction(what)


def same(a: int | None, b: int | None, what: str) -> None:
    """Raise Contradiction unless two extents may be equal; `what` names them."""
    if differ(a, b):
        raise Contradiction(f"{what}: {a} and {b}")


def once(axes: Sequence[int], rank: int) -> None:
    """Raise Contradiction unless axes, which may be counted from the back, are different ones."""
    places = [counted(axis, rank) for axis in axes]
    demand(len(set(places)) == len(places), f"the axes {list(axes)} name one twice")


def of_length(shape: Extents | None, length: int | None, what: str) -> None:
    """Raise Contradiction unless a shape may be that of a vector of `length`."""
    if shape is None:
        return
    demand(len(shape) == 1, f"{what} is {shown(shape)}, not a vector")
    same(shape[0], length, f"{what} and the extent it belongs to have different lengths")


def broadcast(shapes: Sequence[Extents | None], what: str = "the operands do not broadcast") -> None:
    """Raise Contradiction unless the shapes may be broadcast together."""
    known = [shape for shape in shapes if shape is not None]
    for axis in range(1, max((len(shape) for shape in known), default=0) + 1):
        extents = sorted({e for shape in known if len(shape) >= axis and (e := shape[-axis]) not in (1, None)}, key=int)
        found = " and ".join(map(str, extents))
        demand(len(extents) < 2, f"{what}: {', '.join(map(shown, known))} differ on axis {-axis}, {found}")


def broadcast_to(shape: Extents | None, target: Extents | None, what: str) -> None:
    """Raise Contradiction unless one shape may be broadcast to the other, which keeps its own extents."""
    if shape is None or target is None:
        return
    demand(len(shape) <= len(target), f"{what} {shown(shape)} has more dimensions than {shown(target)}")
    for axis in range(1, len(shape) + 1):
        fits = shape[-axis] in (1, None) or not differ(shape[-axis], target[-axis])
        demand(fits, f"{what} {shown(shape)} does not broadcast to {shown(target)}")

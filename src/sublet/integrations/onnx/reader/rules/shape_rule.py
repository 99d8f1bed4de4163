"""Input of a shape rule, and the checks a rule is written with.

An unknown extent is None, and agrees with every extent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sublet.base.extents import is_ranged
from sublet.base.tensor import format_dims

Extents = tuple[int | None, ...]
Attribute = int | float | str | tuple[int, ...]


class ShapeConflict(Exception):
    """A combination of shapes impossible in every run; the text names the shapes."""


@dataclass(frozen=True)
class NodeShapes:
    """The facts about a node available to a shape rule.

    inputs, outputs   the shapes, None for an unknown rank or an omitted operand
    is_given          True for each input present
    constant_inputs   the elements of small integer constant inputs, by position
    attributes        the attributes by name
    version           the version of the operator set
    """

    inputs: Sequence[Extents | None]
    outputs: Sequence[Extents | None]
    is_given: Sequence[bool]
    constant_inputs: Mapping[int, tuple[int, ...]]
    attributes: Mapping[str, Attribute]
    version: int

    def shape(self, position: int) -> Extents | None:
        """Return the shape of an input, None if unknown or omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def is_present(self, position: int) -> bool:
        """True if the input is present."""
        return position < len(self.is_given) and self.is_given[position]

    def integer_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute, `default` if absent."""
        found = self.attributes.get(name, default)
        return found if isinstance(found, int) else default

    def integers_attribute(self, name: str) -> tuple[int, ...] | None:
        """Return an integer list attribute, None if absent."""
        found = self.attributes.get(name)
        return found if isinstance(found, tuple) else None

    def text_attribute(self, name: str, default: str = "") -> str:
        """Return a string attribute, `default` if absent."""
        found = self.attributes.get(name, default)
        return found if isinstance(found, str) else default

    def axis_attribute(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an axis attribute counted from the front. Raises ShapeConflict for an axis out of range."""
        return axis_from_front(self.integer_attribute(name, default), rank)


ShapeRule = Callable[[NodeShapes], None]
"""A function raising ShapeConflict when the shapes of a node violate the constraints of the operator."""


def axis_from_front(axis: int, rank: int) -> int:
    """Return the axis counted from the front. Raises ShapeConflict for an axis out of range."""
    if not -rank <= axis < rank:
        raise ShapeConflict(f"there is no axis {axis} in {rank} dimensions")
    return axis % rank


def element_count_of(shape: Extents) -> int | None:
    """Return the number of elements, None if an unknown extent leaves the number open."""
    known = [extent for extent in shape if extent is not None]
    return prod(known) if len(known) == len(shape) else (0 if 0 in known else None)


def broadcast_shape(shapes: Sequence[Extents | None]) -> Extents | None:
    """Return the broadcast shape of the operands, None if the rank of any operand is unknown."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_broadcast_extent_of(extents) for extents in zip(*aligned, strict=True))


def _broadcast_extent_of(extents: Sequence[int | None]) -> int | None:
    """Return the broadcast extent of one axis, None if the extent is open."""
    wide = [extent for extent in extents if extent is None or is_ranged(extent) or extent != 1]
    fixed = [extent for extent in wide if isinstance(extent, int)]
    if fixed or not wide:
        return fixed[0] if fixed else 1
    return wide[0] if all(extent == wide[0] for extent in wide) else None


def are_known_different(a: int | None, b: int | None) -> bool:
    """True if both extents are known and different."""
    return a is not None and b is not None and a != b


def may_be_equal(a: Extents, b: Extents) -> bool:
    """True if both shapes may be equal."""
    return len(a) == len(b) and not any(are_known_different(x, y) for x, y in zip(a, b, strict=True))


def require_that(holds: bool, what: str) -> None:
    """Raise ShapeConflict with the message `what` unless `holds`."""
    if not holds:
        raise ShapeConflict(what)


def require_equal(a: int | None, b: int | None, what: str) -> None:
    """Raise ShapeConflict if the extents are known and different; `what` begins the message."""
    if are_known_different(a, b):
        raise ShapeConflict(f"{what}: {a} and {b}")


def require_distinct_axes(axes: Sequence[int], rank: int) -> None:
    """Raise ShapeConflict unless the axes, possibly counted from the back, are distinct."""
    places = [axis_from_front(axis, rank) for axis in axes]
    require_that(len(set(places)) == len(places), f"the axes {list(axes)} name one twice")


def require_vector(shape: Extents | None, length: int | None, what: str) -> None:
    """Raise ShapeConflict unless the shape may be a vector of `length` elements."""
    if shape is None:
        return
    require_that(len(shape) == 1, f"{what} is {format_dims(shape)}, not a vector")
    require_equal(shape[0], length, f"{what} and its axis have different lengths")


def require_broadcastable(shapes: Sequence[Extents | None], what: str = "the operands do not broadcast") -> None:
    """Raise ShapeConflict unless the shapes may broadcast together."""
    known = [shape for shape in shapes if shape is not None]
    for axis in range(1, max((len(shape) for shape in known), default=0) + 1):
        extents = sorted({e for shape in known if len(shape) >= axis and (e := shape[-axis]) not in (1, None)}, key=int)
        conflicting = " and ".join(map(str, extents))
        require_that(
            len(extents) < 2, f"{what}: {', '.join(map(format_dims, known))} differ on axis {-axis}, {conflicting}"
        )


def require_broadcastable_to(shape: Extents | None, target: Extents | None, what: str) -> None:
    """Raise ShapeConflict unless `shape` may broadcast to `target` without changing `target`."""
    if shape is None or target is None:
        return
    require_that(
        len(shape) <= len(target), f"{what} {format_dims(shape)} has more dimensions than {format_dims(target)}"
    )
    for axis in range(1, len(shape) + 1):
        fits = shape[-axis] in (1, None) or not are_known_different(shape[-axis], target[-axis])
        require_that(fits, f"{what} {format_dims(shape)} does not broadcast to {format_dims(target)}")

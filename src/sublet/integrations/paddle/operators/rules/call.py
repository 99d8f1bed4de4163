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


# Constant propagation for small integer tensors, the source of computed shapes.

MAX_ELEMENTS = 64
"""Limit of elements: a longer tensor is no shape, and its elements are dropped."""


def known_elements(call: PaddleCall) -> Values:
    """Return the elements of the single output, or None if unknown or more than MAX_ELEMENTS."""
    rule = _ELEMENT_RULES.get(call.type)
    values = rule(call) if rule else None
    return values if values is not None and len(values) <= MAX_ELEMENTS else None


def _shape_elements(call: PaddleCall) -> Values:
    """Return the elements of a shape tensor."""
    return call.inputs["Input"][0].dims if call.has_input("Input") else None


def _constant_elements(call: PaddleCall) -> Values:
    """Return the elements of a constant."""
    shape = call.integers("shape")
    if (
        call.has_input("ShapeTensor")
        or call.has_input("ShapeTensorList")
        or call.has_input("ValueTensor")
        or len(shape) > 1
    ):
        return None
    try:
        number = float(call.text("str_value") or str(call.attrs.get("value", 0.0)))
    except ValueError:
        return None
    count = shape[0] if shape else 1
    return (int(number),) * count if number.is_integer() and 0 <= count <= MAX_ELEMENTS else None


def _attribute_elements(call: PaddleCall) -> Values:
    """Return the elements of an integer list in an attribute."""
    for name in ("int32_values", "int64_values", "values"):
        values = call.attrs.get(name)
        if isinstance(values, tuple) and values and all(isinstance(value, int) for value in values):
            return tuple(values)
    return () if call.integers("shape") == (0,) else None


def _elements_of_x(call: PaddleCall) -> Values:
    """Return the elements of X."""
    return call.values("X")


def _slice_elements(call: PaddleCall) -> Values:
    """Return the elements of a slice."""
    values = call.values("Input")
    tensors = any(call.has_input(f"{side}Tensor{many}") for side in ("Starts", "Ends") for many in ("", "List"))
    if values is None or call.integers("axes") != (0,) or tensors:
        return None
    return values[slice(call.integers("starts")[0], call.integers("ends")[0])]


def _concat_elements(call: PaddleCall) -> Values:
    """Return the elements of a concatenation."""
    joined_values: list[int | None] = []
    for operand in call.inputs.get("X", ()):
        if operand.values is None:
            return None
        joined_values += operand.values
    return tuple(joined_values)


def _scale_elements(call: PaddleCall) -> Values:
    """Return the scaled elements, if scale and bias are integers."""
    values, scale, bias = call.values("X"), call.attrs.get("scale", 1.0), call.attrs.get("bias", 0.0)
    if values is None or call.has_input("ScaleTensor") or not isinstance(scale, float) or not isinstance(bias, float):
        return None
    if not (scale.is_integer() and bias.is_integer()):
        return None
    after = call.attrs.get("bias_after_scale", True)
    return tuple(
        None if value is None else int(value * scale + bias if after else (value + bias) * scale) for value in values
    )


def _pairwise(combine: Callable[[int, int], int | None]) -> Callable[[PaddleCall], Values]:
    """Return a rule that combines two tensors element by element; a tensor of a single element is repeated."""

    def values(call: PaddleCall) -> Values:
        """Return the combined elements, or None."""
        a, b = call.values("X"), call.values("Y")
        if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
            return None
        count = max(len(a), len(b))
        pairs = zip(a * count if len(a) == 1 else a, b * count if len(b) == 1 else b, strict=False)
        return tuple(None if x is None or y is None else combine(x, y) for x, y in pairs)

    return values


def _product_element(call: PaddleCall) -> Values:
    """Return the product of the elements."""
    values = call.values("X")
    if values is None or None in values:
        return None
    result = 1
    for value in values:
        result *= value or 0
    return (result,)


def _gather_elements(call: PaddleCall) -> Values:
    """Return the elements at the given indices."""
    values, index = call.values("X"), call.values("Index")
    if values is None or index is None:
        return None
    return tuple(None if at is None else values[axis_of(at, len(values))] for at in index)


_ELEMENT_RULES: Mapping[str, Callable[[PaddleCall], Values]] = {
    "shape": _shape_elements, "fill_constant": _constant_elements, "assign_value": _attribute_elements,
    "slice": _slice_elements, "concat": _concat_elements, "stack": _concat_elements, "scale": _scale_elements,
    "gather": _gather_elements, "reduce_prod": _product_element,
    **dict.fromkeys(("assign", "cast", "depend", "share_data", "squeeze2", "unsqueeze2", "memcpy"), _elements_of_x),
    "elementwise_add": _pairwise(lambda a, b: a + b), "elementwise_sub": _pairwise(lambda a, b: a - b),
    "elementwise_mul": _pairwise(lambda a, b: a * b),
    "elementwise_floordiv": _pairwise(lambda a, b: a // b if b else None),
}  # fmt: skip

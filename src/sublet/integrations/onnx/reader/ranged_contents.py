"""Contents over ranges: the elements of integer tensors between Shape and Reshape, as ints and `Extent`s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.extents import Extent, bounds_of, greatest, least
from sublet.base.tensor import NUMPY, DType
from sublet.integrations.onnx.reader.ranged_shapes import FAILURES, MOST_ELEMENTS, Content, content_of
from sublet.integrations.onnx.reader.rules.shape_rule import NodeShapes
from sublet.integrations.onnx.reader.types import DTYPES, ELEMENT_NUMBERS, TensorType, Type

if TYPE_CHECKING:
    import onnx

    from sublet.integrations.onnx.reader.conversion_state import KnownValue

ContentRule = Callable[[NodeShapes, Sequence[Content]], Content | Sequence[Content] | None]

INTEGER_TYPES = frozenset(ELEMENT_NUMBERS[dtype] for dtype in (DType.I32, DType.I64, DType.BOOL))

FLOAT_TYPES = frozenset(ELEMENT_NUMBERS[dtype] for dtype in (DType.F32, DType.F64))

MOST_FLOAT = 1 << 24
"""Whole numbers up to this one are exact in f32."""

EXACT_IN_FLOATS = frozenset(("Cast", "CastLike", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators followed with whole numbers as floats, as before a Range of floats: operators without arithmetic."""


def followed_contents(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type], shapes: NodeShapes
) -> list[Content | None]:
    """Return the contents of the outputs of an integer operator over known contents; None where unknown."""
    nothing: list[Content | None] = [None] * len(node.output)
    followed = INTEGER_TYPES | FLOAT_TYPES if node.op_type in EXACT_IN_FLOATS else INTEGER_TYPES
    if node.domain not in ("", "ai.onnx") or not all(_may_follow(each, followed) for each in types):
        return nothing
    try:
        if node.op_type in ("Shape", "Size"):
            found: Any = _content_of_shape(node.op_type, shapes)
        else:
            rule = CONTENT_RULES.get(node.op_type)
            contents = [content_of(known) for known in inputs]
            given = [known is not None for known in inputs]
            whole = all(given) or node.op_type == "Slice"
            is_known = all(content is not None for content, each in zip(contents, given, strict=True) if each)
            found = rule(shapes, contents) if rule and whole and is_known else None  # type: ignore[arg-type]
        results = [found] if not isinstance(found, list) else found
        return [
            None if content is None else _content_of_type(content, each)
            for content, each in zip([*results, *nothing], types, strict=False)
        ]
    except FAILURES:
        return nothing


def _content_of_type(content: Any, type: Type) -> Content:
    """Return a content with the elements of a type: bools, or whole numbers in its range.

    Raises ValueError for another shape, a fraction, or a number out of range; Undecided for an extent as a bool.
    """
    assert isinstance(type, TensorType)
    array = np.array(content, dtype=object)
    if array.shape != type.dims:
        raise ValueError(f"a content of shape {array.shape} for {type}")
    if type.elem == ELEMENT_NUMBERS[DType.BOOL]:
        return np.array([bool(each) for each in array.ravel()], dtype=object).reshape(array.shape)
    elements = [int(each) if isinstance(each, bool) else each for each in array.ravel()]
    most = MOST_FLOAT if type.elem in FLOAT_TYPES else np.iinfo(NUMPY[DTYPES[type.elem]]).max
    for each in elements:
        if not isinstance(each, int | Extent) or bounds_of(each)[0] < -most or bounds_of(each)[1] > most:
            raise ValueError(f"{each} is no element of {type}")
    return _vector(elements).reshape(array.shape)


def _may_follow(type: Type, elements: Collection[int]) -> bool:
    """True for a small tensor with known extents, of one of the element types."""
    if not isinstance(type, TensorType) or type.elem not in elements or type.dims is None:
        return False
    extents = [extent for extent in type.dims if isinstance(extent, int)]
    return len(extents) == len(type.dims) and prod(extents) <= MOST_ELEMENTS


def _content_of_shape(op_type: str, shapes: NodeShapes) -> Any:
    """Return the extents of the input, or their product."""
    dims = shapes.shape(0)
    if dims is None or None in dims:
        return None
    if op_type == "Size":
        return prod(dims)
    begin, end = shapes.integer_attribute("start"), shapes.attributes.get("end", len(dims))
    return _vector(dims[begin : int(end)])  # type: ignore[arg-type]


def _vector(elements: Iterable[Any]) -> Content:
    """Return a content of one axis."""
    listed = list(elements)
    found = np.empty(len(listed), dtype=object)
    found[:] = listed
    return found


# Rules: integer arithmetic on shapes, element by element in Python.


def _elementwise(function: Callable[..., Any]) -> ContentRule:
    """Return the rule that applies `function` to the elements of the broadcast operands."""
    return lambda node, operands: np.frompyfunc(function, len(operands), 1)(*operands)


def _fold_left(function: Callable[[Any, Any], Any]) -> ContentRule:
    """Return the rule of an operator with any number of operands."""

    def rule(node: NodeShapes, operands: Sequence[Content]) -> Content:
        *_, last = accumulate(operands, np.frompyfunc(function, 2, 1))
        return np.asarray(last, dtype=object)

    return rule


_modulo = _elementwise(lambda a, b: a % b)


def _quotient(left: Any, right: Any) -> Any:
    """Return the quotient rounded towards zero. Raises Undecided for a sign that differs within the ranges."""
    return left // right if (left >= 0) == (right > 0) else -(-left // right)


def _gather_content(node: NodeShapes, operands: Sequence[Content]) -> Content:
    indices = operands[1].astype(np.int64)
    return np.asarray(np.take(operands[0], indices, axis=node.integer_attribute("axis")), dtype=object)


def _slice_content(node: NodeShapes, operands: Sequence[Content]) -> Content:
    data, starts, ends, axes, steps = [*operands, None, None][:5]
    assert data is not None
    assert starts is not None
    assert ends is not None
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), dtype=object) if steps is None else steps
    window = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        window[int(axis)] = slice(int(start), int(end), int(step))
    return np.asarray(data[tuple(window)], dtype=object)


def _axes_of(node: NodeShapes, operands: Sequence[Content]) -> tuple[int, ...] | None:
    """Return the axes given as an attribute or as the second operand."""
    if len(operands) > 1:
        return tuple(int(axis) for axis in operands[1].ravel())
    return node.integers_attribute("axes")


def _squeeze_content(node: NodeShapes, operands: Sequence[Content]) -> Content:
    return np.squeeze(operands[0], _axes_of(node, operands))


def _unsqueeze_content(node: NodeShapes, operands: Sequence[Content]) -> Content:
    axes = _axes_of(node, operands)
    if axes is None:
        raise ValueError("Unsqueeze without axes")
    return np.expand_dims(operands[0], axes)


def _reduction(function: Callable[[Any, Any], Any]) -> ContentRule:
    """Return the rule of a reduction over all elements of a vector."""

    def rule(node: NodeShapes, operands: Sequence[Content]) -> Content | None:
        if operands[0].ndim != 1 or node.integer_attribute("noop_with_empty_axes"):
            return None
        *_, last = accumulate(operands[0], function)
        return _vector([last]) if node.integer_attribute("keepdims", 1) else np.array(last, dtype=object)

    return rule


def _split_content(node: NodeShapes, operands: Sequence[Content]) -> list[Content] | None:
    if len(operands) < 2:
        return None
    ends = list(accumulate(int(size) for size in operands[1]))
    return np.split(operands[0], ends[:-1], axis=node.integer_attribute("axis"))


def _range_content(node: NodeShapes, operands: Sequence[Content]) -> Content:
    return _vector(range(*(int(operand.item()) for operand in operands)))


CONTENT_RULES: Mapping[str, ContentRule] = {
    **{"Add": _elementwise(lambda a, b: a + b), "Sub": _elementwise(lambda a, b: a - b)},
    **{"Mul": _elementwise(lambda a, b: a * b), "Div": _elementwise(_quotient), "Neg": _elementwise(lambda a: -a)},
    "Mod": lambda node, operands: None if node.integer_attribute("fmod") else _modulo(node, operands),
    **{"Min": _fold_left(least), "Max": _fold_left(greatest)},
    **{"Less": _elementwise(lambda a, b: a < b), "Greater": _elementwise(lambda a, b: a > b)},
    **{"LessOrEqual": _elementwise(lambda a, b: a <= b), "GreaterOrEqual": _elementwise(lambda a, b: a >= b)},
    "Equal": _elementwise(lambda a, b: a == b or not bool(a - b)),
    **{"Not": _elementwise(lambda a: not a), "And": _elementwise(lambda a, b: a and b)},
    "Where": _elementwise(lambda chosen, a, b: a if chosen else b),
    **dict.fromkeys(("Cast", "CastLike", "Identity"), lambda node, operands: operands[0]),
    "Concat": lambda node, operands: np.concatenate(operands, axis=node.integer_attribute("axis")),
    "ConstantOfShape": lambda node, operands: None,
    "Expand": lambda node, operands: np.array(
        np.broadcast_to(operands[0], np.broadcast_shapes(operands[0].shape, tuple(map(int, operands[1]))))
    ),
    "Gather": _gather_content,
    "Range": _range_content,
    "Reshape": lambda node, operands: operands[0].reshape(tuple(map(int, operands[1]))),
    "Slice": _slice_content,
    "Split": _split_content,
    "Squeeze": _squeeze_content,
    "Transpose": lambda node, operands: np.transpose(operands[0], node.integers_attribute("perm")),
    "Unsqueeze": _unsqueeze_content,
    **{"ReduceProd": _reduction(lambda a, b: a * b), "ReduceSum": _reduction(lambda a, b: a + b)},
    **{"ReduceMax": _reduction(greatest), "ReduceMin": _reduction(least)},
}
"""Integer operator -> the content of its outputs."""

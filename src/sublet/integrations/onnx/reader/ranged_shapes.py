"""Shapes and contents over ranges: extents as expressions, where ONNX's shape inference leaves an extent open.

ONNX's inference passes on extents by name (`dim_param`) through operators that keep an extent. Operators that compute
with extents have a rule here: windows, concatenations, reshapes by a computed shape. The computed shapes are followed
through the integer operators between Shape and Reshape as *contents*: arrays of int and `Extent` elements.

A rule leaves an extent open (None) where the rule cannot prove a single expression for all points. ONNX Runtime refuses
to write an output of another shape than the bound one; views and copies run without a kernel, and rely on the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.extents import Extent, Undecided, bounds_of, clamp, exact_quotient, greatest, least
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.reader.rules.images import pool_extents
from sublet.integrations.onnx.reader.rules.shape_rule import NodeShapes, broadcast_shape
from sublet.integrations.onnx.reader.types import TensorType, Type

if TYPE_CHECKING:
    import onnx

    from sublet.integrations.onnx.reader.conversion_state import KnownValue

Content = NDArray[Any]
"""The elements of a small integer or bool tensor: Python ints, bools and Extents."""

Extents = tuple[Any, ...]
"""A shape: ints, Extents, and None for an open extent."""

Contents = Mapping[int, Content]
ShapeRule = Callable[[NodeShapes, Contents], Sequence[Extents | None]]

FAILURES = (Undecided, ArithmeticError, IndexError, KeyError, TypeError, ValueError)
"""What a rule raises for operands that do not fit, or without a single result for all points."""

MOST_ELEMENTS = 1024
"""Elements of a followed content; shapes and axes are far smaller."""

FOLLOWED_TYPES = (DType.I32, DType.I64, DType.BOOL, DType.F32)
"""Types of constants seen by the rules: shapes, axes, conditions, and the scales of a Resize."""


def depend_on_ranges(inputs: Sequence[KnownValue | None]) -> bool:
    """True if an extent or a followed content of any input depends on a dimension with a range."""
    known = [each for each in inputs if each is not None]
    types = [each.type for each in known if isinstance(each.type, TensorType)]
    has_ranges = any(isinstance(extent, Extent) for type in types for extent in type.dims or ())
    return has_ranges or any(each.content is not None for each in known)


def content_of(known: KnownValue | None) -> Content | None:
    """Return the followed content of a value, or the elements of a small constant; None for other values."""
    if known is None or known.content is not None:
        return None if known is None else known.content
    weight = known.weight
    if weight is None or not weight.is_small or not isinstance(weight.spec, TensorSpec):
        return None
    if weight.spec.dtype not in FOLLOWED_TYPES or weight.spec.size > MOST_ELEMENTS:
        return None
    return np.array(weight.array().tolist(), dtype=object)


def complete_shapes(
    node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type], shapes: NodeShapes
) -> list[Type]:
    """Return the types with open extents completed by the rule of the operator, if there is a rule."""
    rule = SHAPE_RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None or not any(isinstance(t, TensorType) and (t.dims is None or None in t.dims) for t in types):
        return list(types)
    try:
        found = rule(shapes, {i: c for i, known in enumerate(inputs) if (c := content_of(known)) is not None})
    except FAILURES:  # shapes that do not fit: the run decides
        return list(types)
    return [_complete_type(t, dims) for t, dims in zip(types, [*found, *[None] * len(types)], strict=False)]


def _complete_type(type: Type, dims: Extents | None) -> Type:
    """Return a type with its open extents from `dims`."""
    if not isinstance(type, TensorType) or dims is None or (type.dims is not None and len(type.dims) != len(dims)):
        return type
    known = type.dims or (None,) * len(dims)
    return replace(type, dims=tuple(b if a is None else a for a, b in zip(known, dims, strict=True)))


# Shape rules. Indices of axes count from the front or back, as in Python.


def _windows(node: NodeShapes, data: Extents, kernel: Sequence[int], transposed: bool = False) -> list[Any]:
    """Return the spatial extents of a convolution or transposed convolution."""
    count = len(kernel)
    strides = node.integers_attribute("strides") or (1,) * count
    dilations = node.integers_attribute("dilations") or (1,) * count
    pads = node.integers_attribute("pads") or (0,) * (2 * count)
    more = node.integers_attribute("output_padding") or (0,) * count
    mode = node.text_attribute("auto_pad", "NOTSET")
    extents: list[Any] = []
    for i, extent in enumerate(data[2:]):
        reach, padding = dilations[i] * (kernel[i] - 1) + 1, pads[i] + pads[i + count]
        if extent is None:
            extents.append(None)
        elif transposed:
            extents.append((extent - 1) * strides[i] + more[i] + reach - padding)
        elif mode.startswith("SAME"):
            extents.append((extent + strides[i] - 1) // strides[i])
        else:
            room = extent + (0 if mode == "VALID" else padding) - reach
            extents.append(room // strides[i] + 1)
    return extents


def _convolution(weight: int, transposed: bool = False) -> ShapeRule:
    """Return the rule of a convolution with its weights at input `weight`."""

    def rule(node: NodeShapes, contents: Contents) -> list[Extents | None]:
        data, kernel = node.shape(0), node.shape(weight)
        if data is None or kernel is None or None in kernel or node.integers_attribute("output_shape"):
            return [None]
        taps = [int(tap) for tap in kernel[2:] if tap is not None]
        channels = kernel[1] * node.integer_attribute("group", 1) if transposed and kernel[1] else kernel[0]
        return [(data[0], channels, *_windows(node, data, taps, transposed))]

    return rule


def _concat(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    shapes: list[Any] = list(node.inputs)
    if any(shape is None for shape in shapes):
        return [None]
    axis = node.integer_attribute("axis") % len(shapes[0])
    along = [shape[axis] for shape in shapes]
    whole = None if None in along else sum(along)
    others = [next((shape[i] for shape in shapes if shape[i] is not None), None) for i in range(len(shapes[0]))]
    return [(*others[:axis], whole, *others[axis + 1 :])]


def _reshape(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    """Return the shape in the content: 0 copies the extent of the input, -1 takes the rest."""
    data, wanted = node.shape(0), list(contents[1])
    if data is None:
        return [None]
    dims: list[Any] = []
    for i, extent in enumerate(wanted):
        copies = not node.integer_attribute("allowzero")
        if copies and isinstance(extent, Extent) and bounds_of(extent)[0] <= 0:
            # 0 at some points: the kernel then copies the extent of the input, which must be 0 there too.
            dims.append(extent if i < len(data) and _is_zero_with(data[i], extent) else None)
        else:
            dims.append(data[i] if copies and not isinstance(extent, Extent) and extent == 0 else extent)
    if -1 in [each for each in dims if isinstance(each, int)]:
        rest = [each for each in dims if not (isinstance(each, int) and each == -1)]
        given = None if None in rest or None in data else _rest_of(data, rest)
        dims = [given if isinstance(each, int) and each == -1 else each for each in dims]
    return [tuple(dims)]


def _rest_of(data: Extents, given: Sequence[Any]) -> Any:
    """Return the extent for -1 beside `given` extents; where these are 0, no kernel runs."""
    left, others = list(data), []
    for extent in given:  # an extent on both sides needs no division: a sum divides no product term by term
        if extent in left:
            left.remove(extent)
        else:
            others.append(extent)
    divisor = prod(others)
    return exact_quotient(prod(left), divisor) if isinstance(divisor, Extent) else prod(left) // divisor


def _is_zero_with(copied: Any, extent: Extent) -> bool:
    """True if `copied` is 0 wherever `extent` is: a multiple, or a factor with a quotient of at least 1."""
    for dividend, divisor, least_quotient in (
        ((copied, extent, None), (extent, copied, 1)) if copied is not None else ()
    ):
        try:
            quotient = exact_quotient(dividend, divisor)
        except Undecided:
            continue
        return least_quotient is None or bounds_of(quotient)[0] >= least_quotient
    return False


def _expand(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    return [broadcast_shape([data, tuple(contents[1])])]


def _tile(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    if data is None or None in data:
        return [None]
    return [tuple(extent * times for extent, times in zip(data, contents[1], strict=True))]


def _slice(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    if data is None:
        return [None]
    starts, ends = contents[1], contents[2]
    axes = list(contents[3]) if node.is_present(3) else list(range(len(starts)))
    steps = list(contents[4]) if node.is_present(4) else [1] * len(starts)
    dims: list[Any] = list(data)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = dims[axis]
        if step < 1 or extent is None:
            dims[axis] = None
            continue
        begin, stop = (_clamp_place(place, extent) for place in (start, end))
        room = stop - begin
        if isinstance(start, int) and start < 0 and stop == extent:
            room = least(extent, -start)  # the last elements: a sum of both ends would have loose bounds
        dims[axis] = greatest((room + step - 1) // step, 0)
    return [tuple(dims)]


def _clamp_place(place: Any, extent: Any) -> Any:
    """Return a start or end of a slice within 0 and the extent."""
    return clamp(place + extent if place < 0 else place, extent)


def _split(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    if data is None or 1 not in contents:
        return [None]
    axis = node.integer_attribute("axis") % len(data)
    return [(*data[:axis], size, *data[axis + 1 :]) for size in contents[1]]


def _pad(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    if data is None or None in data:
        return [None]
    pads = list(contents[1]) if 1 in contents else list(node.integers_attribute("pads") or ())
    axes = [axis % len(data) for axis in (contents[3] if node.is_present(3) else range(len(data)))]
    dims: list[Any] = list(data)
    for i, axis in enumerate(axes):
        dims[axis] = dims[axis] + pads[i] + pads[i + len(axes)]
    return [tuple(dims)]


def _range(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    start, limit, delta = (_whole_number(contents[i].item()) for i in range(3))
    if not all(isinstance(each, int | Extent) for each in (start, limit, delta)):
        return [None]
    return [(greatest((limit - start + delta - 1) // delta, 0),)] if delta > 0 else [None]


def _whole_number(element: Any) -> Any:
    """Return a whole float as an int, and any other element unchanged."""
    return int(element) if isinstance(element, float) and element.is_integer() else element


def _flatten(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    data = node.shape(0)
    if data is None or None in data:
        return [None]
    axis = node.integer_attribute("axis", 1)
    axis = axis + len(data) if axis < 0 else axis
    return [(prod(data[:axis]), prod(data[axis:]))]


def _depth_to_space(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    n, c, h, w = node.shape(0) or (None,) * 4
    block = node.integer_attribute("blocksize", 1)
    return [(n, c and c // block**2, h and h * block, w and w * block)]


def _space_to_depth(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    n, c, h, w = node.shape(0) or (None,) * 4
    block = node.integer_attribute("blocksize", 1)
    return [(n, c and c * block**2, h and h // block, w and w // block)]


def _resize(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    """Return the sizes in the content, or the shape times whole scales and halvings."""
    data, axes = node.shape(0), node.integers_attribute("axes")
    if data is None or node.text_attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return [None]
    if 3 not in contents:
        scales = contents[2 if node.version >= 11 else 1]
        return [None if axes and axes != tuple(range(len(data))) else _scale_shape(data, scales)]
    dims: list[Any] = list(data)
    for axis, size in zip(axes or range(len(data)), contents[3], strict=True):
        dims[axis] = size
    return [tuple(dims)]


def _scale_shape(shape: Extents, scales: Iterable[float]) -> Extents | None:
    """Return the shape times whole scales or halvings; None for a scale that rounds in floating point."""
    dims: list[Any] = []
    for extent, scale in zip(shape, scales, strict=True):
        whole, part = scale == int(scale) and scale >= 1, scale and 1 / scale
        if extent is None or not (whole or part == int(part)) or (not whole and int(part) & (int(part) - 1)):
            return None
        dims.append(extent * int(scale) if whole else extent // int(part))
    return tuple(dims)


def _topk(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    """Return the shape with K elements along the axis, where the content of K is known."""
    data = node.shape(0)
    if data is None:
        return [None, None]
    axis = node.integer_attribute("axis", -1) % len(data)
    count = contents[1].item() if 1 in contents else None
    shape = (*data[:axis], count, *data[axis + 1 :])
    return [shape, shape]


def _unique(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    """Return the extent of the third output, the place of each element: as many as elements, or along the axis."""
    data, axis = node.shape(0), node.integer_attribute("axis") if "axis" in node.attributes else None
    if data is None or None in data:
        return [None]
    return [None, None, (prod(data) if axis is None else data[axis],)]


def _einsum(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    terms, arrow, result = node.text_attribute("equation").replace(" ", "").partition("->")
    if not arrow or "." in terms:
        return [None]
    found: dict[str, Any] = {}
    for letters, shape in zip(terms.split(","), node.inputs, strict=True):
        for letter, extent in zip(letters, shape or (), strict=True):
            known = found.get(letter)
            found[letter] = extent if known is None or known == 1 else known
    return [tuple(found[letter] for letter in result)]


def _pool(node: NodeShapes, contents: Contents) -> list[Extents | None]:
    dims = pool_extents(node)
    return [dims, dims]


SHAPE_RULES: Mapping[str, ShapeRule] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _convolution(1, transposed=True),
    "Concat": _concat,
    "ConstantOfShape": lambda node, contents: [tuple(contents[0])],
    "DepthToSpace": _depth_to_space,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Tile": _tile,
    "TopK": _topk,
    "Unique": _unique,
}
"""Operator of ONNX's default domain -> the shapes of its outputs over ranges."""

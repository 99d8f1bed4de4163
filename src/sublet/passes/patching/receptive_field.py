"""Receptive fields: the area of the operands needed for an area of the output, and the node computing only the area.

Nodes with windows (convolutions, poolings) need the area under the windows; padding stays at the borders of the map and
is removed inside. Pointwise nodes need the same area. Other nodes are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.windows import Windows, windows_from_attrs

Area = tuple[tuple[int, int], ...]
"""(begin, end) along each of the two spatial axes."""

Axes = tuple[int, int]
"""The two spatial axes: height and width."""

NORMALIZATIONS = frozenset(("onnx.BatchNormalization", "nn.batch_norm_inference"))
"""Ops whose remaining operands have one element a channel."""

_ONNX = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Softplus", "Erf")
_MORE = (
    "Gelu",
    "Identity",
    "Neg",
    "Abs",
    "Sqrt",
    "Exp",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Min",
    "Max",
)
_NN = ("relu", "clip", "leaky_relu", "sigmoid", "hard_sigmoid", "hard_swish", "tanh", "elu", "gelu", "silu", "neg")
_NN_MORE = ("abs", "sqrt", "exp", "add", "sub", "mul", "div", "minimum", "maximum")

POINTWISE = frozenset(
    [*(f"onnx.{name}" for name in _ONNX + _MORE), *NORMALIZATIONS, *(f"nn.{name}" for name in _NN + _NN_MORE)]
)
"""Ops computing an output position from the same position of the operands, or from operands constant over positions."""

WINDOWED = frozenset(f"onnx.{name}" for name in ("Conv", "FusedConv", "MaxPool", "AveragePool")) | frozenset(
    ("nn.conv", "nn.max_pool", "nn.avg_pool")
)
"""Ops computing each output position from a window of the first operand."""


def spatial_extents(value: Value, axes: Axes) -> tuple[int, int] | None:
    """Return the spatial extents of a map with four axes, None for any other value."""
    spec = value.spec
    return (spec.shape[axes[0]], spec.shape[axes[1]]) if isinstance(spec, TensorSpec) and len(spec.shape) == 4 else None


def spec_of_area(value: Value, area: Area, axes: Axes) -> TensorSpec:
    """Return the type of an area of a map."""
    assert isinstance(value.spec, TensorSpec)
    shape = list(value.spec.shape)
    for axis, (begin, end) in zip(axes, area, strict=True):
        shape[axis] = end - begin
    return TensorSpec(value.spec.dtype, tuple(shape))


def spatial_axes_of(node: Node) -> Axes | None:
    """Return the spatial axes of a node with two-dimensional windows, None for any other node."""
    over = _windows_of(node)
    if over is None or len(over.kernel) != 2:
        return None
    return (1, 2) if node.attrs.get("layout") == "nhwc" else (2, 3)


def why_not_by_areas(node: Node, axes: Axes, maps: frozenset[Value]) -> str:
    """Return the reason why a node cannot be computed by areas, "" if possible.

    `maps` are the operands split into areas.
    """
    outs = node.defs
    if node.subgraphs or len(outs) != 1 or spatial_extents(outs[0], axes) is None:
        return "must have one output with four axes"
    if node.op in WINDOWED:
        over, size = _windows_of(node), spatial_extents(node.uses[0], axes)
        if over is None or spatial_axes_of(node) != axes or size is None or any(v in maps for v in node.uses[1:]):
            return "has windows of an unsupported kind"
        if any(pad >= span for pads in (over.begins, over.ends) for pad, span in zip(pads, over.spans, strict=True)):
            return "has windows that hold only padding"
        floor = Windows(over.kernel, over.strides, over.begins, over.ends, over.dilations)
        return (
            ""
            if floor.count_windows(size) == spatial_extents(outs[0], axes)
            else "has windows that extend beyond the map"
        )
    if node.op not in POINTWISE or (node.op in NORMALIZATIONS and node.attrs.get("axis", 1) in axes):
        return "reads more than the area of its output"
    for value in node.uses:
        size = spatial_extents(value, axes)
        if value in maps and size != spatial_extents(outs[0], axes):
            return "reads a map of other extents"
        if value not in maps and node.op not in NORMALIZATIONS and not _is_constant_over_map(value, axes):
            return "reads a map outside the front"
    return ""


def input_area(node: Node, area: Area, axes: Axes) -> Area:
    """Return the area of the operand maps needed for an area of the output."""
    over = _windows_of(node)
    if over is None:
        return area
    size = spatial_extents(node.uses[0], axes)
    assert size is not None
    return tuple(
        (max(0, begin * stride - before), min(whole, (end - 1) * stride - before + span))
        for (begin, end), whole, stride, before, span in zip(
            area, size, over.strides, over.begins, over.spans, strict=True
        )
    )


def attributes_for_area(node: Node, area: Area, axes: Axes) -> Mapping[str, Attr]:
    """Return the attributes of the node computing an area of the output from the area of `input_area`.

    The node pads only at the borders of the map.
    """
    over = _windows_of(node)
    if over is None:
        return node.attrs
    size = spatial_extents(node.uses[0], axes)
    assert size is not None
    begins, ends = [], []
    for (begin, end), whole, stride, before, span in zip(
        area, size, over.strides, over.begins, over.spans, strict=True
    ):
        first = begin * stride - before
        begins.append(max(0, -first))
        ends.append(max(0, (end - 1) * stride - before + span - whole))
    kept = {name: value for name, value in node.attrs.items() if name != "auto_pad"}
    return {**kept, "pads": (*begins, *ends)}


def _is_constant_over_map(value: Value, axes: Axes) -> bool:
    """True if an operand has one element for all positions of a map with four axes."""
    shape = value.spec.shape if isinstance(value.spec, TensorSpec) else (0,)
    aligned = (1,) * (4 - len(shape)) + tuple(shape)
    return len(aligned) == 4 and all(aligned[axis] == 1 for axis in axes)


def _windows_of(node: Node) -> Windows | None:
    """Return the windows of a node, or None for a node without windows or with unsupported windows."""
    if node.op not in WINDOWED or not node.uses or node.attrs.get("ceil_mode") or node.attrs.get("ceil"):
        return None
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    declared = node.attrs.get("kernel_shape") or node.attrs.get("kernel")
    shape = weight.spec.shape if weight is not None and isinstance(weight.spec, TensorSpec) else ()
    kernel = declared if isinstance(declared, tuple) else shape[2:]
    if len(kernel) != 2:
        return None
    attrs: dict[str, Attr] = dict(node.attrs)
    if attrs.pop("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    if node.op in ("nn.max_pool", "nn.avg_pool"):
        attrs["strides"] = attrs.get("strides") or tuple(int(extent) for extent in kernel)
    return windows_from_attrs(attrs, tuple(int(extent) for extent in kernel))

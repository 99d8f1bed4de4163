"""Which area of its operands a node needs for an area of its output, and what it looks like on that area alone.

Windows (convolutions, poolings) need what they lie over; at a border of the map the padding stays, inside there is
none. What computes each place from the same place needs the same area. Nothing else is known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.windows import Windows, windows

Area = tuple[tuple[int, int], ...]
"""From and to, for each of the two spatial axes."""

Axes = tuple[int, int]

NORMALIZATIONS = frozenset(("onnx.BatchNormalization", "nn.batch_norm_inference"))
"""Their other operands have an element for each channel."""

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
"""Each place of the output comes from the same place of the operands; other operands are the same at all places."""

WINDOWED = frozenset(f"onnx.{name}" for name in ("Conv", "FusedConv", "MaxPool", "AveragePool")) | frozenset(
    ("nn.conv", "nn.max_pool", "nn.avg_pool")
)


def extents(value: Value, axes: Axes) -> tuple[int, int] | None:
    """The spatial extents of a map of four axes; None of anything else."""
    spec = value.spec
    return (spec.shape[axes[0]], spec.shape[axes[1]]) if isinstance(spec, TensorSpec) and len(spec.shape) == 4 else None


def sized(value: Value, area: Area, axes: Axes) -> TensorSpec:
    """The type of an area of a map."""
    assert isinstance(value.spec, TensorSpec)
    shape = list(value.spec.shape)
    for axis, (begin, end) in zip(axes, area, strict=True):
        shape[axis] = end - begin
    return TensorSpec(value.spec.dtype, tuple(shape))


def axes_of(node: Node) -> Axes | None:
    """The spatial axes of a node with windows; None of any other, or of other than two."""
    over = _windows(node)
    if over is None or len(over.kernel) != 2:
        return None
    return (1, 2) if node.attrs.get("layout") == "nhwc" else (2, 3)


def obstacle(node: Node, axes: Axes, maps: frozenset[Value]) -> str:
    """Why a node cannot be computed by areas; "" where it can. `maps` are the operands that come in areas."""
    outs = node.defs
    if node.subgraphs or len(outs) != 1 or extents(outs[0], axes) is None:
        return "makes other than one map of four axes"
    if node.op in WINDOWED:
        over, size = _windows(node), extents(node.uses[0], axes)
        if over is None or axes_of(node) != axes or size is None or any(v in maps for v in node.uses[1:]):
            return "has windows of another kind"
        if any(pad >= span for pads in (over.begins, over.ends) for pad, span in zip(pads, over.spans, strict=True)):
            return "has windows of padding alone"
        floor = Windows(over.kernel, over.strides, over.begins, over.ends, over.dilations)
        return "" if floor.counts(size) == extents(outs[0], axes) else "has windows that stick out"
    if node.op not in POINTWISE or (node.op in NORMALIZATIONS and node.attrs.get("axis", 1) in axes):
        return "needs more than the area that it makes"
    for value in node.uses:
        size = extents(value, axes)
        if value in maps and size != extents(outs[0], axes):
            return "reads a map of other extents"
        if value not in maps and node.op not in NORMALIZATIONS and not _same_everywhere(value, axes):
            return "reads another map"
    return ""


def needed(node: Node, area: Area, axes: Axes) -> Area:
    """The area of the maps it reads that a node needs for an area of its output."""
    over = _windows(node)
    if over is None:
        return area
    size = extents(node.uses[0], axes)
    assert size is not None
    return tuple(
        (max(0, begin * stride - before), min(whole, (end - 1) * stride - before + span))
        for (begin, end), whole, stride, before, span in zip(
            area, size, over.strides, over.begins, over.spans, strict=True
        )
    )


def attributes(node: Node, area: Area, axes: Axes) -> Mapping[str, Attr]:
    """The attributes of a node that computes an area of its output from what `needed` says: padding at borders only."""
    over = _windows(node)
    if over is None:
        return node.attrs
    size = extents(node.uses[0], axes)
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


def _same_everywhere(value: Value, axes: Axes) -> bool:
    """Whether an operand has one element for all places of a map of four axes."""
    shape = value.spec.shape if isinstance(value.spec, TensorSpec) else (0,)
    aligned = (1,) * (4 - len(shape)) + tuple(shape)
    return len(aligned) == 4 and all(aligned[axis] == 1 for axis in axes)


def _windows(node: Node) -> Windows | None:
    """The windows of a node; None where it has none, or rare ones."""
    if node.op not in WINDOWED or not node.uses or node.attrs.get("ceil_mode") or node.attrs.get("ceil"):
        return None
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    told = node.attrs.get("kernel_shape") or node.attrs.get("kernel")
    shape = weight.spec.shape if weight is not None and isinstance(weight.spec, TensorSpec) else ()
    kernel = told if isinstance(told, tuple) else shape[2:]
    if len(kernel) != 2:
        return None
    attrs: dict[str, Attr] = dict(node.attrs)
    if attrs.pop("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    if node.op in ("nn.max_pool", "nn.avg_pool"):
        attrs["strides"] = attrs.get("strides") or tuple(int(extent) for extent in kernel)
    return windows(attrs, tuple(int(extent) for extent in kernel))

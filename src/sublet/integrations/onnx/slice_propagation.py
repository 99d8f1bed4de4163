"""Slice propagation for ONNX: the slices of the inputs an operator needs for a slice of its output, along one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.dialect import BINARY, EXTREMES, UNARY, VARIADIC
from sublet.ir.graph import Attr, Node


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """The elements [begin, end) along an axis."""

    axis: int
    begin: int
    end: int

    def sliced_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the slice of a tensor with the given spec."""
        shape = (*spec.shape[: self.axis], self.end - self.begin, *spec.shape[self.axis + 1 :])
        return TensorSpec(spec.dtype, shape)


@dataclass(frozen=True, slots=True)
class InputSlices:
    """The slices of the inputs, by position, and the changed attributes; inputs not listed are needed whole."""

    slices: Mapping[int, AxisSlice]
    attrs: Mapping[str, Attr] = field(default_factory=dict)


ELEMENTWISE = frozenset((*UNARY, *BINARY, *VARIADIC, *EXTREMES, "Gelu", "Identity", "Where"))
POOLS = frozenset(("AveragePool", "MaxPool"))
GLOBAL_POOLS = frozenset(("GlobalAveragePool", "GlobalMaxPool"))
BY_AXIS = frozenset(("LayerNormalization", "LogSoftmax", "Softmax"))
QUANTIZING = frozenset(("DequantizeLinear", "QuantizeLinear"))


def propagate_slice(node: Node, cut: AxisSlice) -> InputSlices | None:
    """Return the slices of the inputs needed for a slice of output 0; None if unknown or inexact."""
    name = node.op.removeprefix("onnx.")
    specs = [value.spec if value is not None else None for value in node.inputs]
    if not node.op.startswith("onnx.") or not specs or len([v for v in node.outputs if v is not None]) != 1:
        return None
    if node.outputs[0] is None or not all(spec is None or isinstance(spec, TensorSpec) for spec in specs):
        return None
    result, known = node.outputs[0].spec, [spec if isinstance(spec, TensorSpec) else None for spec in specs]
    if not isinstance(result, TensorSpec) or known[0] is None:
        return None
    if name in ELEMENTWISE or name in QUANTIZING:
        return _elementwise_slices(name, known, result, cut)
    if name == "Conv":
        return _conv_slices(node, known, cut)
    if name in POOLS:
        return _window_slices(node, known[0], cut) if cut.axis >= 2 else InputSlices({0: cut})
    if name in GLOBAL_POOLS:
        return InputSlices({0: cut}) if cut.axis < 2 else None
    if name == "BatchNormalization" and not node.attrs.get("training_mode", 0):
        channels = {i: AxisSlice(0, cut.begin, cut.end) for i in range(1, len(specs))} if cut.axis == 1 else {}
        return InputSlices({0: cut, **channels})
    if name in BY_AXIS:
        axis = node.attrs.get("axis", 1 if name != "LayerNormalization" else -1)
        rank = len(result.shape)
        return InputSlices({0: cut}) if isinstance(axis, int) and cut.axis < (axis + rank) % rank else None
    return _product_slices(name, node, known, cut)


def _elementwise_slices(
    name: str, specs: list[TensorSpec | None], result: TensorSpec, cut: AxisSlice
) -> InputSlices | None:
    """Return the slices for an element-wise operator; broadcast inputs are needed whole along the axis."""
    if name in QUANTIZING and any(spec is not None and spec.size != 1 for spec in specs[1:]):
        return None
    cuts: dict[int, AxisSlice] = {}
    for i, spec in enumerate(specs):
        axis = cut.axis - (len(result.shape) - len(spec.shape)) if spec is not None else -1
        if spec is not None and axis >= 0 and spec.shape[axis] != 1:
            if spec.shape[axis] != result.shape[cut.axis]:
                return None
            cuts[i] = AxisSlice(axis, cut.begin, cut.end)
    return InputSlices(cuts)


def _conv_slices(node: Node, specs: list[TensorSpec | None], cut: AxisSlice) -> InputSlices | None:
    """Return the slices for a convolution: batch, output channels (with the filters) or rows."""
    source, weight = specs[0], specs[1]
    if source is None or weight is None:
        return None
    if cut.axis == 0:
        return InputSlices({0: cut})
    if cut.axis >= 2:
        return _window_slices(node, source, cut, weight.shape[cut.axis])
    filters = {i: AxisSlice(0, cut.begin, cut.end) for i in range(1, len(specs)) if specs[i] is not None}
    group = node.attrs.get("group", 1)
    if group == 1:
        return InputSlices(filters)
    if group == source.shape[1] == weight.shape[0]:
        return InputSlices({0: cut, **filters}, {"group": cut.end - cut.begin})
    return None


def _window_slices(node: Node, source: TensorSpec, cut: AxisSlice, kernel: int | None = None) -> InputSlices | None:
    """Return the rows needed by a sliding window, and the padding left at both ends."""
    axis, rank = cut.axis - 2, len(source.shape) - 2
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET") or node.attrs.get("ceil_mode", 0):
        return None
    if kernel is None:
        kernel = _axis_attribute(node, "kernel_shape", axis)
    stride, dilation = _axis_attribute(node, "strides", axis), _axis_attribute(node, "dilations", axis)
    pads = node.attrs.get("pads", (0,) * (2 * rank))
    if not isinstance(pads, tuple) or len(pads) != 2 * rank or not all(isinstance(pad, int) for pad in pads):
        return None
    before = int(pads[axis])
    begin, end = cut.begin * stride - before, (cut.end - 1) * stride + (kernel - 1) * dilation + 1 - before
    changed = [int(pad) for pad in pads]
    changed[axis], changed[axis + rank] = max(0, -begin), max(0, end - source.shape[cut.axis])
    inside = AxisSlice(cut.axis, max(0, begin), min(end, source.shape[cut.axis]))
    return InputSlices({0: inside}, {"pads": tuple(changed)}) if inside.begin < inside.end else None


def _axis_attribute(node: Node, name: str, axis: int) -> int:
    """Return the entry of an attribute for an axis; 1 if the attribute is missing."""
    entries = node.attrs.get(name)
    return int(entries[axis]) if isinstance(entries, tuple) and axis < len(entries) else 1


def _product_slices(name: str, node: Node, specs: list[TensorSpec | None], cut: AxisSlice) -> InputSlices | None:
    """Return the slices for rows of a matrix product: the same rows of the first factor."""
    first, second = specs[0], specs[1] if len(specs) > 1 else None
    if first is None or second is None or len(second.shape) != 2 or cut.axis > len(first.shape) - 2:
        return None
    if name == "MatMul":
        return InputSlices({0: cut})
    if name != "Gemm" or node.attrs.get("transA", 0):
        return None
    added = specs[2] if len(specs) > 2 else None
    rows = added is not None and len(added.shape) == 2 and added.shape[0] != 1
    return InputSlices({0: cut, 2: cut} if rows else {0: cut})

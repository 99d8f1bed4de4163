"""Nodes with different output shapes in ONNX's shape inference and in ONNX Runtime; Sublet leaves the shape open."""

from __future__ import annotations

from sublet.frontends.onnx.rules.shape_rule import NodeShapes

LARGEST_I32 = (1 << 31) - 1


def has_disputed_shape(op_type: str, node: NodeShapes) -> bool:
    """True if ONNX's inference and ONNX Runtime give different shapes to the node's output."""
    if op_type == "Slice":
        return _slices_back_to_largest(node)
    return op_type == "STFT" and "onesided" not in node.attributes  # ONNX infers with 0, ONNX Runtime runs with 1


def _slices_back_to_largest(node: NodeShapes) -> bool:
    """True if a Slice with a negative step ends at the largest integer.

    In ONNX the end lies after the last element, and the slice is empty; ONNX Runtime reads the end as the beginning.
    """
    steps, ends = node.constant_inputs.get(4, ()), node.constant_inputs.get(2, ())
    return any(step < 0 and end >= LARGEST_I32 for step, end in zip(steps, ends, strict=False))

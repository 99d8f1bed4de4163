"""Nodes with different output shapes in ONNX's shape inference and in ONNX Runtime; Sublet leaves the shape open."""

from __future__ import annotations

from sublet.frontends.onnx.rules.rule import Seen

LARGEST = (1 << 31) - 1


def disputed(op_type: str, seen: Seen) -> bool:
    """True if ONNX's inference and ONNX Runtime give different shapes to the node's output."""
    if op_type == "Slice":
        return _backwards_to_the_largest(seen)
    return op_type == "STFT" and "onesided" not in seen.attributes  # ONNX infers with 0, ONNX Runtime runs with 1


def _backwards_to_the_largest(seen: Seen) -> bool:
    """True if a Slice with a negative step ends at the largest integer.

    In ONNX the end lies after the last element, and the slice is empty; ONNX Runtime reads the end as the beginning.
    """
    steps, ends = seen.numbers.get(4, ()), seen.numbers.get(2, ())
    return any(step < 0 and end >= LARGEST for step, end in zip(steps, ends, strict=False))

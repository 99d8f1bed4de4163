"""Shapes about which ONNX's shape inference and ONNX Runtime disagree: nobody can plan them."""

from __future__ import annotations

from sublet.frontends.onnx.rules.rule import Seen

LARGEST = (1 << 31) - 1


def disputed(op_type: str, seen: Seen) -> bool:
    """Whether what the node gives has one shape by ONNX's inference and another in ONNX Runtime."""
    if op_type == "Slice":
        return _backwards_to_the_largest(seen)
    return op_type == "STFT" and "onesided" not in seen.attributes  # inferred as if it were 0, and it is 1


def _backwards_to_the_largest(seen: Seen) -> bool:
    """The largest integer is a place after the end, so nothing is left; ONNX Runtime takes it for the beginning."""
    steps, ends = seen.numbers.get(4, ()), seen.numbers.get(2, ())
    return any(step < 0 and end >= LARGEST for step, end in zip(steps, ends, strict=False))

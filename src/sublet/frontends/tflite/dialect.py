"""The `tflite` dialect: TensorFlow Lite's operators as they are, "tflite.CONV_2D", with facts about TFLM's kernels.

Operators run in the order of the file, which no pass may change, so that none of them is pure. What a node's attribute
"outside" names lies in no arena, and is no view's base: the file's constants, and what outlasts a run. The last
"remembered" of its outputs are what the kernel leaves in the variables among its inputs, in their place.
"""

from __future__ import annotations

from functools import lru_cache

from sublet.ir.graph import Node
from sublet.ops.op import Op, Share, register

PREFIX = "tflite."


@lru_cache(maxsize=4096)
def tflite_op(name: str) -> Op:
    """The record of an operator."""
    return Op(name, inplace=_remembered, pure=False)


def _remembered(node: Node) -> tuple[Share, ...]:
    """Variables are changed where they are."""
    count = node.attrs.get("remembered", 0)
    assert isinstance(count, int)
    if not count:
        return ()
    if node.op.endswith(".ASSIGN_VARIABLE"):
        return (Share(0, 1),)
    return ()


register(PREFIX.rstrip("."), tflite_op)
registered = True

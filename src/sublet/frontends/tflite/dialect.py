"""The `tflite` dialect: TensorFlow Lite's operators as they are, "tflite.CONV_2D", with facts about TFLM's kernels.

Operators run in the order of the file, which no pass may change, so that none of them is pure. A node's attribute
"outside" has the positions of operands that lie in no arena, and are no view's base: the file's constants, and what
outlasts a run. "variables" has those that the kernel changes: what it leaves in them are the node's last outputs.
"""

from __future__ import annotations

from functools import lru_cache

from sublet.ir.graph import Node
from sublet.ops.op import Op, Share, register

PREFIX = "tflite."


@lru_cache(maxsize=4096)
def tflite_op(name: str) -> Op:
    """The record of an operator."""
    return Op(name, inplace=_changed, pure=False)


def positions(node: Node, name: str) -> tuple[int, ...]:
    """An attribute with positions of operands."""
    found = node.attrs.get(name, ())
    return tuple(int(position) for position in found) if isinstance(found, tuple) else ()


def _changed(node: Node) -> tuple[Share, ...]:
    """Variables are changed where they are."""
    variables = positions(node, "variables")
    first = len(node.outputs) - len(variables)
    return tuple(Share(first + i, position) for i, position in enumerate(variables))


register(PREFIX.rstrip("."), tflite_op)
registered = True

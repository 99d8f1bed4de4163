"""The `tflite` dialect: TensorFlow Lite's operators as they are, "tflite.CONV_2D", with facts about TFLM's kernels.

Operators run in the order of the file, which no pass may change, so that none of them is pure. A node's attribute
"outside" has the positions of operands that lie in no arena, and share no bytes: the file's constants, and what
outlasts a run. "variables" has those that the kernel changes: what it leaves in them are the node's last outputs.
"""

from __future__ import annotations

from functools import lru_cache, partial

from sublet.frontends.tflite.inplace import facts, overwriting
from sublet.frontends.tflite.views import PARTS, VIEWS
from sublet.ir.graph import Node
from sublet.ops.op import Op, Share, Shares, none, register

PREFIX = "tflite."


@lru_cache(maxsize=4096)
def tflite_op(name: str) -> Op:
    """The record of an operator; one of which nothing is known shares nothing."""
    of = name.removeprefix(PREFIX)
    view = of in facts()["views"] and of in VIEWS
    part = of in facts()["parts"] and of in PARTS
    return Op(
        name,
        views=partial(_inside, VIEWS[of]) if view else none,
        parts=partial(_inside, PARTS[of]) if part else none,
        inplace=partial(_in_place, of),
        pure=False,
    )


def _positions(node: Node, name: str) -> tuple[int, ...]:
    """An attribute with positions of operands."""
    found = node.attrs.get(name, ())
    return tuple(int(position) for position in found) if isinstance(found, tuple) else ()


def _inside(shares: Shares, node: Node) -> tuple[Share, ...]:
    """Views or parts, but of what lies in no arena."""
    outside = _positions(node, "outside")
    return tuple(share for share in shares(node) if share.input not in outside)


def _in_place(of: str, node: Node) -> tuple[Share, ...]:
    """Variables are changed where they are, other operands where the kernel reads what it has not written yet."""
    variables = _positions(node, "variables")
    first = len(node.outputs) - len(variables)
    changed = tuple(Share(first + i, position) for i, position in enumerate(variables))
    return (*overwriting(of, node, _positions(node, "outside")), *changed)


register(PREFIX.rstrip("."), tflite_op)
registered = True

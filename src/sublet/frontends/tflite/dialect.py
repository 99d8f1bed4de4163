"""The `tflite` dialect: TensorFlow Lite operators, as "tflite.CONV_2D", with facts on TFLM's kernels.

Operators run in file order, and no pass may reorder operators, so no operator is pure. The node attribute "outside"
lists positions of operands outside the arena, which share no bytes: constants of the file, and variables. The attribute
"variables" lists the positions of variables changed by the kernel; the last outputs of the node are the changed
contents.
"""

from __future__ import annotations

from functools import lru_cache, partial

from sublet.frontends.tflite.inplace import kernel_facts, overwritable_operands
from sublet.frontends.tflite.views import PARTS, VIEWS
from sublet.ir.graph import Node
from sublet.ops.op import Op, Share, Shares, no_shares, register

PREFIX = "tflite."


@lru_cache(maxsize=4096)
def tflite_op(name: str) -> Op:
    """Return the record of an operator; an operator without known facts shares no bytes."""
    operator = name.removeprefix(PREFIX)
    view = operator in kernel_facts()["views"] and operator in VIEWS
    part = operator in kernel_facts()["parts"] and operator in PARTS
    return Op(
        name,
        views=partial(_shares_in_arena, VIEWS[operator]) if view else no_shares,
        parts=partial(_shares_in_arena, PARTS[operator]) if part else no_shares,
        inplace=partial(_inplace_shares, operator),
        pure=False,
    )


def _positions_in(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute listing operand positions."""
    positions = node.attrs.get(name, ())
    return tuple(int(position) for position in positions) if isinstance(positions, tuple) else ()


def _shares_in_arena(shares: Shares, node: Node) -> tuple[Share, ...]:
    """Return the views or concat operands in place given by `shares`, without operands outside the arena."""
    outside = _positions_in(node, "outside")
    return tuple(share for share in shares(node) if share.input not in outside)


def _inplace_shares(of: str, node: Node) -> tuple[Share, ...]:
    """Return the in-place shares of a node.

    Variables are always changed in place. Further operands may be overwritten where the kernel was measured to be safe.
    """
    variables = _positions_in(node, "variables")
    first = len(node.outputs) - len(variables)
    changed = tuple(Share(first + i, position) for i, position in enumerate(variables))
    return (*overwritable_operands(of, node, _positions_in(node, "outside")), *changed)


register(PREFIX.rstrip("."), tflite_op)
registered = True

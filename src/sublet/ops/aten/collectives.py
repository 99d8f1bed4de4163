"""PyTorch's functional collectives, such as `_c10d_functional.all_reduce.default`: computations of a process group.

    begun = all_gather_into_tensor(x)      # may run concurrently with later operators
    y = wait_tensor(begun)                 # the same bytes, complete

A collective may read its input until the wait, so the wait reads the input too. All collectives run in the order of the
graph: every rank must call the same collectives in the same order.
"""

from __future__ import annotations

from functools import cache

from sublet.ir.graph import Node
from sublet.ops.aten.dialect import view_shares
from sublet.ops.op import Op, Share, no_shares

COLLECTIVES = "_c10d_functional."
WAIT = f"{COLLECTIVES}wait_tensor.default"

COPY_FIRST_ARGUMENT = (f"{COLLECTIVES}all_reduce.default", f"{COLLECTIVES}broadcast.default")
"""Collectives working on a copy of the first argument; the argument need not live until the wait."""


@cache
def collective_op(name: str) -> Op:
    """Return the record of a collective or of a wait."""
    if name == WAIT:
        return Op(name, views=view_shares, pure=False)
    return Op(name, inplace=_overwrite_first if name in COPY_FIRST_ARGUMENT else no_shares, pure=False)


def _overwrite_first(node: Node) -> tuple[Share, ...]:
    """Return the share of the output with input 0, for equal byte counts; a copy is then unnecessary."""
    sizes = [value.nbytes if value is not None else 0 for value in (node.inputs[0], node.outputs[0])]
    return tuple(share for share in view_shares(node) if not share.offset and sizes[0] == sizes[1])

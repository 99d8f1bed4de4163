"""PyTorch's functional collectives, `_c10d_functional.all_reduce.default`: what a group of processes computes together.

    begun = all_gather_into_tensor(x)      # may run on while other operators do
    y = wait_tensor(begun)                 # the same bytes, complete

Until the wait a collective may read what it was given, so the wait reads that too. All run, in the order of the graph:
every rank has to call the same.
"""

from __future__ import annotations

from functools import cache

from sublet.ir.graph import Node
from sublet.ops.aten.dialect import same_elements
from sublet.ops.op import Op, Share, none

COLLECTIVES = "_c10d_functional."
WAIT = f"{COLLECTIVES}wait_tensor.default"

COPYING = (f"{COLLECTIVES}all_reduce.default", f"{COLLECTIVES}broadcast.default")
"""They work on a copy of their first argument, which nobody has to keep for them."""


@cache
def collective(name: str) -> Op:
    """The record of a collective, or of a wait for one."""
    if name == WAIT:
        return Op(name, views=same_elements, pure=False)
    return Op(name, inplace=_over_the_first if name in COPYING else none, pure=False)


def _over_the_first(node: Node) -> tuple[Share, ...]:
    """Nothing need be copied where the result lies as an input does that ends here."""
    sizes = [value.nbytes if value is not None else 0 for value in (node.inputs[0], node.outputs[0])]
    return tuple(share for share in same_elements(node) if not share.offset and sizes[0] == sizes[1])

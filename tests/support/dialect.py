"""The "test" dialect: a few ops with every kind of fact, over plain bytes.

Its kernels live in `tests/support/interpreter.py`. Facts depend on the sizes of a node's operands alone.
"""

from __future__ import annotations

from sublet.base.errors import SubletError
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, no_shares, register


def _nbytes(value: Value | None) -> int:
    return 0 if value is None else value.nbytes


def _first_over_first(node: Node) -> tuple[Share, ...]:
    return (Share(0, 0),) if _nbytes(node.inputs[0]) == _nbytes(node.outputs[0]) else ()


def _over_any_of_its_size(node: Node) -> tuple[Share, ...]:
    size = _nbytes(node.outputs[0])
    return tuple(Share(0, i) for i, value in enumerate(node.inputs) if _nbytes(value) == size)


def _window(node: Node) -> tuple[Share, ...]:
    offset = node.attrs.get("offset", 0)
    assert isinstance(offset, int)
    return (Share(0, 0, offset),)


def _one_after_another(node: Node) -> tuple[Share, ...]:
    shares, offset = [], 0
    for i, value in enumerate(node.inputs):
        shares.append(Share(0, i, offset))
        offset += _nbytes(value)
    return tuple(shares)


def _cut_up(node: Node) -> tuple[Share, ...]:
    shares, offset = [], 0
    for i, value in enumerate(node.outputs):
        shares.append(Share(i, 0, offset))
        offset += _nbytes(value)
    return tuple(shares)


OPS = {
    # New bytes, never over an operand.
    "const": Op("test.const"),
    "matmul": Op("test.matmul"),
    "two": Op("test.two"),
    # Reads its operand (of any kind) and makes a value that cannot be planned, and back.
    "wrap": Op("test.wrap"),
    "unwrap": Op("test.unwrap"),
    # Small scalars that drive branches and loops.
    "choose": Op("test.choose"),
    "below": Op("test.below"),
    # Element-wise: may write over operands.
    "relu": Op("test.relu", inplace=_first_over_first),
    "add": Op("test.add", inplace=_over_any_of_its_size),
    "sub": Op("test.sub", inplace=_first_over_first),
    "norm": Op("test.norm", inplace=_first_over_first),
    # The same bytes under another name.
    "reshape": Op("test.reshape", views=_window),
    "slice": Op("test.slice", views=_window),
    "split": Op("test.split", views=_cut_up),
    "drop": Op("test.drop", views=lambda node: (Share(0, 0),)),
    # An output that contains operands; `pad` computes the bytes around its operand.
    "concat": Op("test.concat", parts=_one_after_another),
    "pad": Op("test.pad", parts=_window),
    # A concat of one operand is a view, too.
    "copy": Op("test.copy", views=_window, parts=_window, inplace=no_shares),
}
"""
relu(x)         element-wise                          const()          no operand
add(x, y, ...)  element-wise, may write over any      matmul(x, ...)   needs all operands to the end
sub(x, y)       element-wise, over its first only     two(x, ...)      two outputs, new bytes
norm(x, ...)    two outputs, the first over x         drop(x)          a view and a mask
reshape(x, _)   a view; a second operand is a shape   slice(x)         a view from attribute `offset` on
split(x)        views, one after another              concat(x, ...)   one after another
pad(x)          x from attribute `offset` on          copy(x)          a view and a part
"""


def op(name: str) -> Op:
    """The record of `test.*`. Raises SubletError for a name that is not in the table."""
    try:
        return OPS[name.partition(".")[2]]
    except KeyError:
        raise SubletError(f"no such test op: {name}") from None


register("test", op)

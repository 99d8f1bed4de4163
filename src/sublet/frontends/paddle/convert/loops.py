"""Conversion of `while` to a loop node: outer variables assigned in the body become loop-carried values.

Paddle computes the condition before the loop and at the end of each iteration, so the condition is loop-carried too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import ModelError
from sublet.base.tensor import Dims
from sublet.frontends.paddle.convert.scope import COUNT, Conversion, Converter, Scope, assigned, dims_of, title
from sublet.frontends.paddle.operators.shapes import Key, joined
from sublet.ir.graph import Graph, Node, Value, While


def add_loop(conversion: Conversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the loop node, after a node for each unwritten loop-carried variable.

    Raises ModelError for a loop without a body or a condition.
    """
    op = conversion.program.blocks[block].ops[position]
    body, condition, name = op.block(), op.input("Condition"), title(block, position, op)
    source = f"block {block}, operator {position}"
    if body is None or condition is None:
        raise ModelError(f"{conversion.where}: {source}: a loop without a condition")
    writes = assigned(conversion.program, body)
    carried = [key for key in writes if key in conversion.wanted]
    before: list[Node] = []
    inits = [conversion.initial(key, scope, before) for key in carried]
    extents = [_extents(conversion, init, key, writes[key]) for key, init in zip(carried, inits, strict=True)]
    inner = dict(scope)
    parameters = _assign(conversion, carried, extents, inner)
    flag = conversion.flag(block, condition, inner)
    counter = Value(conversion.fresh(f"{name}.round"), COUNT)
    nodes = convert(conversion, body, inner)
    updates = tuple(inner[key] for key in carried)
    graph = Graph(f"block{body}", (counter, *parameters), tuple(nodes), updates)
    finals = _assign(conversion, carried, extents, scope)
    loop = While(
        name, "while", tuple(inits), tuple(finals), {}, source, body=graph, condition=flag, carried=len(carried)
    )
    return [*before, loop]


def _extents(conversion: Conversion, init: Value, key: Key, writes: Sequence[tuple[int, int]]) -> Dims:
    """Return the extents common to the initial value and all assignments in the body."""
    dims = dims_of(init)
    for block, position in writes:
        dims = joined(dims, conversion.sizes.written.get((block, position, key[1])))
    return dims


def _assign(conversion: Conversion, keys: Sequence[Key], extents: Sequence[Dims], scope: Scope) -> list[Value]:
    """Bind each variable to a new value in the scope, and return the new values."""
    values = [conversion.value(key, dims) for key, dims in zip(keys, extents, strict=True)]
    scope.update(zip(keys, values, strict=True))
    return values

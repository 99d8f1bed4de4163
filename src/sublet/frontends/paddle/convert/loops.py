"""Conversion of `while` to a loop node: outer variables assigned in the body become loop-carried values.

Paddle computes the condition before the loop and at the end of each iteration, so the condition is loop-carried too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import ModelError
from sublet.base.tensor import Dims
from sublet.frontends.paddle.convert.scope import (
    COUNTER_SPEC,
    Converter,
    PaddleConversion,
    Scope,
    dims_of,
    node_name,
    outer_assignments,
)
from sublet.frontends.paddle.operators.shapes import VariableKey, join_dims
from sublet.ir.graph import Graph, Node, Value, While


def add_loop(conversion: PaddleConversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the loop node, after a node for each unwritten loop-carried variable.

    Raises ModelError for a loop without a body or a condition.
    """
    op = conversion.program.blocks[block].ops[position]
    body, condition, name = op.block_index(), op.first_input("Condition"), node_name(block, position, op)
    source = f"block {block}, operator {position}"
    if body is None or condition is None:
        raise ModelError(f"{conversion.where}: {source}: a loop without a condition")
    writes = outer_assignments(conversion.program, body)
    carried = [key for key in writes if key in conversion.wanted]
    before: list[Node] = []
    inits = [conversion.value_before_control_flow(key, scope, before) for key in carried]
    extents = [_common_extents(conversion, init, key, writes[key]) for key, init in zip(carried, inits, strict=True)]
    inner = dict(scope)
    parameters = _bind_new_values(conversion, carried, extents, inner)
    flag = conversion.condition_value(block, condition, inner)
    counter = Value(conversion.fresh_name(f"{name}.round"), COUNTER_SPEC)
    nodes = convert(conversion, body, inner)
    updates = tuple(inner[key] for key in carried)
    graph = Graph(f"block{body}", (counter, *parameters), tuple(nodes), updates)
    finals = _bind_new_values(conversion, carried, extents, scope)
    loop = While(
        name, "while", tuple(inits), tuple(finals), {}, source, body=graph, condition=flag, carried=len(carried)
    )
    return [*before, loop]


def _common_extents(
    conversion: PaddleConversion, init: Value, key: VariableKey, writes: Sequence[tuple[int, int]]
) -> Dims:
    """Return the extents common to the initial value and all assignments in the body."""
    dims = dims_of(init)
    for block, position in writes:
        dims = join_dims(dims, conversion.sizes.dims_at_writes.get((block, position, key[1])))
    return dims


def _bind_new_values(
    conversion: PaddleConversion, keys: Sequence[VariableKey], extents: Sequence[Dims], scope: Scope
) -> list[Value]:
    """Bind each variable to a new value in the scope, and return the new values."""
    values = [conversion.new_value(key, dims) for key, dims in zip(keys, extents, strict=True)]
    scope.update(zip(keys, values, strict=True))
    return values

"""Whether two variables of an operator have one type and shape, for whatever an open extent turns out to be.

Declared extents that are closed say it. An open one (-1) may be another for each variable, even of one operator:
rows that a sequence's step has no more of. Then it takes an operator that gives its output the shape of X.
"""

from __future__ import annotations

from sublet.frontends.paddle.format.program import GRAD, TENSOR, Op, Program, Var

KEEPING = frozenset(
    {
        *("assign", "dropout", "layer_norm", "logical_not", "relu", "scale", "sigmoid", "softmax", "square", "tanh"),
        *("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div"),
    }
)
"""Operators whose output has the shape of X, if that of Y, where there is one, is closed and has fewer axes."""


def found(program: Program, block: int, name: str | None) -> Var | None:
    """What a name means in a block; in a gradient block it may be a forward value."""
    forward = max(program.blocks[block].forward, 0)
    if name is None:
        return None
    return program.blocks[block].vars.get(name) or program.blocks[forward].vars.get(name) or program.var(block, name)


def alike(program: Program, block: int, op: Op, one: Var, other: Var) -> bool:
    """Whether two tensors have one type, shape and level of detail when an operator runs."""
    if one.dtype is None or one.kind != TENSOR or other.kind != TENSOR:
        return False
    if (one.dtype, one.dims, one.lod_level) != (other.dtype, other.dims, other.lod_level):
        return False
    return min(one.dims, default=0) >= 0 or _keeps(program, block, op, one, other)


def _keeps(program: Program, block: int, op: Op, one: Var, other: Var) -> bool:
    """Whether an operator gives what both names stand for the shape of X."""
    kind = op.type.removesuffix("_grad")
    if kind not in KEEPING:
        return False
    if kind.startswith("elementwise"):
        y = found(program, block, op.input("Y"))
        if y is None or min(y.dims, default=0) < 0 or len(y.dims) >= len(one.dims):
            return False
    whole = {
        name
        for side in (op.inputs, op.outputs)
        for slot, names in side.items()
        for name in names
        if slot.removesuffix(GRAD) in ("X", "Out", "Y")
    }
    return {one.name, other.name} <= whole

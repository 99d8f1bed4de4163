"""Shape equality: proof of equal type and shape of two variables at an operator, for any value of open extents.

Closed declared extents decide at once. An open extent (-1) may differ between variables, even of the same operator: the
steps of sequences have fewer and fewer rows. In this case, the operator must give its output the shape of X.
"""

from __future__ import annotations

from sublet.frontends.paddle.format.program import GRAD, TENSOR, PaddleOp, PaddleProgram, PaddleVar

SHAPE_PRESERVING = frozenset(
    {
        *("assign", "dropout", "layer_norm", "logical_not", "relu", "scale", "sigmoid", "softmax", "square", "tanh"),
        *("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div"),
    }
)
"""Operators with an output of X's shape, if Y (for a binary operator) has closed extents and fewer axes."""


def visible_var(program: PaddleProgram, block: int, name: str | None) -> PaddleVar | None:
    """Return the variable of a name used in a block, or None; in a gradient block possibly a forward value."""
    forward = max(program.blocks[block].forward, 0)
    if name is None:
        return None
    return (
        program.blocks[block].vars.get(name) or program.blocks[forward].vars.get(name) or program.find_var(block, name)
    )


def have_equal_shapes(program: PaddleProgram, block: int, op: PaddleOp, one: PaddleVar, other: PaddleVar) -> bool:
    """Return True if two tensors have equal type, shape and level of detail whenever the operator runs."""
    if one.dtype is None or one.kind != TENSOR or other.kind != TENSOR:
        return False
    if (one.dtype, one.dims, one.lod_level) != (other.dtype, other.dims, other.lod_level):
        return False
    return min(one.dims, default=0) >= 0 or _preserves_shape(program, block, op, one, other)


def _preserves_shape(program: PaddleProgram, block: int, op: PaddleOp, one: PaddleVar, other: PaddleVar) -> bool:
    """Return True if both variables are main operands or results of an operator that preserves the shape of X."""
    kind = op.type.removesuffix("_grad")
    if kind not in SHAPE_PRESERVING:
        return False
    if kind.startswith("elementwise"):
        y = visible_var(program, block, op.first_input("Y"))
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

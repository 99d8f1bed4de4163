"""Loop invariants: a training loop does not copy read-only inputs for each iteration.

Paddle 2 and 3 copy each input of a training `while` into the scope of each iteration, for the gradient. Exceptions are
weights, and names both read and written by an operator of the body. `assign X -> X` is such an operator and copies
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from sublet.frontends.paddle.format.program import PaddleAttr, PaddleOp, PaddleProgram, new_op
from sublet.frontends.paddle.lives.scopes import PaddleScopes

INHERITED_ATTRIBUTES = ("op_role", "op_device", "op_namescope")
"""Attributes common to all types of operators."""


def assign_loop_invariants(program: PaddleProgram) -> PaddleProgram:
    """Return the program with an `assign X -> X` at the beginning of each training loop for each read-only tensor."""
    scopes, blocks = PaddleScopes(program), list(program.blocks)
    for body, copied in scopes.copied_inputs.items():
        owner = scopes.owners[body]
        written = {
            name for block in scopes.nested_blocks(body) for op in program.blocks[block].ops for name in op.writes
        }
        names = [
            name for name in owner.op.inputs["X"] if name in copied - written and _is_not_scalar(program, body, name)
        ]
        first = tuple(
            new_op("assign", {"X": [name]}, {"Out": [name]}, inherited_attributes(owner.op)) for name in names
        )
        blocks[body] = replace(blocks[body], ops=(*first, *blocks[body].ops))
    return replace(program, blocks=tuple(blocks))


def _is_not_scalar(program: PaddleProgram, body: int, name: str) -> bool:
    """Return True if the tensor is not a scalar. For a scalar, an additional operator would cost more than the copy."""
    var = program.find_var(program.blocks[body].parent, name)
    return var is not None and prod(var.dims) != 1


def inherited_attributes(op: PaddleOp) -> dict[str, PaddleAttr]:
    """Return the attributes inherited by a new operator from the given operator."""
    return {name: attr for name, attr in op.attrs.items() if name in INHERITED_ATTRIBUTES}

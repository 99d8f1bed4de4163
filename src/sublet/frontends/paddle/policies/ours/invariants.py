"""Loop invariants: what a training loop only reads is not copied for every trip.

Paddle 2 and 3 copy each input of a training `while` into the scope of every trip, for the gradient to find, except
weights and what an operator of the body both reads and writes. `assign X -> X` is such an operator, and copies nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from sublet.frontends.paddle.format.program import Attr, Op, Program, new_op
from sublet.frontends.paddle.lives.scopes import Scopes

TOLD = ("op_role", "op_device", "op_namescope")
"""Attributes that every operator has, whatever it computes."""


def loop_invariants(program: Program) -> Program:
    """The program whose training loops first assign each tensor that they only read to itself."""
    scopes, blocks = Scopes(program), list(program.blocks)
    for body, copied in scopes.copied.items():
        owner = scopes.owners[body]
        written = {name for block in scopes.inside(body) for op in program.blocks[block].ops for name in op.writes}
        names = [name for name in owner.op.inputs["X"] if name in copied - written and _large(program, body, name)]
        first = tuple(new_op("assign", {"X": [name]}, {"Out": [name]}, told(owner.op)) for name in names)
        blocks[body] = replace(blocks[body], ops=(*first, *blocks[body].ops))
    return replace(program, blocks=tuple(blocks))


def _large(program: Program, body: int, name: str) -> bool:
    """Whether a tensor is more than a number: an operator for a counter would cost more than its copy."""
    var = program.var(program.blocks[body].parent, name)
    return var is not None and prod(var.dims) != 1


def told(op: Op) -> dict[str, Attr]:
    """The attributes that an operator made for another has from it."""
    return {name: attr for name, attr in op.attrs.items() if name in TOLD}

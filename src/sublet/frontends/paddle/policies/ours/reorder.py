"""Reordering: each operator of the optimiser runs as soon as its gradient is complete, so that gradients die early.

Only the outermost block is reordered. An operator goes up until one that writes what it reads, or that mentions what it
writes: the same values are computed from the same values.
"""

from __future__ import annotations

from dataclasses import replace

from sublet.frontends.paddle.format.program import Op, Program
from sublet.frontends.paddle.lives.scopes import Scopes
from sublet.frontends.paddle.operators.effects import there

OPTIMISER = 2
"""The bit of the attribute `op_role` with which Paddle marks the optimiser's operators."""


def optimise_early(program: Program) -> Program:
    """The program with the optimiser's operators moved up in the outermost block, each as far as it can go."""
    first, *others = program.blocks
    scopes = Scopes(program)
    done: list[Op] = []
    touched: list[tuple[set[str], set[str]]] = []
    for op in first.ops:
        reads, writes = _touches(scopes, op)
        at = len(done)
        if optimises(op):
            while at and not touched[at - 1][1] & (reads | writes) and not touched[at - 1][0] & writes:
                at -= 1
            while at < len(done) and optimises(done[at]):  # these stay in the order they had
                at += 1
        done.insert(at, op)
        touched.insert(at, (reads, writes))
    return replace(program, blocks=(replace(first, ops=tuple(done)), *others))


def optimises(op: Op) -> bool:
    """Whether an operator updates a weight from its gradient, and runs no block for it."""
    role = op.attrs.get("op_role")
    marked = role is not None and isinstance(role.value, int) and bool(role.value & OPTIMISER)
    return marked and {"Param", "Grad"} <= op.inputs.keys() and op.block() is None


def _touches(scopes: Scopes, op: Op) -> tuple[set[str], set[str]]:
    """The names that an operator reads and those that it writes, with those of the blocks it runs."""
    inner = op.block()
    blocks = () if inner is None else tuple(scopes.inside(inner))
    ops = (op, *(each for block in blocks for each in scopes.program.blocks[block].ops))
    return {name for each in ops for name in there(each.reads)}, {name for each in ops for name in there(each.writes)}

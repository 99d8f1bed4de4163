"""Reordering: each weight update runs as soon as its gradient is complete, to end the gradient's live range early.

Only block 0 is reordered. An update moves up to the nearest operator that writes one of its operands, or mentions one
of its outputs. The values stay the same.
"""

from __future__ import annotations

from dataclasses import replace

from sublet.frontends.paddle.format.program import PaddleOp, PaddleProgram
from sublet.frontends.paddle.lives.scopes import PaddleScopes
from sublet.frontends.paddle.operators.effects import nonempty_names

OPTIMIZER_ROLE = 2
"""Paddle's bit for operators of the optimizer in the attribute `op_role`."""


def run_updates_early(program: PaddleProgram) -> PaddleProgram:
    """Return the program with each weight update of block 0 moved up as far as possible; updates keep their order."""
    first, *others = program.blocks
    scopes = PaddleScopes(program)
    done: list[PaddleOp] = []
    touched: list[tuple[set[str], set[str]]] = []
    for op in first.ops:
        reads, writes = _names_touched(scopes, op)
        at = len(done)
        if is_weight_update(op):
            while at and not touched[at - 1][1] & (reads | writes) and not touched[at - 1][0] & writes:
                at -= 1
            while at < len(done) and is_weight_update(done[at]):  # updates keep their order
                at += 1
        done.insert(at, op)
        touched.insert(at, (reads, writes))
    return replace(program, blocks=(replace(first, ops=tuple(done)), *others))


def is_weight_update(op: PaddleOp) -> bool:
    """Return True if the operator updates a weight from a gradient, and runs no block."""
    role = op.attrs.get("op_role")
    marked = role is not None and isinstance(role.value, int) and bool(role.value & OPTIMIZER_ROLE)
    return marked and {"Param", "Grad"} <= op.inputs.keys() and op.block_index() is None


def _names_touched(scopes: PaddleScopes, op: PaddleOp) -> tuple[set[str], set[str]]:
    """Return the names read and the names written by an operator and its nested blocks."""
    inner = op.block_index()
    blocks = () if inner is None else tuple(scopes.nested_blocks(inner))
    ops = (op, *(each for block in blocks for each in scopes.program.blocks[block].ops))
    return {name for each in ops for name in nonempty_names(each.reads)}, {
        name for each in ops for name in nonempty_names(each.writes)
    }

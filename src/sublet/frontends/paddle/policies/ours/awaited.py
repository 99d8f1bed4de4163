"""Updates awaited: what comes after an operator of the optimiser waits for it, whatever order the executor takes.

After its first run Paddle's executor runs operators as soon as what they read is there. Nothing reads an updated weight
before the next run, so updates would come late, and gradients be there meanwhile. `depend` computes nothing: it
hands on X under its own name, once all of `Dep` is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sublet.frontends.paddle.format.program import TENSOR, Block, Op, Program, new_op
from sublet.frontends.paddle.operators.effects import effects
from sublet.frontends.paddle.policies.ours.invariants import told
from sublet.frontends.paddle.policies.ours.reorder import optimises
from sublet.tensor import DType

DEPEND = "depend"
DEPENDING = 2_006_000
"""The first version in which `depend` was tried."""
TAKEN = (DType.F32, DType.F64)
"""Types of elements of its X; from 3.0 on there is none for conditions."""
UNSURE = ("assign", "select_input", "select_output")
"""Operators that may leave what they write unwritten, as those do that run blocks."""


def updates_awaited(program: Program, keep: Collection[str] = ()) -> Program:
    """The program whose outermost block has a `depend` behind updates, wherever they are followed by something else.
    What is fetched, `keep`, is never what hands on."""
    if program.version < DEPENDING:
        return program
    first, *others = program.blocks
    ops: list[Op] = []
    updates: list[Op] = []
    written = set[str]()
    for op in first.ops:
        if optimises(op):
            updates.append(op)
        elif op.type == DEPEND:
            updates.clear()
        elif updates and (name := _awaiting(first, op, written.difference(keep))):
            weights = [name for update in updates for name in update.outputs["ParamOut"]]
            ops.append(new_op(DEPEND, {"X": [name], "Dep": weights}, {"Out": [name]}, told(updates[-1])))
            updates.clear()
        ops.append(op)
        if op.block() is None and op.type not in UNSURE:
            written.update(op.writes)
        else:
            written.difference_update(op.writes)
    return replace(program, blocks=(replace(first, ops=tuple(ops)), *others))


def _awaiting(block: Block, op: Op, written: Collection[str]) -> str | None:
    """What an operator reads that is surely there: it waits for what that is made to wait for.

    Of what it asks only the shape, `depend` would keep the bytes.
    """
    tensors = (block.vars[name] for name in effects(op).reads if name in written and name in block.vars)
    taken = (var for var in tensors if var.kind == TENSOR and var.dtype in TAKEN and not var.persistable)
    return next((var.name for var in taken), None)

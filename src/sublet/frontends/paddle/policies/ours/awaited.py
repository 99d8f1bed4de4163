"""Updates awaited: what comes after an operator of the optimiser waits for it, whatever order the executor takes.

After its first run Paddle's executor runs operators as soon as what they read is there. Nothing reads an updated weight
before the next run, so updates would come late, and gradients be there meanwhile. `depend` computes nothing: it
hands on X under its own name, once all of `Dep` is written.

A gradient that has been used is freed on a thread of its own, which may come late as well. So `share_data` makes it a
view of that X first, and its own bytes go at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from sublet.base.tensor import DType
from sublet.frontends.paddle.format.program import GRAD, TENSOR, Block, Op, Program, Var, new_op
from sublet.frontends.paddle.operators.effects import effects
from sublet.frontends.paddle.policies.ours.invariants import told
from sublet.frontends.paddle.policies.ours.reorder import optimises

DEPEND, SHARE = "depend", "share_data"
DEPENDING = 2_006_000
"""The first version in which `depend` was tried."""
TAKEN = (DType.F32, DType.F64)
"""Types of elements of its X; from 3.0 on there is none for conditions."""
UNSURE = ("assign", "select_input", "select_output")
"""Operators that may leave what they write unwritten, as those do that run blocks."""
RESULTS = ("Out", "Output", "Y")
"""Slots of results, beside those of gradients. What is noted in others, as XShape, may have no memory to share."""
LARGE = 1024
"""Elements of a gradient that is let go at once: a smaller one is not worth an operator."""


def updates_awaited(program: Program, keep: Collection[str] = ()) -> Program:
    """The program whose outermost block has a `depend` behind updates, wherever they are followed by something else.
    What is fetched, `keep`, neither hands on nor is let go.
    """
    if program.version < DEPENDING:
        return program
    first, *others = program.blocks
    used = _used_up(program, keep)
    ops: list[Op] = []
    updates: list[Op] = []
    written = set[str]()
    for op in first.ops:
        if optimises(op):
            updates.append(op)
        elif op.type == DEPEND:
            updates.clear()
        elif updates and op.type != SHARE and (x := _awaiting(first, op, written.difference(keep))):
            ops += _let_go(x, updates, used)
            ops.append(_waiting(x, updates))
            updates.clear()
        ops.append(op)
        written.difference_update(op.writes)
        if op.block() is None and op.type not in UNSURE:
            written.update(_results(op))
    return replace(program, blocks=(replace(first, ops=tuple(ops)), *others))


def _results(op: Op) -> Iterator[str]:
    for slot, names in op.outputs.items():
        if slot in RESULTS or slot.endswith(GRAD):
            yield from names


def _awaiting(block: Block, op: Op, written: Collection[str]) -> Var | None:
    """What an operator reads that is surely there: it waits for what that is made to wait for.

    Of what it asks only the shape, `depend` would keep the bytes.
    """
    tensors = (block.vars[name] for name in effects(op).reads if name in written and name in block.vars)
    return next((var for var in tensors if _passing(var)), None)


def _passing(var: Var) -> bool:
    return var.kind == TENSOR and var.dtype in TAKEN and not var.persistable


def _waiting(x: Var, updates: Sequence[Op]) -> Op:
    weights = [name for update in updates for name in update.outputs["ParamOut"]]
    return new_op(DEPEND, {"X": [x.name], "Dep": weights}, {"Out": [x.name]}, told(updates[-1]))


def _let_go(x: Var, updates: Sequence[Op], used: Mapping[str, DType | None]) -> Iterator[Op]:
    """For each gradient that is used up, what makes it a view of X, which is there anyway."""
    for update in updates:
        for name in update.inputs["Grad"]:
            if used.get(name) == x.dtype:
                yield new_op(SHARE, {"X": [x.name]}, {"Out": [name]}, told(update))


def _used_up(program: Program, keep: Collection[str]) -> dict[str, DType | None]:
    """The large gradients that no operator mentions after an update with them, and their types of elements."""
    first, *others = program.blocks
    last = {name: op for op in first.ops for name in (*op.reads, *op.writes)}
    inside = {name for block in others for op in block.ops for name in (*op.reads, *op.writes)}
    return {
        name: var.dtype
        for name, var in first.vars.items()
        if name in last and name not in inside and name not in keep and _passing(var)
        if optimises(last[name]) and name in last[name].inputs["Grad"] and prod(var.dims) >= LARGE
    }

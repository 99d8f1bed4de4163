"""Update barriers: operators after a weight update wait for the update, in any execution order.

After its first run, Paddle's executor starts an operator as soon as the operands are present. No operator reads an
updated weight before the next run, so updates would run late, with the gradients live meanwhile. The operator `depend`
computes nothing: it passes X on under the same name, after all of `Dep` is written.

Paddle frees a used gradient on a separate thread, possibly late. A `share_data` before the barrier makes the gradient a
view of X, and thereby frees the gradient's own bytes at once.
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
"""The first tested version of `depend`."""
TAKEN = (DType.F32, DType.F64)
"""Element types of the operand X of `depend`; since 3.0 without bool."""
UNSURE = ("assign", "select_input", "select_output")
"""Operators that may leave their outputs unwritten, as operators with blocks do."""
RESULTS = ("Out", "Output", "Y")
"""Slots of results, beside gradient slots. Outputs in further slots, such as XShape, may have no memory to share."""
LARGE = 1024
"""Least elements of a released gradient: a smaller gradient is not worth an operator."""


def updates_awaited(program: Program, keep: Collection[str] = ()) -> Program:
    """Return the program with a `depend` after updates in block 0, wherever another operator follows.

    Variables in `keep` (fetched) are neither operands of a barrier nor released. Programs older than DEPEND_SINCE stay.
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
    """Yield the results of an operator: the names in result slots and gradient slots."""
    for slot, names in op.outputs.items():
        if slot in RESULTS or slot.endswith(GRAD):
            yield from names


def _awaiting(block: Block, op: Op, written: Collection[str]) -> Var | None:
    """Return an operand of `op` suitable for a barrier before `op`, or None: a tensor surely written before.

    An operand read only for its shape does not qualify: `depend` would keep the bytes live.
    """
    tensors = (block.vars[name] for name in effects(op).reads if name in written and name in block.vars)
    return next((var for var in tensors if _passing(var)), None)


def _passing(var: Var) -> bool:
    """Return True if `depend` supports the variable: a dense tensor of a supported type, not persistable."""
    return var.kind == TENSOR and var.dtype in TAKEN and not var.persistable


def _waiting(x: Var, updates: Sequence[Op]) -> Op:
    """Return the `depend` operator: X waits for the weights of all updates."""
    weights = [name for update in updates for name in update.outputs["ParamOut"]]
    return new_op(DEPEND, {"X": [x.name], "Dep": weights}, {"Out": [x.name]}, told(updates[-1]))


def _let_go(x: Var, updates: Sequence[Op], used: Mapping[str, DType | None]) -> Iterator[Op]:
    """Yield a `share_data` for each used gradient of X's type, to free the gradient's bytes."""
    for update in updates:
        for name in update.inputs["Grad"]:
            if used.get(name) == x.dtype:
                yield new_op(SHARE, {"X": [x.name]}, {"Out": [name]}, told(update))


def _used_up(program: Program, keep: Collection[str]) -> dict[str, DType | None]:
    """Return the element types of large gradients with their last mention at a weight update."""
    first, *others = program.blocks
    last = {name: op for op in first.ops for name in (*op.reads, *op.writes)}
    inside = {name for block in others for op in block.ops for name in (*op.reads, *op.writes)}
    return {
        name: var.dtype
        for name, var in first.vars.items()
        if name in last and name not in inside and name not in keep and _passing(var)
        if optimises(last[name]) and name in last[name].inputs["Grad"] and prod(var.dims) >= LARGE
    }

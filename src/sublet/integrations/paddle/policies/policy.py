"""The passes in order, and the policy that runs all passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import (
    GRAD,
    TENSOR,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
)
from sublet.integrations.paddle.operators.dialect import effects_of, nonempty_names
from sublet.integrations.paddle.peaks.scopes import PaddleScopes
from sublet.integrations.paddle.policies.inplace import rename_in_place, use_shape_proxies
from sublet.integrations.paddle.policies.temporaries import (
    assign_loop_invariants,
    inherited_attributes,
    move_temporaries_outside,
)

# Update barriers: operators after a weight update wait for the update, in any execution order.
#
# After its first run, Paddle's executor starts an operator as soon as the operands are present. No operator reads an
# updated weight before the next run, so updates would run late, with the gradients live meanwhile. The operator
# `depend` computes nothing: it passes X on under the same name, after all of `Dep` is written.
#
# Paddle frees a used gradient on a separate thread, possibly late. A `share_data` before the barrier makes the gradient
# a view of X, and thereby frees the gradient's own bytes at once.

DEPEND, SHARE = "depend", "share_data"
DEPEND_SINCE = 2_006_000
"""The first tested version of `depend`."""
DEPEND_DTYPES = (DType.F32, DType.F64)
"""Element types of the operand X of `depend`; since 3.0 without bool."""
MAYBE_UNWRITTEN_OUTPUTS = ("assign", "select_input", "select_output")
"""Operators that may leave their outputs unwritten, as operators with blocks do."""
RESULT_SLOTS = ("Out", "Output", "Y")
"""Slots of results, beside gradient slots. Outputs in further slots, such as XShape, may have no memory to share."""
MIN_RELEASED_ELEMENTS = 1024
"""Least elements of a released gradient: a smaller gradient is not worth an operator."""


def add_update_barriers(program: PaddleProgram, keep: Collection[str] = ()) -> PaddleProgram:
    """Return the program with a `depend` after updates in block 0, wherever another operator follows.

    Variables in `keep` (fetched) are neither operands of a barrier nor released. Programs older than DEPEND_SINCE stay.
    """
    if program.version < DEPEND_SINCE:
        return program
    first, *others = program.blocks
    used = _used_gradients(program, keep)
    ops: list[PaddleOp] = []
    updates: list[PaddleOp] = []
    written = set[str]()
    for op in first.ops:
        if is_weight_update(op):
            updates.append(op)
        elif op.type == DEPEND:
            updates.clear()
        elif updates and op.type != SHARE and (x := _barrier_operand(first, op, written.difference(keep))):
            ops += _release_gradients(x, updates, used)
            ops.append(_barrier_operator(x, updates))
            updates.clear()
        ops.append(op)
        written.difference_update(op.writes)
        if op.block_index() is None and op.type not in MAYBE_UNWRITTEN_OUTPUTS:
            written.update(_result_names(op))
    return replace(program, blocks=(replace(first, ops=tuple(ops)), *others))


def _result_names(op: PaddleOp) -> Iterator[str]:
    """Yield the results of an operator: the names in result slots and gradient slots."""
    for slot, names in op.outputs.items():
        if slot in RESULT_SLOTS or slot.endswith(GRAD):
            yield from names


def _barrier_operand(block: PaddleBlock, op: PaddleOp, written: Collection[str]) -> PaddleVar | None:
    """Return an operand of `op` suitable for a barrier before `op`, or None: a tensor surely written before.

    An operand read only for its shape does not qualify: `depend` would keep the bytes live.
    """
    tensors = (block.vars[name] for name in effects_of(op).reads if name in written and name in block.vars)
    return next((var for var in tensors if _can_pass_depend(var)), None)


def _can_pass_depend(var: PaddleVar) -> bool:
    """Return True if `depend` supports the variable: a dense tensor of a supported type, not persistable."""
    return var.kind == TENSOR and var.dtype in DEPEND_DTYPES and not var.persistable


def _barrier_operator(x: PaddleVar, updates: Sequence[PaddleOp]) -> PaddleOp:
    """Return the `depend` operator: X waits for the weights of all updates."""
    weights = [name for update in updates for name in update.outputs["ParamOut"]]
    return new_op(DEPEND, {"X": [x.name], "Dep": weights}, {"Out": [x.name]}, inherited_attributes(updates[-1]))


def _release_gradients(
    x: PaddleVar, updates: Sequence[PaddleOp], used: Mapping[str, DType | None]
) -> Iterator[PaddleOp]:
    """Yield a `share_data` for each used gradient of X's type, to free the gradient's bytes."""
    for update in updates:
        for name in update.inputs["Grad"]:
            if used.get(name) == x.dtype:
                yield new_op(SHARE, {"X": [x.name]}, {"Out": [name]}, inherited_attributes(update))


def _used_gradients(program: PaddleProgram, keep: Collection[str]) -> dict[str, DType | None]:
    """Return the element types of large gradients with their last mention at a weight update."""
    first, *others = program.blocks
    last = {name: op for op in first.ops for name in (*op.reads, *op.writes)}
    inside = {name for block in others for op in block.ops for name in (*op.reads, *op.writes)}
    return {
        name: var.dtype
        for name, var in first.vars.items()
        if name in last and name not in inside and name not in keep and _can_pass_depend(var)
        if is_weight_update(last[name])
        and name in last[name].inputs["Grad"]
        and prod(var.dims) >= MIN_RELEASED_ELEMENTS
    }


# Reordering: each weight update runs as soon as its gradient is complete, to end the gradient's live range early.
#
# Only block 0 is reordered. An update moves up to the nearest operator that writes one of its operands, or mentions one
# of its outputs. The values stay the same.

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


Pass = Callable[[PaddleProgram, Collection[str]], PaddleProgram]

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "optimise early": lambda program, keep: run_updates_early(program),
        "shape proxies": lambda program, keep: use_shape_proxies(program),
        "loop invariants": lambda program, keep: assign_loop_invariants(program),
        "in place": rename_in_place,
        "temporaries outside": move_temporaries_outside,
        "updates awaited": add_update_barriers,
    }
)


def apply_own_policy(program: PaddleProgram, keep: Collection[str] = ()) -> PaddleProgram:
    """Return the program after all passes. The passes neither rename nor overwrite names in `keep`, to be fetched."""
    for change in PASSES.values():
        program = change(program, keep)
    return program

"""Selection of the variables allowed in an arena, with a reason for each variable outside."""

from __future__ import annotations

from collections.abc import Collection

from sublet.frontends.paddle.format.program import GRAD, TENSOR, PaddleOp, PaddleProgram
from sublet.frontends.paddle.lives.control_flow import PaddleFlow
from sublet.frontends.paddle.lives.maybe_uninitialized import maybe_uninitialized_names
from sublet.frontends.paddle.lives.scopes import FORWARD_OWNERS, ScopedVariable, linked_gradient_names
from sublet.frontends.paddle.operators.effects import facts_for_dims, nonempty_names
from sublet.frontends.paddle.operators.facts import OpFacts
from sublet.frontends.paddle.operators.shapes import VariableSizes

GRADIENT_OWNERS = ("while_grad", "conditional_block_grad")


def select_placeable(
    program: PaddleProgram, flow: PaddleFlow, sizes: VariableSizes, keep: Collection[str]
) -> tuple[dict[ScopedVariable, int], dict[ScopedVariable, str]]:
    """Return the bytes of each variable allowed in an arena, and the reason for each variable outside.

    `keep` names the variables of block 0 kept for the caller; kept variables stay outside.
    """
    why = _reasons_by_operator(program, flow, sizes)
    written, perhaps = set(flow.scopes.writers), maybe_uninitialized_names(program)
    for point in flow.points:
        if point.kind == "keep":
            for place in point.uses:
                why.setdefault(place, "is saved in every iteration for the gradient block")
    nbytes: dict[ScopedVariable, int] = {}
    for block in program.blocks:
        for var in block.vars.values():
            place = ScopedVariable(block.index, var.name)
            if var.kind != TENSOR:
                why[place] = "is not a dense tensor"
            elif var.persistable:
                why[place] = "outlives the program"
            elif var.name in perhaps:
                why[place] = "may be read before its first write"
            elif block.index == 0 and var.name in keep:
                why[place] = "is kept for the caller"
            elif place not in written:
                why[place] = "is an input"
            elif None in (dims := sizes.dims(block.index, var.name) or (None,)):
                why[place] = f"has open extents {dims}"
            elif place not in why and (size := sizes.nbytes(block.index, var.name)):
                nbytes[place] = size
    return nbytes, {place: reason for place, reason in why.items() if place not in nbytes}


def _reasons_by_operator(program: PaddleProgram, flow: PaddleFlow, sizes: VariableSizes) -> dict[ScopedVariable, str]:
    """Return the reason for each variable kept outside by an operator that shares, replaces or looks up the memory."""
    why: dict[ScopedVariable, str] = {}
    for block in program.blocks:
        for op in block.ops:
            names = _memory_sensitive_names(op, facts_at(block.index, op, sizes))
            for name in nonempty_names(names):
                why.setdefault(flow.scopes.resolve(block.index, name), f"{op.type} shares or replaces its memory")
            if op.type in GRADIENT_OWNERS:
                inner = op.block_index()
                inside = [name for name in op.reads if not name.endswith(GRAD)]
                gradients = (*(f"{name}{GRAD}" for name in inside), *linked_gradient_names(op))
                for name in nonempty_names(gradients):
                    if inner is not None and name in program.blocks[inner].vars:
                        why.setdefault(ScopedVariable(inner, name), f"{op.type} passes it in and out by name")
    return why


def facts_at(block: int, op: PaddleOp, sizes: VariableSizes) -> OpFacts:
    """Return the facts of an operator of a block, for the extents of the operator's inputs in `sizes`."""
    return facts_for_dims(op, lambda name: sizes.dims(block, name))


def _memory_sensitive_names(op: PaddleOp, facts: OpFacts) -> tuple[str, ...]:
    """Return the names with memory that the operator may share, replace or inspect."""
    if op.type in FORWARD_OWNERS:
        return ()  # only the operators in the block read and write the names
    if op.type in GRADIENT_OWNERS:
        return (*op.inputs.get(f"Out{GRAD}", ()), *op.writes)
    if not facts.known:
        return (*op.reads, *op.writes)
    slots = [*(op.inputs.get(source, ()) for source, _ in facts.shares)]
    slots += [op.outputs.get(target, ()) for _, target in facts.shares]
    slots += [op.outputs.get(slot, ()) for slot in facts.moves]
    return tuple(name for names in slots for name in names)

"""In-place renames: an output takes over the name, and thereby the memory, of an input at the input's last use.

The pass treats each block together with the gradient block, because the gradient block reads forward values by name.
The input must be dead in both blocks. If a later operator reads the shape of the input, the output has the same shape.

Paddle finds some gradients only by name, in the scope of an iteration, after the iteration. Such a gradient keeps the
name, and the input takes the gradient's name instead: the gradient is then accumulated in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sublet.frontends.paddle.format.program import GRAD, PaddleOp, PaddleProgram
from sublet.frontends.paddle.lives.scopes import PaddleScopes, linked_gradient_names
from sublet.frontends.paddle.operators.facts import facts_of_shapes
from sublet.frontends.paddle.policies.ours.name_uses import NameUse, is_written_first, name_uses, rename_in_blocks
from sublet.frontends.paddle.policies.ours.rename_constraints import owns_blocks, rename_constraints
from sublet.frontends.paddle.policies.ours.shape_equality import have_equal_shapes, visible_var

MIXING = frozenset({"mul", "matmul", "matmul_v2", "conv2d", "depthwise_conv2d", "conv2d_transpose", "pool2d", "lstm"})
"""Operators that read many elements for each written element: safe in place at some sizes, possibly wrong at others."""


def rename_in_place(program: PaddleProgram, keep: Collection[str] = ()) -> PaddleProgram:
    """Rename every output that may take over the memory of an input at the input's last use."""
    untouchable = rename_constraints(program, keep)
    gradients = PaddleScopes(program).gradients
    for block in program.blocks:
        blocks = (block.index, gradients[block.index]) if block.index in gradients else (block.index,)
        found_by_name = _gradients_found_by_name(program, block.index)
        names = _inplace_renames(program, block.index, name_uses(program, blocks), untouchable, found_by_name)
        program = rename_in_blocks(program, blocks, names)
    return program


def _inplace_renames(
    program: PaddleProgram,
    block: int,
    uses: dict[str, list[NameUse]],
    untouchable: Mapping[str, str],
    found_by_name: Collection[str],
) -> dict[str, str]:
    """Return the new name of each renamed variable of a block."""
    names: dict[str, str] = {}
    variables = program.blocks[block].vars
    for at, op in enumerate(program.blocks[block].ops):
        for source, new in _inplace_candidates(program, block, op):
            old = names.get(source, source)
            stays = untouchable.keys() - {new} if new in found_by_name else untouchable.keys()
            if {old, new} & (stays | names.keys()) or not {old, new} <= variables.keys():
                continue
            renamed = replace(variables[old], name=source)
            if (
                have_equal_shapes(program, block, op, renamed, variables[new])
                and _is_last_use(uses[old], at)
                and _is_first_definition(uses[new], at)
            ):
                kept, gone = (new, old) if new in found_by_name else (old, new)
                names |= {gone: kept} | {name: kept for name, now in names.items() if now == gone}
                uses[kept] = sorted((*uses[kept], *uses.pop(gone)), key=lambda mention: mention.at)
                break
    return names


def _gradients_found_by_name(program: PaddleProgram, block: int) -> frozenset[str]:
    """Return the gradients that the owner of a gradient block finds by name after an iteration, and not before.

    The result is empty if nested blocks may look for the gradients too.
    """
    owner = PaddleScopes(program).owners.get(block)
    inside = program.blocks[block]
    if owner is None or inside.forward < 0 or any(owns_blocks(op) for op in inside.ops):
        return frozenset()
    gradients = {f"{name}{GRAD}" for name in owner.op.reads}
    return frozenset(gradients & inside.vars.keys() - {*linked_gradient_names(owner.op), *owner.op.reads})


def _inplace_candidates(program: PaddleProgram, block: int, op: PaddleOp) -> list[tuple[str, str]]:
    """Return the (input, output) names that may share bytes; an input passed twice is excluded."""
    if op.type in MIXING:
        return []
    x, y = (_declared_dims(program, block, op.first_input(slot)) for slot in ("X", "Y"))
    y = None if y is not None and min(y, default=0) < 0 else y  # an open Y may have a single row, or as many rows as X
    facts = facts_of_shapes(op.type, x, y)
    return [
        (source, target)
        for slot, into in sorted(facts.inplace | facts.inplace_first)
        for source in op.inputs.get(slot, ())[: None if (slot, into) in facts.inplace else 1]
        for target in op.outputs.get(into, ())
        if op.reads.count(source) == 1
    ]


def _declared_dims(program: PaddleProgram, block: int, name: str | None) -> tuple[int, ...] | None:
    """Return the declared extents of an input, or None."""
    var = visible_var(program, block, name)
    return None if var is None else var.dims


def _is_last_use(uses: list[NameUse], at: int) -> bool:
    """Return True if the name is written before the first read, has no views, and has the last use at `at`.

    A name dead before `at` is already freed; an in-place rename would only extend the live range.
    """
    known = all(mention.known for mention in uses)
    needed = any(mention.reads for mention in uses if mention.at == at)
    return is_written_first(uses) and known and needed and not any(m.reads or m.writes for m in uses if m.at > at)


def _is_first_definition(uses: list[NameUse], at: int) -> bool:
    """Return True if `at` writes the name, without a read, and no earlier operator mentions the name."""
    return uses[0].at == at and [mention.writes for mention in uses if mention.at == at] == [True]

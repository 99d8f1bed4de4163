"""In-place renames: an output takes over the name, and so the memory, of an input that dies at its operator.

Done in every block, together with the block of its gradient: what runs there reads forward values by name. The input
must be dead in both. Where only its shape is asked for afterwards, the output has the same one.

A gradient that Paddle finds by its name alone, in the scope of a trip after that, keeps its name: there the input takes
it instead, so that a gradient is added up in its own place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sublet.frontends.paddle.format.program import GRAD, Op, Program
from sublet.frontends.paddle.lives.scopes import Scopes, linked
from sublet.frontends.paddle.operators.facts import of_shapes
from sublet.frontends.paddle.policies.ours.mentions import Mention, begins, mentions, renamed
from sublet.frontends.paddle.policies.ours.shapes_kept import alike, found
from sublet.frontends.paddle.policies.ours.untouchable import owns_blocks, reasons

MIXING = frozenset({"mul", "matmul", "matmul_v2", "conv2d", "depthwise_conv2d", "conv2d_transpose", "pool2d", "lstm"})
"""What reads many elements for one that it writes: right in place at one size, it may be wrong at another."""


def in_place(program: Program, keep: Collection[str] = ()) -> Program:
    """Every output that may take over the memory of a dying input does."""
    untouchable = reasons(program, keep)
    gradients = Scopes(program).gradients
    for block in program.blocks:
        blocks = (block.index, gradients[block.index]) if block.index in gradients else (block.index,)
        found_by_name = _found_by_name(program, block.index)
        names = _taken_over(program, block.index, mentions(program, blocks), untouchable, found_by_name)
        program = renamed(program, blocks, names)
    return program


def _taken_over(
    program: Program,
    block: int,
    seen: dict[str, list[Mention]],
    untouchable: Mapping[str, str],
    found_by_name: Collection[str],
) -> dict[str, str]:
    """For each name that goes, the one it is called by from now on."""
    names: dict[str, str] = {}
    variables = program.blocks[block].vars
    for at, op in enumerate(program.blocks[block].ops):
        for source, new in _pairs(program, block, op):
            old = names.get(source, source)
            stays = untouchable.keys() - {new} if new in found_by_name else untouchable.keys()
            if {old, new} & (stays | names.keys()) or not {old, new} <= variables.keys():
                continue
            one = replace(variables[old], name=source)
            if alike(program, block, op, one, variables[new]) and _dies(seen[old], at) and _born(seen[new], at):
                kept, gone = (new, old) if new in found_by_name else (old, new)
                names |= {gone: kept} | {name: kept for name, now in names.items() if now == gone}
                seen[kept] = sorted((*seen[kept], *seen.pop(gone)), key=lambda mention: mention.at)
                break
    return names


def _found_by_name(program: Program, block: int) -> frozenset[str]:
    """The gradients of a gradient block that the operator which runs it finds by their names when a trip is over, and
    not before; none where blocks inside may look for them as well."""
    owner = Scopes(program).owners.get(block)
    inside = program.blocks[block]
    if owner is None or inside.forward < 0 or any(owns_blocks(op) for op in inside.ops):
        return frozenset()
    gradients = {f"{name}{GRAD}" for name in owner.op.reads}
    return frozenset(gradients & inside.vars.keys() - {*linked(owner.op), *owner.op.reads})


def _pairs(program: Program, block: int, op: Op) -> list[tuple[str, str]]:
    """The names of inputs and outputs that may be the same bytes; an input that is given twice is none of them."""
    if op.type in MIXING:
        return []
    x, y = (_dims(program, block, op.input(slot)) for slot in ("X", "Y"))
    y = None if y is not None and min(y, default=0) < 0 else y  # it may be one row, or as many as X has
    facts = of_shapes(op.type, x, y)
    return [
        (source, target)
        for slot, into in sorted(facts.inplace | facts.inplace_first)
        for source in op.inputs.get(slot, ())[: None if (slot, into) in facts.inplace else 1]
        for target in op.outputs.get(into, ())
        if op.reads.count(source) == 1
    ]


def _dims(program: Program, block: int, name: str | None) -> tuple[int, ...] | None:
    """The extents of an input as the program declares them."""
    var = found(program, block, name)
    return None if var is None else var.dims


def _dies(seen: list[Mention], at: int) -> bool:
    """Whether a name is written before it is read, by operators that keep no view of it, and its bytes are needed at
    `at`, but not afterwards: what dies earlier is free already, and would only live longer."""
    known = all(mention.known for mention in seen)
    needed = any(mention.reads for mention in seen if mention.at == at)
    return begins(seen) and known and needed and not any(m.reads or m.writes for m in seen if m.at > at)


def _born(seen: list[Mention], at: int) -> bool:
    """Whether `at` writes a name that nothing mentions before, and does not read it."""
    return seen[0].at == at and [mention.writes for mention in seen if mention.at == at] == [True]

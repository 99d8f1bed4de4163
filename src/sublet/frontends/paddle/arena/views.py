"""The arena form of a program: a single tensor, and views at planned offsets at the beginning of each block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sublet.analysis.liveness import compute_live_ranges, to_point_ranges
from sublet.base.errors import ModelError
from sublet.base.tensor import DType
from sublet.frontends.paddle.arena.coalescing import CoalescingClasses, coalesce_variables
from sublet.frontends.paddle.arena.placeable import select_placeable
from sublet.frontends.paddle.format.program import (
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)
from sublet.frontends.paddle.lives.control_flow import build_flow
from sublet.frontends.paddle.lives.scopes import ScopedVariable
from sublet.frontends.paddle.operators.shapes import VariableSizes
from sublet.packing import Buffer, Problem, lower_bound, pack

ARENA = "sublet.arena"
ARENA_END = "sublet.arena.end"
ALIGNMENT = 64
PADDLE_UINT8 = 20
POISON = 255
"""A byte with all bits set: NaN in every floating-point type, -1 in every signed integer type."""


@dataclass(frozen=True)
class ArenaForm:
    """A program in the arena form.

    places   the offset and bytes of each variable in the arena
    outside  the reason for each variable outside of the arena
    bytes    the size of the arena
    bound    a lower bound in bytes for any arena with the same variables, live ranges and coalescing
    """

    program: PaddleProgram
    places: Mapping[ScopedVariable, tuple[int, int]]
    outside: Mapping[ScopedVariable, str]
    bytes: int
    bound: int


def to_arena_form(
    program: PaddleProgram, sizes: VariableSizes, keep: Collection[str] = (), *, poisoned: bool = False
) -> ArenaForm:
    """Return the arena form of a program. The variables `keep` of block 0 can be fetched after a run.

    With `poisoned`, the program fills the arena with NaN (-1 for integers) before each run, to expose reads before
    writes. Raises ModelError if the program already is in the arena form.
    """
    if any(name in block.vars for block in program.blocks for name in (ARENA, ARENA_END)):
        raise ModelError(f"the program has a variable {ARENA!r}: the program is in the arena form already")
    graph = build_flow(program, [ScopedVariable(0, name) for name in keep], by_shape=False)
    lives = compute_live_ranges(graph)
    found, why = select_placeable(program, graph, sizes, keep)
    while True:
        classes, left = coalesce_variables(program, graph, lives, sizes, found)
        if not left:
            break
        why.update(left)
        found = {place: size for place, size in found.items() if place not in left}
    places, total, bound = _pack_classes(classes)
    blocks = tuple(_with_views(block, places, total, poisoned) for block in program.blocks)
    return ArenaForm(replace(program, blocks=blocks), places, why, total, bound)


def with_lasting_arena(program: PaddleProgram) -> PaddleProgram:
    """Return a program in the arena form with an arena kept from run to run.

    A training program needs a lasting arena. Otherwise each run allocates an arena, and Paddle may free the arena of
    the previous run a moment later. An inference predictor keeps the arena by itself, and would search for a lasting
    arena among the parameters.
    """
    top = program.blocks[0]
    if ARENA not in top.vars:
        return program
    kept = {**top.vars, ARENA: replace(top.vars[ARENA], persistable=True)}
    return replace(program, blocks=(replace(top, vars=kept), *program.blocks[1:]))


def _pack_classes(classes: CoalescingClasses) -> tuple[dict[ScopedVariable, tuple[int, int]], int, int]:
    """Return the places of all variables, the size of the arena and a lower bound for the size."""
    buffers = []
    for number, (head, members) in enumerate(sorted(classes.members.items())):
        pieces = to_point_ranges(classes.class_ranges[head])
        if pieces:
            size = max(classes.sizes[member] for member in members)
            buffers.append((Buffer.alive_in(str(number), size, pieces, ALIGNMENT), members))
    if not buffers:
        return {}, 0, 0
    problem = Problem(tuple(buffer for buffer, _ in buffers))
    packing = pack(problem).packing
    places = {
        member: (offset, classes.sizes[member])
        for offset, (_, members) in zip(packing.offsets, buffers, strict=True)
        for member in members
    }
    return places, packing.arena_bytes, lower_bound(problem).bytes


def _with_views(
    block: PaddleBlock, places: Mapping[ScopedVariable, tuple[int, int]], total: int, poisoned: bool
) -> PaddleBlock:
    """Return a block with its view operators in front; block 0 also defines the arena."""
    views = [
        _view_operator(name, *places[ScopedVariable(block.index, name)])
        for name in block.vars
        if ScopedVariable(block.index, name) in places
    ]
    if block.index:
        return replace(block, ops=(*views, *block.ops)) if views else block
    arena_vars: dict[str, PaddleVar] = {
        ARENA: new_var(ARENA, DType.U8, (total,)),
        ARENA_END: new_var(ARENA_END, DType.U8, (1,)),
    }
    end = () if not total else (_view_operator(ARENA_END, 0, 1),)  # the last use of the arena: Paddle frees it last
    front = (_arena_operator(total, poisoned), *views) if total else ()
    return replace(block, vars={**block.vars, **arena_vars}, ops=(*front, *block.ops, *end)) if total else block


def _arena_operator(total: int, poisoned: bool) -> PaddleOp:
    """Return the operator that allocates the arena, or fills the arena if `poisoned`."""
    attrs = {"shape": PaddleAttr("LONGS", (total,)), "dtype": PaddleAttr("INT", PADDLE_UINT8)}
    if poisoned:
        attrs |= {"value": PaddleAttr("FLOAT", float(POISON)), "str_value": PaddleAttr("STRING", str(POISON))}
    return new_op("fill_constant" if poisoned else "empty", {}, {"Out": [ARENA]}, attrs)


def _view_operator(name: str, offset: int, size: int) -> PaddleOp:
    """Return the operator that makes a variable a view of arena bytes [offset, offset + size)."""
    attrs = {"begin_idx": PaddleAttr("LONG", offset), "end_idx": PaddleAttr("LONG", offset + size)}
    return new_op("view_slice", {"input": [ARENA]}, {"out": [name]}, attrs)

"""The arena form of a program: a single tensor, and views at planned offsets at the beginning of each block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sublet.analysis.liveness import liveness, whole_points
from sublet.base.errors import ModelError
from sublet.base.tensor import DType
from sublet.frontends.paddle.arena.placeable import outside
from sublet.frontends.paddle.arena.sharing import Classes, shared
from sublet.frontends.paddle.format.program import Attr, Block, Op, Program, Var, new_op, new_var
from sublet.frontends.paddle.lives.flow import flow
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.shapes import Sizes
from sublet.packing import Buffer, Problem, lower_bound, pack

ARENA = "sublet.arena"
END = "sublet.arena.end"
ALIGNMENT = 64
UINT8 = 20
POISON = 255
"""A byte with all bits set: NaN in every floating-point type, -1 in every signed integer type."""


@dataclass(frozen=True)
class Arena:
    """A program in the arena form.

    places   the offset and bytes of each variable in the arena
    outside  the reason for each variable outside of the arena
    bytes    the size of the arena
    bound    a lower bound in bytes for any arena with the same variables, live ranges and coalescing
    """

    program: Program
    places: Mapping[Place, tuple[int, int]]
    outside: Mapping[Place, str]
    bytes: int
    bound: int


def arena(program: Program, sizes: Sizes, keep: Collection[str] = (), *, poisoned: bool = False) -> Arena:
    """Return the arena form of a program. The variables `keep` of block 0 can be fetched after a run.

    With `poisoned`, the program fills the arena with NaN (-1 for integers) before each run, to expose reads before
    writes. Raises ModelError if the program already is in the arena form.
    """
    if any(name in block.vars for block in program.blocks for name in (ARENA, END)):
        raise ModelError(f"the program has a variable {ARENA!r}: it is in the arena form already")
    graph = flow(program, [Place(0, name) for name in keep], by_shape=False)
    lives = liveness(graph)
    found, why = outside(program, graph, sizes, keep)
    while True:
        classes, left = shared(program, graph, lives, sizes, found)
        if not left:
            break
        why.update(left)
        found = {place: size for place, size in found.items() if place not in left}
    places, total, bound = _packed(classes)
    blocks = tuple(_with_views(block, places, total, poisoned) for block in program.blocks)
    return Arena(replace(program, blocks=blocks), places, why, total, bound)


def lasting(program: Program) -> Program:
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


def _packed(classes: Classes) -> tuple[dict[Place, tuple[int, int]], int, int]:
    """Return the places of all variables, the size of the arena and a lower bound for the size."""
    buffers = []
    for number, (head, members) in enumerate(sorted(classes.members.items())):
        pieces = whole_points(classes.halves[head])
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


def _with_views(block: Block, places: Mapping[Place, tuple[int, int]], total: int, poisoned: bool) -> Block:
    """Return a block with its view operators in front; block 0 also defines the arena."""
    views = [
        _view(name, *places[Place(block.index, name)]) for name in block.vars if Place(block.index, name) in places
    ]
    if block.index:
        return replace(block, ops=(*views, *block.ops)) if views else block
    arena_vars: dict[str, Var] = {
        ARENA: new_var(ARENA, DType.U8, (total,)),
        END: new_var(END, DType.U8, (1,)),
    }
    end = () if not total else (_view(END, 0, 1),)  # the last use of the arena: Paddle frees it last
    front = (_made(total, poisoned), *views) if total else ()
    return replace(block, vars={**block.vars, **arena_vars}, ops=(*front, *block.ops, *end)) if total else block


def _made(total: int, poisoned: bool) -> Op:
    """Return the operator that allocates the arena, or fills the arena if `poisoned`."""
    attrs = {"shape": Attr("LONGS", (total,)), "dtype": Attr("INT", UINT8)}
    if poisoned:
        attrs |= {"value": Attr("FLOAT", float(POISON)), "str_value": Attr("STRING", str(POISON))}
    return new_op("fill_constant" if poisoned else "empty", {}, {"Out": [ARENA]}, attrs)


def _view(name: str, offset: int, size: int) -> Op:
    """Return the operator that makes a variable a view of arena bytes [offset, offset + size)."""
    attrs = {"begin_idx": Attr("LONG", offset), "end_idx": Attr("LONG", offset + size)}
    return new_op("view_slice", {"input": [ARENA]}, {"out": [name]}, attrs)

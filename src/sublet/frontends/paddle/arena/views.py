"""The program in the arena form: one tensor, and views of it at planned offsets in front of every block."""

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
"""All bits set is NaN in every floating-point type, and -1 in every integer."""


@dataclass(frozen=True)
class Arena:
    """A program in the arena form.

    places   by variable, its offset and bytes in the arena
    outside  by variable, why it is not there
    bound    bytes below which no arena can hold these variables with these lives and places shared
    """

    program: Program
    places: Mapping[Place, tuple[int, int]]
    outside: Mapping[Place, str]
    bytes: int
    bound: int


def arena(program: Program, sizes: Sizes, keep: Collection[str] = (), *, poisoned: bool = False) -> Arena:
    """The arena form of a program after which the variables `keep` of block 0 can be fetched.

    `poisoned` fills the arena before every run, so that whatever is read before it is written is seen.
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
    """A program in the arena form whose arena stays from run to run.

    That belongs into a program for training: otherwise every run allocates an arena, and Paddle may free that of the
    run before a moment later. An inference predictor keeps it by itself, and would look for a lasting one among the
    parameters.
    """
    top = program.blocks[0]
    if ARENA not in top.vars:
        return program
    kept = {**top.vars, ARENA: replace(top.vars[ARENA], persistable=True)}
    return replace(program, blocks=(replace(top, vars=kept), *program.blocks[1:]))


def _packed(classes: Classes) -> tuple[dict[Place, tuple[int, int]], int, int]:
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
    views = [
        _view(name, *places[Place(block.index, name)]) for name in block.vars if Place(block.index, name) in places
    ]
    if block.index:
        return replace(block, ops=(*views, *block.ops)) if views else block
    made: dict[str, Var] = {
        ARENA: new_var(ARENA, DType.U8, (total,)),
        END: new_var(END, DType.U8, (1,)),
    }
    end = () if not total else (_view(END, 0, 1),)  # so that Paddle lets go of the arena after everything else
    front = (_made(total, poisoned), *views) if total else ()
    return replace(block, vars={**block.vars, **made}, ops=(*front, *block.ops, *end)) if total else block


def _made(total: int, poisoned: bool) -> Op:
    attrs = {"shape": Attr("LONGS", (total,)), "dtype": Attr("INT", UINT8)}
    if poisoned:
        attrs |= {"value": Attr("FLOAT", float(POISON)), "str_value": Attr("STRING", str(POISON))}
    return new_op("fill_constant" if poisoned else "empty", {}, {"Out": [ARENA]}, attrs)


def _view(name: str, offset: int, size: int) -> Op:
    attrs = {"begin_idx": Attr("LONG", offset), "end_idx": Attr("LONG", offset + size)}
    return new_op("view_slice", {"input": [ARENA]}, {"out": [name]}, attrs)

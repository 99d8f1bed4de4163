"""Temporaries of loops: what is written and dies within one trip lies outside of the loop, in as few names as will do.

Paddle frees what dies in a block on a thread of its own. Where that comes late, bytes of one trip are still there in
the next, and nobody can say how many. A variable of the block around the loop is not freed in between: every trip
writes over what the one before left there, so that nothing waits to be freed, whenever that thread runs. After the
loop `share_data` makes each such variable a view of a result of the loop, so that its own bytes go at once; as it reads
that result, no executor runs it before the loop is done. The result is then assigned to itself, which copies nothing:
whoever reads it afterwards, as the next loop does where it can be chosen so, waits until those bytes are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from sublet.base.tensor import DType
from sublet.frontends.paddle.format.program import EMPTY, TENSOR, Block, Op, Program, Var, new_op
from sublet.frontends.paddle.lives.scopes import COPYING, Owner, Place, Scopes
from sublet.frontends.paddle.lives.unwritten import perhaps_nothing
from sublet.frontends.paddle.peaks.scalars import Number, follow
from sublet.frontends.paddle.policies.ours.invariants import told
from sublet.frontends.paddle.policies.ours.mentions import Mention, begins, mentions
from sublet.frontends.paddle.policies.ours.untouchable import reasons

LOOPS = ("while", "while_grad")
SHARED = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Types of elements that `share_data` takes in every version from 2 on."""


def temporaries_outside(program: Program, keep: Collection[str] = ()) -> Program:
    """The program whose loops hold what dies within a trip in variables outside. Paddle 1 frees at once: it stays."""
    if program.version < COPYING:
        return program
    scopes, untouchable = Scopes(program), reasons(program, keep)
    blocks, after = list(program.blocks), dict[tuple[int, int], tuple[Op, ...]]()
    unsure = perhaps_nothing(program)
    for loop, owner in _outermost(scopes):
        results, made = _results(program, owner, unsure), dict[str, Var]()
        for block in scopes.inside(loop):
            names, rooms = _moved(program, block, untouchable, results.keys())
            if rooms.keys() & {name for each in program.blocks for name in each.vars}:
                continue
            left = {name: var for name, var in blocks[block].vars.items() if name not in names}
            ops = tuple(op.renamed(names) for op in blocks[block].ops)
            blocks[block] = replace(blocks[block], vars=left, ops=ops)
            made |= rooms
        if made:
            outer = blocks[owner.block]
            blocks[owner.block] = replace(outer, vars={**outer.vars, **made})
            after[owner.block, owner.index] = tuple(_let_go(owner, results, made))
    return replace(program, blocks=tuple(_with(block, after) for block in blocks))


def _let_go(owner: Owner, results: Mapping[DType | None, str], rooms: Mapping[str, Var]) -> Iterator[Op]:
    """What comes after a loop: each variable becomes a view of a result; then these are assigned to themselves."""
    for name, var in rooms.items():
        yield new_op("share_data", {"X": [results[var.dtype]]}, {"Out": [name]}, told(owner.op))
    for result in dict.fromkeys(results[var.dtype] for var in rooms.values()):
        yield new_op("assign", {"X": [result]}, {"Out": [result]}, told(owner.op))


def _with(block: Block, after: Mapping[tuple[int, int], tuple[Op, ...]]) -> Block:
    """A block with more operators behind some of its own."""
    ops = tuple(each for at, op in enumerate(block.ops) for each in (op, *after.get((block.index, at), ())))
    return replace(block, ops=ops) if len(ops) != len(block.ops) else block


def _outermost(scopes: Scopes) -> Iterator[tuple[int, Owner]]:
    """The bodies of loops that lie in no other loop, and the operators that run them."""
    owners = scopes.owners
    for inner, owner in owners.items():
        around = owner.block
        while around in owners and owners[around].op.type not in LOOPS:
            around = owners[around].block
        if owner.op.type in LOOPS and around not in owners:
            yield inner, owner


def _results(program: Program, owner: Owner, unsure: Collection[str]) -> dict[DType | None, str]:
    """By type of elements, a result of a loop that is surely there after it: one that it took, which a loop without
    rounds leaves as it was, if that is not `unsure` itself. Rather one that the next loop reads, and a small one.

    The gradient of a loop also takes what nobody made, for zeros: that is there after a round.
    """
    ops = program.blocks[owner.block].ops
    later = ops[owner.index + 1 :]
    sure = {*owner.op.reads}.intersection(owner.op.writes).difference(unsure)
    if owner.op.type == "while":
        sure &= {name for op in later for name in op.reads}
    elif not _goes_round(program, owner):
        sure &= {name for op in ops[: owner.index] if op.block() is None for name in op.writes}
    loop = next((op.reads for op in later if op.type in LOOPS), ())
    found = sorted(
        (name not in loop, prod(var.dims), name, var.dtype)
        for name in sure
        if (var := program.var(owner.block, name)) is not None
        if var.kind == TENSOR and var.dtype in SHARED and not var.persistable and min(var.dims, default=0) >= 0
    )
    return {dtype: name for *_, name, dtype in reversed(found)}


def _goes_round(program: Program, owner: Owner) -> bool:
    """Whether the loop that this is the gradient of surely makes a round: its condition is a number, and holds."""
    known: dict[Place, Number] = {}
    for op in program.blocks[owner.block].ops[: owner.index]:
        if op.type == "while" and op.outputs.get("StepScopes") == owner.op.inputs.get("StepScopes"):
            return bool(known.get(Place(owner.block, op.input("Condition") or EMPTY)))
        follow(op, lambda name: Place(owner.block, name), known)
    return False


@dataclass(slots=True)
class _Room:
    """A variable outside: what it is called, and the operator that is the last to need what it holds."""

    name: str
    until: int


def _moved(
    program: Program, block: int, untouchable: Collection[str], dtypes: Collection[DType | None]
) -> tuple[dict[str, str], dict[str, Var]]:
    """The names that leave a block, each with that of the variable it is from now on, and these variables."""
    vars = program.blocks[block].vars
    elsewhere = {
        name for other in program.blocks if other.index != block for op in other.ops for name in (*op.reads, *op.writes)
    }
    names: dict[str, str] = {}
    rooms: dict[str, Var] = {}
    free: dict[object, list[_Room]] = {}
    for name, seen in mentions(program, (block,)).items():  # in the order in which they are written
        if name in untouchable or name in elsewhere or name not in vars or not _temporary(vars[name], seen):
            continue
        if vars[name].dtype not in dtypes:
            continue
        alike = free.setdefault((vars[name].dtype, vars[name].dims), [])
        room = next((room for room in alike if room.until < seen[0].at), None)
        if room is None:
            room = _Room(f"sublet.loop{block}.{len(rooms)}", 0)
            alike.append(room)
            rooms[room.name] = replace(vars[name], name=room.name)
        room.until, names[name] = seen[-1].at, room.name
    return names, rooms


def _temporary(var: Var, seen: list[Mention]) -> bool:
    """Whether every trip writes a tensor of known size before it reads it, by operators that keep no view of it."""
    closed = var.kind == TENSOR and min(var.dims, default=0) >= 0 and not var.lod_level
    return closed and begins(seen) and all(mention.known for mention in seen)

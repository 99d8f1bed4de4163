"""Temporaries of loops: variables live only within an iteration move outside of the loop, into few shared variables.

Paddle frees dead variables of a block on a separate thread. If the thread is late, bytes of an iteration are still
present in the next, in an unknown number. A variable of the block around the loop is not freed in between: each
iteration overwrites the content of the previous iteration, so no free is pending. After the loop, `share_data` makes
each such variable a view of a result of the loop, to free the variable's bytes at once. Every executor runs the
`share_data` after the loop, because it reads the result. Then an `assign` of the result to itself, without a copy,
makes later readers of the result wait for the free; the result is chosen among the operands of the next loop if
possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import (
    EMPTY_NAME,
    TENSOR,
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
)
from sublet.integrations.paddle.peaks.control_flow import maybe_uninitialized_names
from sublet.integrations.paddle.peaks.scopes import COPIES_INPUTS_SINCE, BlockOwner, PaddleScopes, ScopedVariable
from sublet.integrations.paddle.peaks.simulated_run import Number, propagate_scalars
from sublet.integrations.paddle.policies.rename_constraints import (
    NameUse,
    is_written_first,
    name_uses,
    rename_constraints,
)

# Loop invariants: a training loop does not copy read-only inputs for each iteration.
#
# Paddle 2 and 3 copy each input of a training `while` into the scope of each iteration, for the gradient. Exceptions
# are weights, and names both read and written by an operator of the body. `assign X -> X` is such an operator and
# copies nothing.

INHERITED_ATTRIBUTES = ("op_role", "op_device", "op_namescope")
"""Attributes common to all types of operators."""


def assign_loop_invariants(program: PaddleProgram) -> PaddleProgram:
    """Return the program with an `assign X -> X` at the beginning of each training loop for each read-only tensor."""
    scopes, blocks = PaddleScopes(program), list(program.blocks)
    for body, copied in scopes.copied_inputs.items():
        owner = scopes.owners[body]
        written = {
            name for block in scopes.nested_blocks(body) for op in program.blocks[block].ops for name in op.writes
        }
        names = [
            name for name in owner.op.inputs["X"] if name in copied - written and _is_not_scalar(program, body, name)
        ]
        first = tuple(
            new_op("assign", {"X": [name]}, {"Out": [name]}, inherited_attributes(owner.op)) for name in names
        )
        blocks[body] = replace(blocks[body], ops=(*first, *blocks[body].ops))
    return replace(program, blocks=tuple(blocks))


def _is_not_scalar(program: PaddleProgram, body: int, name: str) -> bool:
    """Return True if the tensor is not a scalar. For a scalar, an additional operator would cost more than the copy."""
    var = program.find_var(program.blocks[body].parent, name)
    return var is not None and prod(var.dims) != 1


def inherited_attributes(op: PaddleOp) -> dict[str, PaddleAttr]:
    """Return the attributes inherited by a new operator from the given operator."""
    return {name: attr for name, attr in op.attrs.items() if name in INHERITED_ATTRIBUTES}


LOOPS = ("while", "while_grad")
SHARE_DATA_DTYPES = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Element types supported by `share_data` in every version since 2."""


def move_temporaries_outside(program: PaddleProgram, keep: Collection[str] = ()) -> PaddleProgram:
    """Return the program with temporaries of loops moved into outer variables.

    Programs for Paddle 1 stay as given: Paddle 1 frees at once.
    """
    if program.version < COPIES_INPUTS_SINCE:
        return program
    scopes, untouchable = PaddleScopes(program), rename_constraints(program, keep)
    blocks, after = list(program.blocks), dict[tuple[int, int], tuple[PaddleOp, ...]]()
    unsure = maybe_uninitialized_names(program)
    for loop, owner in _outermost_loops(scopes):
        results, outer_vars = _surely_written_results(program, owner, unsure), dict[str, PaddleVar]()
        for block in scopes.nested_blocks(loop):
            names, rooms = _outer_variables(program, block, untouchable, results.keys())
            if rooms.keys() & {name for each in program.blocks for name in each.vars}:
                continue
            left = {name: var for name, var in blocks[block].vars.items() if name not in names}
            ops = tuple(op.with_names(names) for op in blocks[block].ops)
            blocks[block] = replace(blocks[block], vars=left, ops=ops)
            outer_vars |= rooms
        if outer_vars:
            outer = blocks[owner.block]
            blocks[owner.block] = replace(outer, vars={**outer.vars, **outer_vars})
            after[owner.block, owner.index] = tuple(_release_outer_variables(owner, results, outer_vars))
    return replace(program, blocks=tuple(_with_operators_after(block, after) for block in blocks))


def _release_outer_variables(
    owner: BlockOwner, results: Mapping[DType | None, str], rooms: Mapping[str, PaddleVar]
) -> Iterator[PaddleOp]:
    """Yield the operators after a loop: a `share_data` for each outer variable, then an `assign` for each result."""
    for name, var in rooms.items():
        yield new_op("share_data", {"X": [results[var.dtype]]}, {"Out": [name]}, inherited_attributes(owner.op))
    for result in dict.fromkeys(results[var.dtype] for var in rooms.values()):
        yield new_op("assign", {"X": [result]}, {"Out": [result]}, inherited_attributes(owner.op))


def _with_operators_after(block: PaddleBlock, after: Mapping[tuple[int, int], tuple[PaddleOp, ...]]) -> PaddleBlock:
    """Return a block with the operators of `after` inserted behind their positions."""
    ops = tuple(each for at, op in enumerate(block.ops) for each in (op, *after.get((block.index, at), ())))
    return replace(block, ops=ops) if len(ops) != len(block.ops) else block


def _outermost_loops(scopes: PaddleScopes) -> Iterator[tuple[int, BlockOwner]]:
    """Yield the body and owner of each loop outside of any other loop."""
    owners = scopes.owners
    for inner, owner in owners.items():
        around = owner.block
        while around in owners and owners[around].op.type not in LOOPS:
            around = owners[around].block
        if owner.op.type in LOOPS and around not in owners:
            yield inner, owner


def _surely_written_results(
    program: PaddleProgram, owner: BlockOwner, unsure: Collection[str]
) -> dict[DType | None, str]:
    """Return a result of the loop that is surely written after the loop, by element type.

    The result must be an operand of the loop too: a loop without iterations leaves an operand unchanged. Names in
    `unsure` are excluded. Results read by the next loop are preferred, then small results. For the gradient of a loop,
    Paddle replaces missing operands by zeros, but only in an iteration.
    """
    ops = program.blocks[owner.block].ops
    later = ops[owner.index + 1 :]
    sure = {*owner.op.reads}.intersection(owner.op.writes).difference(unsure)
    if owner.op.type == "while":
        sure &= {name for op in later for name in op.reads}
    elif not _surely_iterates(program, owner):
        sure &= {name for op in ops[: owner.index] if op.block_index() is None for name in op.writes}
    loop = next((op.reads for op in later if op.type in LOOPS), ())
    candidates = sorted(
        (name not in loop, prod(var.dims), name, var.dtype)
        for name in sure
        if (var := program.find_var(owner.block, name)) is not None
        if var.kind == TENSOR
        and var.dtype in SHARE_DATA_DTYPES
        and not var.persistable
        and min(var.dims, default=0) >= 0
    )
    return {dtype: name for *_, name, dtype in reversed(candidates)}


def _surely_iterates(program: PaddleProgram, owner: BlockOwner) -> bool:
    """Return True if the forward loop surely runs an iteration: its condition is a known scalar and holds."""
    known: dict[ScopedVariable, Number] = {}
    for op in program.blocks[owner.block].ops[: owner.index]:
        if op.type == "while" and op.outputs.get("StepScopes") == owner.op.inputs.get("StepScopes"):
            return bool(known.get(ScopedVariable(owner.block, op.first_input("Condition") or EMPTY_NAME)))
        propagate_scalars(op, lambda name: ScopedVariable(owner.block, name), known)
    return False


@dataclass(slots=True)
class _OuterVariable:
    """An outer variable: its name, and the last operator that needs its content."""

    name: str
    until: int


def _outer_variables(
    program: PaddleProgram, block: int, untouchable: Collection[str], dtypes: Collection[DType | None]
) -> tuple[dict[str, str], dict[str, PaddleVar]]:
    """Return the outer variable's name for each moved name of a block, and the outer variables."""
    vars = program.blocks[block].vars
    elsewhere = {
        name for other in program.blocks if other.index != block for op in other.ops for name in (*op.reads, *op.writes)
    }
    names: dict[str, str] = {}
    rooms: dict[str, PaddleVar] = {}
    free: dict[object, list[_OuterVariable]] = {}
    for name, seen in name_uses(program, (block,)).items():  # in the order of their first use
        if name in untouchable or name in elsewhere or name not in vars or not _is_temporary(vars[name], seen):
            continue
        if vars[name].dtype not in dtypes:
            continue
        same_shape = free.setdefault((vars[name].dtype, vars[name].dims), [])
        room = next((room for room in same_shape if room.until < seen[0].at), None)
        if room is None:
            room = _OuterVariable(f"sublet.loop{block}.{len(rooms)}", 0)
            same_shape.append(room)
            rooms[room.name] = replace(vars[name], name=room.name)
        room.until, names[name] = seen[-1].at, room.name
    return names, rooms


def _is_temporary(var: PaddleVar, seen: list[NameUse]) -> bool:
    """Return True if each iteration writes the tensor before any read, with known size and without views."""
    closed = var.kind == TENSOR and min(var.dims, default=0) >= 0 and not var.lod_level
    return closed and is_written_first(seen) and all(mention.known for mention in seen)

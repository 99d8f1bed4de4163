"""Rewritings of a program that are probably wrong: what a policy with a mistake in it would do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from sublet.integrations.paddle.format.program import EMPTY_NAME, TENSOR, PaddleBlock, PaddleProgram

Mutation = Callable[[random.Random, PaddleProgram], PaddleProgram | None]


def with_block(program: PaddleProgram, index: int, **changes: object) -> PaddleProgram:
    blocks = list(program.blocks)
    blocks[index] = replace(blocks[index], **changes)  # type: ignore[arg-type]
    return replace(program, blocks=tuple(blocks))


def renamed(program: PaddleProgram, old: str, new: str, blocks: tuple[int, ...]) -> PaddleProgram:
    """Another name for a variable in some blocks, wherever an op names it in a slot."""
    for index in blocks:
        ops = tuple(op.with_names({old: new}) for op in program.blocks[index].ops)
        program = with_block(program, index, ops=ops)
    return program


def _tensors(block: PaddleBlock) -> list[str]:
    return [v.name for v in block.vars.values() if v.kind == TENSOR and not v.persistable and v.name != EMPTY_NAME]


def rename_one(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """One variable takes the name of another of its shape, everywhere or in its own block only."""
    block = rng.choice(program.blocks)
    names = _tensors(block)
    if len(names) < 2:
        return None
    old, new = rng.sample(names, 2)
    if (block.vars[old].dims, block.vars[old].dtype) != (block.vars[new].dims, block.vars[new].dtype):
        return None
    everywhere = tuple(range(len(program.blocks)))
    return renamed(program, old, new, everywhere if rng.random() < 0.6 else (block.index,))


def rename_in_place(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """The output of an op takes the name of an input, everywhere."""
    block = rng.choice([block for block in program.blocks if block.ops])
    op = rng.choice(block.ops)
    reads = [name for name in op.reads if name in _tensors(block)]
    writes = [name for name in op.writes if name in _tensors(block) and name not in op.reads]
    if not reads or not writes:
        return None
    old, new = rng.choice(writes), rng.choice(reads)
    if block.vars[old].dims != block.vars[new].dims or block.vars[old].dtype != block.vars[new].dtype:
        return None
    return renamed(program, old, new, tuple(range(len(program.blocks))))


def rename_gradient(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """A gradient in a gradient block gets another name, as the transpiler of 2019 did with `cond`."""
    blocks = [block for block in program.blocks if block.forward >= 0]
    if not blocks:
        return None
    block = rng.choice(blocks)
    names = [name for name in _tensors(block) if "@GRAD" in name]
    if len(names) < 2:
        return None
    old, new = rng.sample(names, 2)
    return renamed(program, old, new, (block.index,)) if block.vars[old].dims == block.vars[new].dims else None


def swap(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """Two ops change places."""
    block = rng.choice(program.blocks)
    if len(block.ops) < 2:
        return None
    i = rng.randrange(len(block.ops) - 1)
    j = min(len(block.ops) - 1, i + rng.randint(1, 4))
    ops = list(block.ops)
    ops[i], ops[j] = ops[j], ops[i]
    return with_block(program, block.index, ops=tuple(ops))


def proxy(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """An op of a gradient block reads another variable of the same shape."""
    block = rng.choice(program.blocks)
    if not block.ops:
        return None
    i = rng.randrange(len(block.ops))
    op = block.ops[i]
    slots = [slot for slot, names in op.inputs.items() if len(names) == 1 and names[0] in block.vars]
    if not slots:
        return None
    slot = rng.choice(slots)
    (name,) = op.inputs[slot]
    others = [n for n in _tensors(block) if n != name and block.vars[n].dims == block.vars[name].dims]
    if not others:
        return None
    ops = list(block.ops)
    ops[i] = replace(op, inputs={**op.inputs, slot: (rng.choice(others),)})
    return with_block(program, block.index, ops=tuple(ops))


def declare_outside(rng: random.Random, program: PaddleProgram) -> PaddleProgram | None:
    """A variable of a block becomes one of the block around it."""
    inner = [block for block in program.blocks if block.parent >= 0 and _tensors(block)]
    if not inner:
        return None
    block = rng.choice(inner)
    var = block.vars[rng.choice(_tensors(block))]
    own = {name: each for name, each in block.vars.items() if name != var.name}
    outer = {var.name: var, **program.blocks[block.parent].vars}
    return with_block(with_block(program, block.index, vars=own), block.parent, vars=outer)


MUTATIONS: tuple[Mutation, ...] = (
    rename_one,
    rename_one,
    rename_in_place,
    rename_in_place,
    rename_gradient,
    swap,
    proxy,
    declare_outside,
)

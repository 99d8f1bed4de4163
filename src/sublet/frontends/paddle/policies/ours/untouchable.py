"""Which names are never renamed, and why. Everything else in this policy asks here first.

Paddle finds variables by name at run time, and some of these names stand nowhere in the program: a loop's gradient
looks for its input's name + `@GRAD` inside the gradient block, an executor looks for feeds and fetches from outside.
So the rules go by name, over all blocks: a name is touched only where none of them speaks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from sublet.frontends.paddle.format.program import EMPTY, GRAD, TENSOR, Op, Program, Var
from sublet.frontends.paddle.lives.scopes import Scopes
from sublet.frontends.paddle.lives.unwritten import perhaps_nothing


def reasons(program: Program, keep: Collection[str] = ()) -> Mapping[str, str]:
    """Each name that must stay as it is, with the reason in words."""
    found: dict[str, str] = {EMPTY: "it stands for what is not there"}
    for rule in (_asked_for(keep), _control_flow(program), _variables(program), _places(program)):
        for name, reason in rule:
            found.setdefault(name, reason)
    for name in perhaps_nothing(program):
        found.setdefault(name, "it may hold nothing when it is read")
    return MappingProxyType(found)


def _asked_for(keep: Collection[str]) -> Iterator[tuple[str, str]]:
    for name in keep:
        yield name, "it is to be kept"


def _variables(program: Program) -> Iterator[tuple[str, str]]:
    """By what a variable is."""
    declared: dict[str, int] = {}
    for block in program.blocks:
        for name, var in block.vars.items():
            yield from ((name, reason) for reason in _of_variable(var))
            if declared.setdefault(name, block.index) != block.index:
                yield name, "several blocks declare it, and Paddle takes one of them by the scope it is in"


def _of_variable(var: Var) -> Iterator[str]:
    if var.persistable or var.parameter:
        yield "it outlives the run: a weight, or a state of the optimiser"
    if var.kind != TENSOR:
        yield "it is no tensor, but what Paddle keeps of a loop or a sequence"
    elif any(extent < 0 for extent in var.dims[1:]):
        yield "its size is not known, not even up to the batch"


def _control_flow(program: Program) -> Iterator[tuple[str, str]]:
    """By how operators that own blocks, and others, mention names beside their inputs and outputs."""
    for block in program.blocks:
        for op in block.ops:
            if owns_blocks(op):
                for name in (*op.reads, *op.writes, *_texts(op)):
                    yield name, f"{op.type} looks for it by this name in the scope of its block"
                    yield name + GRAD, f"{op.type} finds it as a gradient by its name alone"
            for name in _texts(op):
                yield name, f"an attribute of {op.type} names it"


def _places(program: Program) -> Iterator[tuple[str, str]]:
    """By where names are mentioned: elsewhere than at home, never written, never read."""
    seen: dict[str, set[int]] = {}
    read, written = set[str](), set[str]()
    for block in program.blocks:
        for op in block.ops:
            read.update(op.reads)
            written.update(op.writes)
            for name in (*op.reads, *op.writes):
                seen.setdefault(name, set()).add(block.index)
    gradients = Scopes(program).gradients
    for block in program.blocks:
        for name in block.vars:
            strange = seen.get(name, set()) - {block.index, gradients.get(block.index, block.index)}
            if strange:
                yield name, f"block {min(strange)} mentions it, block {block.index} declares it"
    for name in seen:
        if all(name not in block.vars for block in program.blocks):
            yield name, "no block declares it"
        elif name not in written:
            yield name, "nothing writes it: it is fed"
        elif name not in read:
            yield name, "nothing reads it: it may be fetched"


def owns_blocks(op: Op) -> bool:
    """Whether an operator runs blocks of its own: a loop, a branch, and their gradients."""
    return any(attr.kind in ("BLOCK", "BLOCKS") for attr in op.attrs.values())


def _texts(op: Op) -> Iterator[str]:
    """Every word in an attribute: which of them are names of variables, only Paddle knows."""
    for attr in op.attrs.values():
        if isinstance(attr.value, str):
            yield attr.value
        elif isinstance(attr.value, tuple):
            yield from (part for part in attr.value if isinstance(part, str))

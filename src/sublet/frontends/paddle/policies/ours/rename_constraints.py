"""Rename constraints: the names excluded from renames, with reasons. The renaming passes respect the constraints.

Paddle finds variables by name at run time, and some names do not appear in the program: the gradient of a loop looks up
its input's name + `@GRAD` in the gradient block, and a caller of the executor looks up feeds and fetches. So the rules
apply by name, over all blocks: a name may be renamed only if no rule applies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from sublet.frontends.paddle.format.program import EMPTY_NAME, GRAD, TENSOR, PaddleOp, PaddleProgram, PaddleVar
from sublet.frontends.paddle.lives.maybe_uninitialized import maybe_uninitialized_names
from sublet.frontends.paddle.lives.scopes import PaddleScopes


def rename_constraints(program: PaddleProgram, keep: Collection[str] = ()) -> Mapping[str, str]:
    """Return each name that must stay, with the reason."""
    by_name: dict[str, str] = {EMPTY_NAME: "it stands for what is not there"}
    for rule in (
        _constraints_by_caller(keep),
        _constraints_by_control_flow(program),
        _constraints_by_variable(program),
        _constraints_by_use(program),
    ):
        for name, reason in rule:
            by_name.setdefault(name, reason)
    for name in maybe_uninitialized_names(program):
        by_name.setdefault(name, "it may hold nothing when it is read")
    return MappingProxyType(by_name)


def _constraints_by_caller(keep: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names kept for the caller."""
    for name in keep:
        yield name, "it is to be kept"


def _constraints_by_variable(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names excluded by their variable: kind, size, or several declarations."""
    declared: dict[str, int] = {}
    for block in program.blocks:
        for name, var in block.vars.items():
            yield from ((name, reason) for reason in _variable_reasons(var))
            if declared.setdefault(name, block.index) != block.index:
                yield name, "several blocks declare it, and Paddle takes one of them by the scope it is in"


def _variable_reasons(var: PaddleVar) -> Iterator[str]:
    """Yield the reasons in the properties of a variable."""
    if var.persistable or var.parameter:
        yield "it outlives the run: a weight, or a state of the optimiser"
    if var.kind != TENSOR:
        yield "it is no tensor, but what Paddle keeps of a loop or a sequence"
    elif any(extent < 0 for extent in var.dims[1:]):
        yield "its size is not known, not even up to the batch"


def _constraints_by_control_flow(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names mentioned by operators with blocks, the gradients of such names, and names in attributes."""
    for block in program.blocks:
        for op in block.ops:
            if owns_blocks(op):
                for name in (*op.reads, *op.writes, *_attribute_texts(op)):
                    yield name, f"{op.type} looks for it by this name in the scope of its block"
                    yield name + GRAD, f"{op.type} finds it as a gradient by its name alone"
            for name in _attribute_texts(op):
                yield name, f"an attribute of {op.type} names it"


def _constraints_by_use(program: PaddleProgram) -> Iterator[tuple[str, str]]:
    """Yield the names excluded by their uses: a use outside of the declaring block; no declaration, write or read."""
    seen: dict[str, set[int]] = {}
    read, written = set[str](), set[str]()
    for block in program.blocks:
        for op in block.ops:
            read.update(op.reads)
            written.update(op.writes)
            for name in (*op.reads, *op.writes):
                seen.setdefault(name, set()).add(block.index)
    gradients = PaddleScopes(program).gradients
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


def owns_blocks(op: PaddleOp) -> bool:
    """Return True if the operator runs a block: a loop, a branch, or the gradient of either."""
    return any(attr.kind in ("BLOCK", "BLOCKS") for attr in op.attrs.values())


def _attribute_texts(op: PaddleOp) -> Iterator[str]:
    """Yield every string in the attributes of an operator: any may be the name of a variable."""
    for attr in op.attrs.values():
        if isinstance(attr.value, str):
            yield attr.value
        elif isinstance(attr.value, tuple):
            yield from (part for part in attr.value if isinstance(part, str))

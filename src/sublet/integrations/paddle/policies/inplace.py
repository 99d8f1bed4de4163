"""In-place renames: an output takes over the name, and thereby the memory, of an input at the input's last use.

The pass treats each block together with the gradient block, because the gradient block reads forward values by name.
The input must be dead in both blocks. If a later operator reads the shape of the input, the output has the same shape.

Paddle finds some gradients only by name, in the scope of an iteration, after the iteration. Such a gradient keeps the
name, and the input takes the gradient's name instead: the gradient is then accumulated in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from sublet.integrations.paddle.format.program import GRAD, TENSOR, PaddleBlock, PaddleOp, PaddleProgram, PaddleVar
from sublet.integrations.paddle.operators.dialect import facts_of, facts_of_shapes
from sublet.integrations.paddle.peaks.scopes import PaddleScopes, linked_gradient_names
from sublet.integrations.paddle.policies.rename_constraints import (
    NameUse,
    is_written_first,
    name_uses,
    owns_blocks,
    rename_constraints,
    rename_in_blocks,
)

# Shape equality: proof of equal type and shape of two variables at an operator, for any value of open extents.
#
# Closed declared extents decide at once. An open extent (-1) may differ between variables, even of the same operator:
# the steps of sequences have fewer and fewer rows. In this case, the operator must give its output the shape of X.

SHAPE_PRESERVING = frozenset(
    {
        *("assign", "dropout", "layer_norm", "logical_not", "relu", "scale", "sigmoid", "softmax", "square", "tanh"),
        *("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div"),
    }
)
"""Operators with an output of X's shape, if Y (for a binary operator) has closed extents and fewer axes."""


def visible_var(program: PaddleProgram, block: int, name: str | None) -> PaddleVar | None:
    """Return the variable of a name used in a block, or None; in a gradient block possibly a forward value."""
    forward = max(program.blocks[block].forward, 0)
    if name is None:
        return None
    return (
        program.blocks[block].vars.get(name) or program.blocks[forward].vars.get(name) or program.find_var(block, name)
    )


def have_equal_shapes(program: PaddleProgram, block: int, op: PaddleOp, one: PaddleVar, other: PaddleVar) -> bool:
    """Return True if two tensors have equal type, shape and level of detail whenever the operator runs."""
    if one.dtype is None or one.kind != TENSOR or other.kind != TENSOR:
        return False
    if (one.dtype, one.dims, one.lod_level) != (other.dtype, other.dims, other.lod_level):
        return False
    return min(one.dims, default=0) >= 0 or _preserves_shape(program, block, op, one, other)


def _preserves_shape(program: PaddleProgram, block: int, op: PaddleOp, one: PaddleVar, other: PaddleVar) -> bool:
    """Return True if both variables are main operands or results of an operator that preserves the shape of X."""
    kind = op.type.removesuffix("_grad")
    if kind not in SHAPE_PRESERVING:
        return False
    if kind.startswith("elementwise"):
        y = visible_var(program, block, op.first_input("Y"))
        if y is None or min(y.dims, default=0) < 0 or len(y.dims) >= len(one.dims):
            return False
    whole = {
        name
        for side in (op.inputs, op.outputs)
        for slot, names in side.items()
        for name in names
        if slot.removesuffix(GRAD) in ("X", "Out", "Y")
    }
    return {one.name, other.name} <= whole


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


# Shape proxies: a gradient block that needs only the shape of a forward value reads the shape of another value.
#
# A training loop keeps, for each iteration, every forward value mentioned by its gradient block, even if the gradient
# reads no byte of the value. Another tensor of the same shape and type, present anyway, serves as well.


def use_shape_proxies(program: PaddleProgram) -> PaddleProgram:
    """Return the program without shape-only uses of forward values in gradient blocks, where a proxy exists."""
    blocks = tuple(_with_proxies(program, block) if block.forward > 0 else block for block in program.blocks)
    return replace(program, blocks=blocks)


@dataclass(frozen=True, slots=True)
class _GradientScope:
    """Names visible in a gradient block: `forward` has variables of the forward block, `seen` the uses of names."""

    program: PaddleProgram
    block: PaddleBlock
    forward: Mapping[str, PaddleVar]
    seen: Mapping[str, list[NameUse]]

    def is_shape_only(self, name: str) -> bool:
        """Return True if the block uses only the shape of the forward value."""
        return name in self.forward and name not in self.block.vars and not self.is_needed(name)

    def is_needed(self, name: str) -> bool:
        """Return True if the block reads or writes the name."""
        return any(mention.reads or mention.writes for mention in self.seen[name])

    def candidates_at(self, op: PaddleOp, at: int) -> Iterator[str]:
        """Yield the candidates present at an operator: its own operands, then names used later, then all names used."""
        yield from (name for name in op.reads if any(m.reads for m in self.seen[name] if m.at == at))
        there = [
            name for name, those in self.seen.items() if self.is_needed(name) and self._is_present(name, those, at)
        ]
        yield from (name for name in there if self.seen[name][-1].at >= at)
        yield from there

    def _is_present(self, name: str, seen: list[NameUse], at: int) -> bool:
        """Return True if the name comes from outside of the block, or is written before the operator."""
        return name not in self.block.vars or any(mention.writes for mention in seen if mention.at < at)


def _with_proxies(program: PaddleProgram, gradient: PaddleBlock) -> PaddleBlock:
    """Return a gradient block with shape-only uses replaced by proxies."""
    scope = _GradientScope(
        program, gradient, program.blocks[gradient.forward].vars, name_uses(program, (gradient.index,))
    )
    ops = []
    for at, op in enumerate(gradient.ops):
        inputs = dict(op.inputs)
        for slot in facts_of(op.type).shape_only & inputs.keys():
            inputs[slot] = tuple(
                _proxy_for(scope, name, op, at) if scope.is_shape_only(name) else name for name in inputs[slot]
            )
        ops.append(replace(op, inputs=inputs) if inputs != dict(op.inputs) else op)
    return replace(gradient, ops=tuple(ops))


def _proxy_for(scope: _GradientScope, name: str, op: PaddleOp, at: int) -> str:
    """Return a name with the same shape; the name itself if no candidate fits."""
    mine = scope.forward[name]
    for other in scope.candidates_at(op, at):
        var = visible_var(scope.program, scope.block.index, other)
        if var is not None and have_equal_shapes(scope.program, scope.block.index, op, mine, var):
            return other
    return name

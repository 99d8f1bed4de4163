"""Shape proxies: a gradient block that needs only the shape of a forward value reads the shape of another value.

A training loop keeps, for each iteration, every forward value mentioned by its gradient block, even if the gradient
reads no byte of the value. Another tensor of the same shape and type, present anyway, serves as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import PaddleBlock, PaddleOp, PaddleProgram, PaddleVar
from sublet.frontends.paddle.operators.facts import facts_of
from sublet.frontends.paddle.policies.ours.name_uses import NameUse, name_uses
from sublet.frontends.paddle.policies.ours.shape_equality import have_equal_shapes, visible_var


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

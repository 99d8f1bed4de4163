"""Shape proxies: a gradient block that asks only for the shape of a forward value is given another value to ask.

A training loop keeps, for every trip, each forward value that its gradient block mentions, even where the gradient
needs no byte of it. Another tensor of the same shape and type that is there anyway answers as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sublet.frontends.paddle.format.program import Block, Op, Program, Var
from sublet.frontends.paddle.operators.facts import of
from sublet.frontends.paddle.policies.ours.mentions import Mention, mentions
from sublet.frontends.paddle.policies.ours.shapes_kept import alike, found


def shape_proxies(program: Program) -> Program:
    """The program whose gradient blocks mention no forward value of which they read no byte, where another will do."""
    blocks = tuple(_asked_elsewhere(program, block) if block.forward > 0 else block for block in program.blocks)
    return replace(program, blocks=blocks)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a gradient block sees: `forward` are variables that the forward block left there."""

    program: Program
    block: Block
    forward: Mapping[str, Var]
    seen: Mapping[str, list[Mention]]

    def asked(self, name: str) -> bool:
        """Whether a forward value is mentioned, but no byte of it is read."""
        return name in self.forward and name not in self.block.vars and not self.needed(name)

    def needed(self, name: str) -> bool:
        return any(mention.reads or mention.writes for mention in self.seen[name])

    def others(self, op: Op, at: int) -> Iterator[str]:
        """What else is there when an operator runs: what it reads itself; what is read later; what was read before."""
        yield from (name for name in op.reads if any(m.reads for m in self.seen[name] if m.at == at))
        there = [name for name, those in self.seen.items() if self.needed(name) and self._there(name, those, at)]
        yield from (name for name in there if self.seen[name][-1].at >= at)
        yield from there

    def _there(self, name: str, seen: list[Mention], at: int) -> bool:
        return name not in self.block.vars or any(mention.writes for mention in seen if mention.at < at)


def _asked_elsewhere(program: Program, gradient: Block) -> Block:
    scope = _Scope(program, gradient, program.blocks[gradient.forward].vars, mentions(program, (gradient.index,)))
    ops = []
    for at, op in enumerate(gradient.ops):
        inputs = dict(op.inputs)
        for slot in of(op.type).shape_only & inputs.keys():
            inputs[slot] = tuple(_proxy(scope, name, op, at) if scope.asked(name) else name for name in inputs[slot])
        ops.append(replace(op, inputs=inputs) if inputs != dict(op.inputs) else op)
    return replace(gradient, ops=tuple(ops))


def _proxy(scope: _Scope, name: str, op: Op, at: int) -> str:
    """Another name of the same shape; the name itself where there is none."""
    mine = scope.forward[name]
    for other in scope.others(op, at):
        var = found(scope.program, scope.block.index, other)
        if var is not None and alike(scope.program, scope.block.index, op, mine, var):
            return other
    return name

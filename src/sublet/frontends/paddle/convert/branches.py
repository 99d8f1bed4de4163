"""Conversion of `conditional_block` to a branch node.

Paddle writes if and else as two blocks, the second on the negated condition. A `select_input` then picks the result of
the executed block. The conversion turns such a pair into a single branch with two arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sublet.frontends.paddle.convert.scope import Conversion, Converter, Scope, assigned, dims_of, read, title
from sublet.frontends.paddle.format.program import Op
from sublet.frontends.paddle.operators.shapes import Key, joined
from sublet.ir.graph import CaseOf, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Choice:
    """A `select_input` after a pair of blocks: the variable written by each arm, and the variable with the result."""

    no: Key
    yes: Key
    out: Key


@dataclass(frozen=True, slots=True)
class Pair:
    """Two exclusive blocks: the operator at `yes` runs on the condition, the operator at `no` on the negation."""

    condition: str
    yes: int
    no: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs in a block, by the position of the second operator of each pair."""

    second: Mapping[int, Pair]

    @property
    def first(self) -> frozenset[int]:
        """The positions of the first operators of all pairs."""
        return frozenset(pair.yes for pair in self.second.values())


def pairs_of(conversion: Conversion, block: int) -> Pairs:
    """Return the pairs of branches in a block.

    No operator between the two blocks of a pair depends on the first, or changes an input of the first.
    """
    ops = conversion.program.blocks[block].ops
    negated = {op.output("Out"): (at, op.input("X")) for at, op in enumerate(ops) if op.type == "logical_not"}
    pairs: dict[int, Pair] = {}
    open_: dict[str, int] = {}
    for at, op in enumerate(ops):
        condition = op.input("Cond")
        if op.type != "conditional_block" or condition is None:
            continue
        between, of = negated.get(condition, (-1, None))
        yes = open_.pop(of, -1) if of is not None else -1
        if 0 <= yes < between < at and _independent(conversion, block, ops[yes], ops[yes + 1 : at]):
            choices = tuple(_choices(conversion, block, ops[yes], op, ops[at + 1 :]))
            if choices:
                pairs[at] = Pair(of or "", yes, at, choices)
                continue
        open_[condition] = at
    return Pairs(pairs)


def _independent(conversion: Conversion, block: int, first: Op, between: tuple[Op, ...]) -> bool:
    """Return True if the first block can move past the operators `between`: no read or write of either conflicts."""
    inner = first.block()
    if inner is None or any(op.block() is not None for op in between):
        return False
    writes = assigned(conversion.program, inner).keys()
    needs = read(conversion.program, inner) | {conversion.key(block, name) for name in first.reads}
    touched = {conversion.key(block, name) for op in between for name in (*op.reads, *op.writes)}
    changed = {conversion.key(block, name) for op in between for name in op.writes}
    return not touched & writes and not changed & needs


def _choices(conversion: Conversion, block: int, yes: Op, no: Op, after: tuple[Op, ...]) -> Iterator[Choice]:
    """Yield the selections after a pair that pick between results of the two blocks."""
    written = [assigned(conversion.program, op.block() or 0) for op in (no, yes)]
    for op in after:
        out, names = op.output("Out"), op.inputs.get("X", ())
        if op.type == "select_input" and len(names) == 2 and out is not None:
            keys = [conversion.key(block, name) for name in names]
            if all(key in writes for key, writes in zip(keys, written, strict=True)):
                yield Choice(keys[0], keys[1], conversion.key(block, out))


def add_pair(conversion: Conversion, block: int, pair: Pair, scope: Scope, convert: Converter) -> list[Node]:
    """Return the branch node for two exclusive blocks, after nodes for unwritten variables.

    The outputs are the selected results, then the further variables assigned by a block and used later.
    """
    ops = conversion.program.blocks[block].ops
    before: list[Node] = []
    picked = {key for choice in pair.choices for key in (choice.no, choice.yes)} - conversion.read_elsewhere
    blocks = [ops[at].block() or 0 for at in (pair.no, pair.yes)]
    others = [key for inner in blocks for key in assigned(conversion.program, inner)]
    kept = [key for key in dict.fromkeys(others) if key in conversion.wanted and key not in picked]
    for key in kept:
        conversion.initial(key, scope, before)
    index = conversion.flag(block, pair.condition, scope)
    scopes = [dict(scope), dict(scope)]
    bodies = [convert(conversion, inner, mine) for inner, mine in zip(blocks, scopes, strict=True)]
    sides = [(scopes[0][choice.no], scopes[1][choice.yes]) for choice in pair.choices]
    sides += [(scopes[0][key], scopes[1][key]) for key in kept]
    targets = [*(choice.out for choice in pair.choices), *kept]
    outputs = [_common(conversion, key, values) for key, values in zip(targets, sides, strict=True)]
    for choice, value in zip(pair.choices, outputs, strict=False):
        conversion.selections[choice.no, choice.yes] = value
    scope.update(zip(kept, outputs[len(pair.choices) :], strict=True))
    arms = tuple(
        Graph(f"block{inner}", (), tuple(body), tuple(values[side] for values in sides))
        for side, (inner, body) in enumerate(zip(blocks, bodies, strict=True))
    )
    name, source = title(block, pair.no, ops[pair.no]), f"block {block}, operators {pair.yes} and {pair.no}"
    return [*before, CaseOf(name, "case", (index,), tuple(outputs), {}, source, arms=arms)]


def add_branch(conversion: Conversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the branch node for a single block. An arm without operators returns the old values."""
    op = conversion.program.blocks[block].ops[position]
    inner = op.block() or 0
    before: list[Node] = []
    keys = [key for key in assigned(conversion.program, inner) if key in conversion.wanted]
    old = [conversion.initial(key, scope, before) for key in keys]
    index = conversion.flag(block, op.input("Cond") or "", scope)
    inside = dict(scope)
    body = convert(conversion, inner, inside)
    sides = [(was, inside[key]) for key, was in zip(keys, old, strict=True)]
    outputs = [_common(conversion, key, values) for key, values in zip(keys, sides, strict=True)]
    scope.update(zip(keys, outputs, strict=True))
    arms = (
        Graph(f"without_block{inner}", (), (), tuple(old)),
        Graph(f"block{inner}", (), tuple(body), tuple(inside[key] for key in keys)),
    )
    source = f"block {block}, operator {position}"
    return [*before, CaseOf(title(block, position, op), "case", (index,), tuple(outputs), {}, source, arms=arms)]


def _common(conversion: Conversion, key: Key, values: tuple[Value, Value]) -> Value:
    """Return a value for an output of a branch, with the extents common to both arms."""
    return conversion.value(key, joined(dims_of(values[0]), dims_of(values[1])))

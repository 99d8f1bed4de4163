"""Conversion of `conditional_block` to a branch node.

Paddle writes if and else as two blocks, the second on the negated condition. A `select_input` then picks the result of
the executed block. The conversion turns such a pair into a single branch with two arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sublet.integrations.paddle.convert.scope import (
    Converter,
    PaddleConversion,
    Scope,
    dims_of,
    node_name,
    outer_assignments,
    variables_read,
)
from sublet.integrations.paddle.format.program import PaddleOp
from sublet.integrations.paddle.operators.shapes import VariableKey, join_dims
from sublet.ir.graph import CaseOf, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class ArmSelection:
    """A `select_input` after a pair of blocks: the variable written by each arm, and the variable with the result."""

    no: VariableKey
    yes: VariableKey
    out: VariableKey


@dataclass(frozen=True, slots=True)
class BranchPair:
    """Two exclusive blocks: the operator at `yes` runs on the condition, the operator at `no` on the negation."""

    condition: str
    yes: int
    no: int
    selections: tuple[ArmSelection, ...]


@dataclass(frozen=True, slots=True)
class BranchPairs:
    """The pairs in a block, by the position of the second operator of each pair."""

    by_second_position: Mapping[int, BranchPair]

    @property
    def first_positions(self) -> frozenset[int]:
        """The positions of the first operators of all pairs."""
        return frozenset(pair.yes for pair in self.by_second_position.values())


def branch_pairs_of(conversion: PaddleConversion, block: int) -> BranchPairs:
    """Return the pairs of branches in a block.

    No operator between the two blocks of a pair depends on the first, or changes an input of the first.
    """
    ops = conversion.program.blocks[block].ops
    negated = {
        op.first_output("Out"): (at, op.first_input("X")) for at, op in enumerate(ops) if op.type == "logical_not"
    }
    pairs: dict[int, BranchPair] = {}
    open_: dict[str, int] = {}
    for at, op in enumerate(ops):
        condition = op.first_input("Cond")
        if op.type != "conditional_block" or condition is None:
            continue
        between, of = negated.get(condition, (-1, None))
        yes = open_.pop(of, -1) if of is not None else -1
        if 0 <= yes < between < at and _can_move_past(conversion, block, ops[yes], ops[yes + 1 : at]):
            choices = tuple(_arm_selections(conversion, block, ops[yes], op, ops[at + 1 :]))
            if choices:
                pairs[at] = BranchPair(of or "", yes, at, choices)
                continue
        open_[condition] = at
    return BranchPairs(pairs)


def _can_move_past(conversion: PaddleConversion, block: int, first: PaddleOp, between: tuple[PaddleOp, ...]) -> bool:
    """Return True if the first block can move past the operators `between`: no read or write of either conflicts."""
    inner = first.block_index()
    if inner is None or any(op.block_index() is not None for op in between):
        return False
    writes = outer_assignments(conversion.program, inner).keys()
    needs = variables_read(conversion.program, inner) | {conversion.variable_key(block, name) for name in first.reads}
    touched = {conversion.variable_key(block, name) for op in between for name in (*op.reads, *op.writes)}
    changed = {conversion.variable_key(block, name) for op in between for name in op.writes}
    return not touched & writes and not changed & needs


def _arm_selections(
    conversion: PaddleConversion, block: int, yes: PaddleOp, no: PaddleOp, after: tuple[PaddleOp, ...]
) -> Iterator[ArmSelection]:
    """Yield the selections after a pair that pick between results of the two blocks."""
    written = [outer_assignments(conversion.program, op.block_index() or 0) for op in (no, yes)]
    for op in after:
        out, names = op.first_output("Out"), op.inputs.get("X", ())
        if op.type == "select_input" and len(names) == 2 and out is not None:
            keys = [conversion.variable_key(block, name) for name in names]
            if all(key in writes for key, writes in zip(keys, written, strict=True)):
                yield ArmSelection(keys[0], keys[1], conversion.variable_key(block, out))


def add_branch_pair(
    conversion: PaddleConversion, block: int, pair: BranchPair, scope: Scope, convert: Converter
) -> list[Node]:
    """Return the branch node for two exclusive blocks, after nodes for unwritten variables.

    The outputs are the selected results, then the further variables assigned by a block and used later.
    """
    ops = conversion.program.blocks[block].ops
    before: list[Node] = []
    picked = {key for choice in pair.selections for key in (choice.no, choice.yes)} - conversion.read_elsewhere
    blocks = [ops[at].block_index() or 0 for at in (pair.no, pair.yes)]
    others = [key for inner in blocks for key in outer_assignments(conversion.program, inner)]
    kept = [key for key in dict.fromkeys(others) if key in conversion.wanted and key not in picked]
    for key in kept:
        conversion.value_before_control_flow(key, scope, before)
    index = conversion.condition_value(block, pair.condition, scope)
    scopes = [dict(scope), dict(scope)]
    bodies = [convert(conversion, inner, mine) for inner, mine in zip(blocks, scopes, strict=True)]
    sides = [(scopes[0][choice.no], scopes[1][choice.yes]) for choice in pair.selections]
    sides += [(scopes[0][key], scopes[1][key]) for key in kept]
    targets = [*(choice.out for choice in pair.selections), *kept]
    outputs = [_merged_value(conversion, key, values) for key, values in zip(targets, sides, strict=True)]
    for choice, value in zip(pair.selections, outputs, strict=False):
        conversion.selections[choice.no, choice.yes] = value
    scope.update(zip(kept, outputs[len(pair.selections) :], strict=True))
    arms = tuple(
        Graph(f"block{inner}", (), tuple(body), tuple(values[side] for values in sides))
        for side, (inner, body) in enumerate(zip(blocks, bodies, strict=True))
    )
    name, source = node_name(block, pair.no, ops[pair.no]), f"block {block}, operators {pair.yes} and {pair.no}"
    return [*before, CaseOf(name, "case", (index,), tuple(outputs), {}, source, arms=arms)]


def add_branch(conversion: PaddleConversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the branch node for a single block. An arm without operators returns the old values."""
    op = conversion.program.blocks[block].ops[position]
    inner = op.block_index() or 0
    before: list[Node] = []
    keys = [key for key in outer_assignments(conversion.program, inner) if key in conversion.wanted]
    old = [conversion.value_before_control_flow(key, scope, before) for key in keys]
    index = conversion.condition_value(block, op.first_input("Cond") or "", scope)
    inside = dict(scope)
    body = convert(conversion, inner, inside)
    sides = [(was, inside[key]) for key, was in zip(keys, old, strict=True)]
    outputs = [_merged_value(conversion, key, values) for key, values in zip(keys, sides, strict=True)]
    scope.update(zip(keys, outputs, strict=True))
    arms = (
        Graph(f"without_block{inner}", (), (), tuple(old)),
        Graph(f"block{inner}", (), tuple(body), tuple(inside[key] for key in keys)),
    )
    source = f"block {block}, operator {position}"
    return [*before, CaseOf(node_name(block, position, op), "case", (index,), tuple(outputs), {}, source, arms=arms)]


def _merged_value(conversion: PaddleConversion, key: VariableKey, values: tuple[Value, Value]) -> Value:
    """Return a value for an output of a branch, with the extents common to both arms."""
    return conversion.new_value(key, join_dims(dims_of(values[0]), dims_of(values[1])))

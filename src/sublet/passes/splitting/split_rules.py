"""Split rules: the slice maps by which a node is computed in pieces, as rows of the operands and rows of the results.

Two kinds of rows exist. "batch": the leading rows of a result computed sample by sample; a result summed over samples,
such as the gradient of a weight, accumulates piece by piece. "result": the leading rows of the result, for gradients of
large weights and for optimisers. Rows are contiguous, so slices of rows are views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sublet.base.ranges import Ranges, split_evenly
from sublet.ir.graph import Node, Value
from sublet.ops import slice_maps_of
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import PREFIX
from sublet.ops.nn.layout import slice_axis
from sublet.ops.slice_maps import Axes, SliceMap, are_leading, elementwise, shape_of, slice_map

BATCH, RESULT, ONTO, EARLY, MOMENTUM = "batch", "result", "onto", "early", "momentum"
"""Kinds of splits. BATCH and RESULT split into pieces; the remaining kinds only change the order or the accumulation.

ONTO: add an embedding gradient in place to the remaining gradient, without a whole table. EARLY: run an update as
early as possible, so the gradient dies early. MOMENTUM: like EARLY, with the gradient accumulated in the momentum."""

OPTIMIZERS = frozenset(("sgd", "adam", "adamw", "rmsprop"))
"""Commands that are not split by batch: the rows of weights are no samples."""

POINTWISE = frozenset(name for name, record in COMMANDS.items() if record.slices is elementwise)

BY_RESULT = POINTWISE | OPTIMIZERS | {"reshape", "matmul", "embedding_gradient"}
"""Commands split by rows of the result: those that make, change and apply gradients of weights."""

Shape = tuple[int, ...]
Operands = Sequence[Value | None]

Write = Callable[[Emitter, Node, Operands, int, int], tuple[Value, ...]]
"""(emit, node, operands, first row, last row plus 1) -> the results of a piece."""


@dataclass(frozen=True)
class SplitRule:
    """A rule to split a node.

    slices  the slice map; operands sliced along later axes are read whole, and sliced for each piece
    reads   by operand, the extents of a row; None if every piece reads the whole operand
    gives   by output, the extents of a row; None if the output is the sum of the pieces
    write   writes a piece, if a piece is more than the same command
    """

    slices: SliceMap
    reads: tuple[Shape | None, ...]
    gives: tuple[Shape | None, ...]
    write: Write | None = None

    @property
    def extent(self) -> int:
        """The number of rows to divide."""
        return self.slices.extent

    def bounds(self, pieces: int) -> Ranges:
        """Return the range of rows of each piece."""
        return split_evenly(self.extent, pieces)

    def sliced_operands(self, emit: Emitter, operands: Operands, begin: int, end: int) -> list[Value | None]:
        """Return the operands of a piece; slices along axes after the first are copies."""
        return [
            slice_axis(emit, value, axes.start, begin, end) if value is not None and axes and axes.start else value
            for value, axes in zip(operands, self.slices.inputs, strict=True)
        ]


def split_rules(node: Node, kind: str) -> list[SplitRule]:
    """Return the rules that split a node by rows of a kind, the preferred rule first."""
    name, tensors = node.op.removeprefix(PREFIX), (*node.uses, *node.defs)
    if not node.op.startswith(PREFIX) or not node.defs or any(not value.nbytes for value in tensors):
        return []
    if (kind, name) == (RESULT, "embedding_gradient"):
        return [_rule_of(node, each, _write_table_rows) for each in slice_map(node, [None, None], [0])]
    maps = slice_maps_of(node)
    if kind == BATCH and name not in OPTIMIZERS:
        return [_rule_of(node, each) for each in maps if each.exact and are_leading(*each.inputs, *each.outputs)]
    if kind == RESULT and name in BY_RESULT:
        return [_rule_of(node, each) for each in maps if None not in each.outputs and are_leading(*each.outputs)]
    return []


def fitting_rule(node: Node, rules: Sequence[SplitRule], pieces: int) -> SplitRule | None:
    """Return the first rule splitting a node into `pieces` equal pieces, else the first rule, else None."""
    rules = [each for each in rules if each.extent >= pieces > 1]
    equal = [each for each in rules if each.extent % pieces == 0]
    return next(iter(equal or ([] if node.op == "nn.reshape" else rules)), None)


def split_rule_for(node: Node, kind: str, pieces: int) -> SplitRule | None:
    """Return the rule splitting a node into `pieces` pieces, None if impossible; see `fitting_rule`."""
    return fitting_rule(node, split_rules(node, kind), pieces)


def _rule_of(node: Node, slices: SliceMap, write: Write | None = None) -> SplitRule:
    return SplitRule(slices, _rows(node.inputs, slices.inputs), _rows(node.outputs, slices.outputs), write)


def _rows(values: Operands, sliced: Sequence[Axes | None]) -> tuple[Shape | None, ...]:
    """Return the extents of a row of each value, one element along leading axes; None without leading axes."""
    pairs = zip(values, sliced, strict=True)
    return tuple(None if axes is None or axes.start else shape_of(value)[axes.stop :] for value, axes in pairs)


def _write_table_rows(emit: Emitter, node: Node, operands: Operands, begin: int, end: int) -> tuple[Value, ...]:
    """Write some rows of an embedding gradient; gradients of other rows are added to an extra row, then dropped."""
    dy, indices = operands
    assert dy is not None
    assert indices is not None
    at = emit("nn.sub", indices, emit.constant(begin, indices))
    not_before = emit("nn.greater_equal", at, emit.constant(0, at))
    inside = emit("nn.logical_and", not_before, emit("nn.less", at, emit.constant(end - begin, at)))
    kept = emit("nn.where", inside, at, emit.constant(end - begin, indices))
    table = emit("nn.embedding_gradient", dy, kept, rows=end - begin + 1)
    return (slice_axis(emit, table, 0, 0, end - begin),)

"""Commands computing sample by sample, with the same results for leading rows alone as for all rows.

A value has rows if the first axis is the axis of samples, or a multiple of the axis: the first k-th of the value
belongs to the first k-th of the samples. The split rules of a command provide the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from math import floor

from sublet.base.errors import SpecError
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.passes.splitting.split_rules import BY_BATCH, OF_A_PART, SplitRule, applicable_rules

MEAN, SUM = "mean", "sum"
BATCH_NORM = "nn.batch_norm"
"""The statistics of a part differ from the statistics of the whole batch. The caller decides on splitting."""


def attrs_of_part(node: Node, rows: Collection[int], share: Fraction) -> Mapping[str, Attr] | None:
    """Return the attributes of a node computing `share` of the rows, or None if no rule allows the part.

    `rows` are the positions of the operands with rows.
    """
    extents = {(shape_of(value) or (0,))[0] for value in outputs_with_rows(node)}
    if any(not extent or (extent * share).denominator > 1 for extent in extents):
        return None
    for way in applicable_rules(node, {**BY_BATCH, **OF_A_PART}):
        if _row_positions(way.reads) == set(rows) and 0 in _row_positions(way.gives) and not way.write:
            return {**node.attrs, **_part_attributes(node, way, share)}
    return None


def depends_on_whole_batch(node: Node) -> bool:
    """True if a part of the rows has different results alone than in the whole batch."""
    return node.op.removeprefix(PREFIX) in OF_A_PART


def _row_positions(each: Collection[object | None]) -> set[int]:
    """Return the positions of the entries with rows."""
    return {i for i, row in enumerate(each) if row is not None}


def _part_attributes(node: Node, way: SplitRule, share: Fraction) -> Mapping[str, Attr]:
    """Return the attributes to change for the share of rows."""
    if node.op == "nn.reshape":
        first, *rest = pick(node.attrs, "shape")
        return {"shape": (floor(first * share), *rest)}  # -1 stays -1: floor(-1 * share) is -1 for any share up to 1
    return way.attrs(int(way.extent * share))


def common_row_count(inputs: Sequence[Value], why: str) -> int:
    """Return the common number of rows of the inputs. Raises SpecError, beginning with `why`, if different."""
    extents = {spec_of(value).shape[0] for value in inputs}
    if len(extents) != 1:
        named = ", ".join(f"%{value.name}: {value.spec}" for value in inputs) or "none"
        raise SpecError(f"{why}; got {named}")
    return extents.pop()


def outputs_with_rows(node: Node) -> tuple[Value, ...]:
    """Return the outputs with rows, given an operand with rows."""
    return node.defs[:1] if node.op == BATCH_NORM else node.defs


def row_reduction(node: Node) -> str | None:
    """Return MEAN or SUM for a command reducing over all rows, else None."""
    name = node.op.removeprefix(PREFIX)
    if name not in (MEAN, SUM) or node.op == name:
        return None
    axes, rank = pick(node.attrs, "axes"), len(shape_of(node.uses[0]) or ())
    return name if rank and (not axes or 0 in {axis % rank for axis in axes}) else None


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    """Return the extents of a value; None for an absent value."""
    return None if value is None else spec_of(value).shape

"""Commands that compute sample by sample: which of them do with some leading rows what they do with all.

A value has rows when its first axis is that of the samples, or that and more: its first k-th is of the first k-th of
the samples. It is asked of the ways in which a command can be cut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from math import floor

from sublet.base.errors import SpecError
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.passes.splitting.ways import BY_BATCH, OF_A_PART, Way, ways

MEAN, SUM = "mean", "sum"
BATCH_NORM = "nn.batch_norm"
"""It computes with what it is given: its statistics are those of a part. Who cuts must know."""


def attrs_of_part(node: Node, rows: Collection[int], share: Fraction) -> Mapping[str, Attr] | None:
    """The attributes of a node that computes this share of the rows, which the operands at these positions have; None
    where nobody knows that it may."""
    extents = {(shape(value) or (0,))[0] for value in having_rows(node)}
    if any(not extent or (extent * share).denominator > 1 for extent in extents):
        return None
    for way in ways(node, {**BY_BATCH, **OF_A_PART}):
        if _cut(way.reads) == set(rows) and 0 in _cut(way.gives) and not way.write:
            return {**node.attrs, **_changed(node, way, share)}
    return None


def only_whole(node: Node) -> bool:
    """Whether a part of the rows gets other results than it has in the whole."""
    return node.op.removeprefix(PREFIX) in OF_A_PART


def _cut(each: Collection[object | None]) -> set[int]:
    return {i for i, row in enumerate(each) if row is not None}


def _changed(node: Node, way: Way, share: Fraction) -> Mapping[str, Attr]:
    if node.op == "nn.reshape":
        first, *rest = pick(node.attrs, "shape")
        return {"shape": (floor(first * share), *rest)}  # -1 stays what it is
    return way.attrs(int(way.extent * share))


def rows_of(inputs: Sequence[Value], why: str) -> int:
    """How many rows the inputs have. Raises SpecError, which begins with `why`, unless all have as many."""
    extents = {spec_of(value).shape[0] for value in inputs}
    if len(extents) != 1:
        named = ", ".join(f"%{value.name}: {value.spec}" for value in inputs) or "none"
        raise SpecError(f"{why}; there are {named}")
    return extents.pop()


def having_rows(node: Node) -> tuple[Value, ...]:
    """The outputs that have rows, where some operand has."""
    return node.defs[:1] if node.op == BATCH_NORM else node.defs


def reduced_over_rows(node: Node) -> str | None:
    """MEAN or SUM for what takes one of all rows; None for anything else."""
    name = node.op.removeprefix(PREFIX)
    if name not in (MEAN, SUM) or node.op == name:
        return None
    axes, rank = pick(node.attrs, "axes"), len(shape(node.uses[0]) or ())
    return name if rank and (not axes or 0 in {axis % rank for axis in axes}) else None


def shape(value: Value | None) -> tuple[int, ...] | None:
    """The extents of a value that is there."""
    return None if value is None else spec_of(value).shape

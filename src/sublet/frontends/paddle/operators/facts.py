"""Facts about Paddle's operators beyond their names, found by experiments with installed versions (`facts.json`).

Sublet is conservative with an operator without an entry: no output takes the place of an input, and outputs stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sublet.base.tensor import Dims

FACTS = Path(__file__).with_name("facts.json")

LAYER_NORM_LANES = 8
"""Elements per vector in the kernel of `layer_norm`. At the end of a row, the kernel processes the last full vector
again: in place, the result is wrong for rows of 12, 20 or 35 elements."""

SlotPairs = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Memory behaviour of an operator in every tested version. A pair has the slots of an input and an output.

    inplace       pairs allowed to share a name, for any argument of the slot
    inplace_first the same, for the first argument only
    placed        pairs allowed as two views at a common place
    placed_first  the same, for the first argument only
    equal         pairs with equal bits afterwards: the output is a copy
    holder        True if the operator takes two tensors in a common allocation for an in-place pair: beside an input in
                  the same arena, an output is wrong at any place other than the input's
    shape_only    input slots of which the operator reads only the shape
    moves         output slots that do not stay at their place
    shares        pairs with the same memory in any case
    known         True if the operator was tested
    """

    inplace: SlotPairs = frozenset()
    inplace_first: SlotPairs = frozenset()
    placed: SlotPairs = frozenset()
    placed_first: SlotPairs = frozenset()
    equal: SlotPairs = frozenset()
    holder: bool = False
    shape_only: frozenset[str] = frozenset()
    moves: frozenset[str] = frozenset()
    shares: SlotPairs = frozenset()
    known: bool = False


def facts_of(op_type: str) -> OpFacts:
    """Return the facts of an operator; for an untested operator, facts that allow no sharing.

    If the facts depend on extents, the result holds for plain extents (`_is_plain_shape`).
    """
    return _plain_facts().get(op_type, OpFacts())


def facts_of_shapes(op_type: str, x: Dims, y: Dims) -> OpFacts:
    """Return the facts of an operator for given extents of its inputs X and Y."""
    other = _other_facts().get(op_type)
    return facts_of(op_type) if other is None or _is_plain_shape(op_type, x, y) else other


def _is_plain_shape(op_type: str, x: Dims, y: Dims) -> bool:
    """Return True if the extents are plain.

    For `layer_norm`, rows must consist of whole vectors. For an element-wise operator, Y must have the extents of X's
    last axes.
    """
    if op_type == "layer_norm":
        return x is not None and bool(x) and x[-1] is not None and not x[-1] % LAYER_NORM_LANES
    return x is not None and y is not None and None not in (*x, *y) and y == x[len(x) - len(y) :]


def tested_versions() -> tuple[str, ...]:
    """Return the tested versions of Paddle."""
    return tuple(_facts_file()["versions"])


@cache
def _facts_file() -> dict[str, Any]:
    """Return the content of `facts.json`."""
    content: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return content


@cache
def _plain_facts() -> dict[str, OpFacts]:
    """Return the facts by operator, for plain extents."""
    return {name: _parse_facts(row) for name, row in _facts_file()["ops"].items()}


@cache
def _other_facts() -> dict[str, OpFacts]:
    """Return the facts by operator, for extents other than plain, if different."""
    return {name: _parse_facts(row["otherwise"]) for name, row in _facts_file()["ops"].items() if "otherwise" in row}


def _parse_facts(row: dict[str, Any]) -> OpFacts:
    """Parse the facts of an operator."""

    def pairs(field: str) -> SlotPairs:
        """Parse a list of slot pairs; empty if missing."""
        return frozenset((source, target) for source, target in row.get(field, ()))

    return OpFacts(
        inplace=pairs("inplace"),
        inplace_first=pairs("inplace_first"),
        placed=pairs("placed"),
        placed_first=pairs("placed_first"),
        equal=pairs("equal"),
        holder=row["holder"],
        shape_only=frozenset(row["shape_only"]),
        moves=frozenset(row.get("moves", ())),
        shares=pairs("shares"),
        known=True,
    )

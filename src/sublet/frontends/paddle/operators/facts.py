"""What is known of Paddle's ops beyond their names: found by experiment with installed versions (`facts.json`).

An op that is not there is left alone: nothing is written over its inputs, and its outputs are not moved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sublet.base.tensor import Dims

FACTS = Path(__file__).with_name("facts.json")

LANES = 8
"""So many elements the kernel of `layer_norm` takes at a time, and at the end of a row the last ones again: in place
that is wrong for rows of 12, 20 or 35."""

Pairs = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What an op does with memory, in every version it was tried in. Pairs are of an input's and an output's slot.

    inplace       pairs that may go by one name, whichever argument of the slot it is
    inplace_first pairs of which that holds for the first argument only
    placed        pairs that may be two views at one place
    placed_first  pairs of which that holds for the first argument only
    equal         pairs whose bits are the same afterwards: the output is a copy
    holder        it asks whether tensors come from one allocation, and takes that for in-place: beside an input in one
                  arena its output is wrong anywhere but on the input
    shape_only    slots whose bytes it never reads, so that only their shape must be there
    moves         slots of outputs that do not stay where they were put
    shares        pairs that are the same memory anyway
    known         whether it was tried at all
    """

    inplace: Pairs = frozenset()
    inplace_first: Pairs = frozenset()
    placed: Pairs = frozenset()
    placed_first: Pairs = frozenset()
    equal: Pairs = frozenset()
    holder: bool = False
    shape_only: frozenset[str] = frozenset()
    moves: frozenset[str] = frozenset()
    shares: Pairs = frozenset()
    known: bool = False


def of(op_type: str) -> OpFacts:
    """The facts of an op; of one that was never tried, those that let nothing be done with it.

    Where extents make a difference they are those of plain ones (`_plain`).
    """
    return _facts().get(op_type, OpFacts())


def of_shapes(op_type: str, x: Dims, y: Dims) -> OpFacts:
    """The facts of an op whose inputs X and Y have these extents, where it makes a difference."""
    other = _otherwise().get(op_type)
    return of(op_type) if other is None or _plain(op_type, x, y) else other


def _plain(op_type: str, x: Dims, y: Dims) -> bool:
    """Whether rows are whole vectors; of an element-wise op, whether Y has the shape of X's last axes."""
    if op_type == "layer_norm":
        return x is not None and bool(x) and x[-1] is not None and not x[-1] % LANES
    return x is not None and y is not None and None not in (*x, *y) and y == x[len(x) - len(y) :]


def versions() -> tuple[str, ...]:
    """The versions of Paddle in which the facts were found."""
    return tuple(_file()["versions"])


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return content


@cache
def _facts() -> dict[str, OpFacts]:
    return {name: _read(row) for name, row in _file()["ops"].items()}


@cache
def _otherwise() -> dict[str, OpFacts]:
    return {name: _read(row["otherwise"]) for name, row in _file()["ops"].items() if "otherwise" in row}


def _read(row: dict[str, Any]) -> OpFacts:
    def pairs(field: str) -> Pairs:
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

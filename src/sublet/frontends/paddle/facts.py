"""What is known of Paddle's ops beyond their names: found by experiment with installed versions (`facts.json`).

An op that is not there is left alone: nothing is written over its inputs, and its outputs are not moved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

FACTS = Path(__file__).with_name("facts.json")


class _Row(TypedDict):
    inplace: list[list[str]]
    holder: bool
    shape_only: list[str]


class _File(TypedDict):
    versions: list[str]
    ops: dict[str, _Row]


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What an op does with memory, in every version it was tried in.

    `inplace`: pairs of an input's and an output's slot that may be the same bytes, the sizes being equal.
    `holder`: it asks whether tensors come from one allocation, not whether they overlap: a place in a larger
    tensor is safe for its output only on its own input.
    `shape_only`: slots whose bytes it never reads, so that only their shape must be there.
    `known`: whether it was tried at all.
    """

    inplace: frozenset[tuple[str, str]] = frozenset()
    holder: bool = False
    shape_only: frozenset[str] = frozenset()
    known: bool = False


def of(op_type: str) -> OpFacts:
    """The facts of an op; of one that was never tried, those that let nothing be done with it."""
    return _facts().get(op_type, OpFacts())


def versions() -> tuple[str, ...]:
    """The versions of Paddle in which the facts were found."""
    return tuple(_file()["versions"])


@cache
def _file() -> _File:
    content: _File = json.loads(FACTS.read_text(encoding="utf-8"))
    return content


@cache
def _facts() -> dict[str, OpFacts]:
    return {
        name: OpFacts(
            frozenset((source, target) for source, target in row["inplace"]),
            row["holder"],
            frozenset(row["shape_only"]),
            known=True,
        )
        for name, row in _file()["ops"].items()
    }

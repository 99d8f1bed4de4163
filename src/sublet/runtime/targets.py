"""What pointers stand for, as far as it is known when a program is bound."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.ir.graph import Value
from sublet.plan import Context, Region
from sublet.runtime.memory import Memory


@dataclass(frozen=True, slots=True)
class RowOfNow:
    """Where a row lies in the round in which it is assigned to a pointer."""

    row: Value
    context: Context


Target = Region | Value | RowOfNow
"""What a pointer stands for: a region, or whatever another pointer has come to stand for in the run, or a row."""

NOWHERE = Region("", 0, 0)
"""Of a value that is no pointer."""


def now(target: Target, memory: Memory) -> Region:
    """What a target is at this moment of the run."""
    if isinstance(target, Region):
        return target
    if isinstance(target, Value):
        return memory.pointed[target.name]
    return memory.region(target.row, target.context)

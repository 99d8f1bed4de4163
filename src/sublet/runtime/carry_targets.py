"""Regions bound to renamed carries, as far as known when a program is bound."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.ir.graph import Value
from sublet.plan import Context, Region
from sublet.runtime.memory import ExecutableMemory


@dataclass(frozen=True, slots=True)
class CurrentRow:
    """The region of a row in the iteration that assigns the row to a renamed carry."""

    row: Value
    context: Context


Target = Region | Value | CurrentRow
"""The binding of a renamed carry: a region, the current binding of another renamed carry, or the current row."""

NOWHERE = Region("", 0, 0)
"""The target of a value that is no renamed carry."""


def resolve_target(target: Target, memory: ExecutableMemory) -> Region:
    """Return the region of a target at the current point of the run."""
    if isinstance(target, Region):
        return target
    if isinstance(target, Value):
        return memory.pointed[target.name]
    return memory.region(target.row, target.context)

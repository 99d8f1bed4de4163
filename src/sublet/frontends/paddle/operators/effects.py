"""What an operator does to names: what it reads, of that what only for its shape, and what it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sublet.base.tensor import Dims
from sublet.frontends.paddle.format.program import EMPTY, Op, Program
from sublet.frontends.paddle.operators.facts import OpFacts, of, of_shapes

PARTLY = {"write_to_array": ("Out",), "select_output": ("Out",), "array_write": ("Out",), "set_value": ("Out",)}
"""Slots of which an operator writes a part only: what was there before is still there beside it."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Names, each once: `reads` the bytes of some, the `shapes` only of others, `writes` some and `adds` to some."""

    reads: tuple[str, ...]
    shapes: tuple[str, ...]
    writes: tuple[str, ...]
    adds: tuple[str, ...]


def effects(op: Op) -> Effects:
    """The effects of an operator by its slots; those of a block that it runs are its operators' own."""
    shape_only, partly = of(op.type).shape_only, PARTLY.get(op.type, ())
    reads = _named(op.inputs, lambda slot: slot not in shape_only)
    shapes = _named(op.inputs, lambda slot: slot in shape_only)
    writes = _named(op.outputs, lambda slot: slot not in partly)
    adds = _named(op.outputs, lambda slot: slot in partly)
    return Effects(reads, tuple(name for name in shapes if name not in reads), writes, adds)


def facts_where(op: Op, dims: Callable[[str], Dims]) -> OpFacts:
    """The facts of an operator where its inputs X and Y have these extents."""
    x, y = (dims(name) if (name := op.input(slot)) else None for slot in ("X", "Y"))
    axis = op.attrs.get("axis")
    if axis is not None and x is not None and y is not None and axis.value not in (-1, len(x) - len(y)):
        y = None  # where it lies along X is not told by its extents
    return of_shapes(op.type, x, y)


def facts_declared(program: Program, block: int, op: Op) -> OpFacts:
    """The facts of an operator where it stands, by the extents that the program declares."""

    def declared(name: str) -> Dims:
        var = program.var(block, name)
        return None if var is None or -1 in var.dims else var.dims

    return facts_where(op, declared)


def there(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names without those that stand for nothing."""
    return tuple(name for name in names if name not in (EMPTY, ""))


def _named(slots: Mapping[str, tuple[str, ...]], taken: Callable[[str], bool]) -> tuple[str, ...]:
    """The names in the slots that are taken, each once."""
    return tuple(dict.fromkeys(name for slot, names in slots.items() if taken(slot) for name in there(names)))

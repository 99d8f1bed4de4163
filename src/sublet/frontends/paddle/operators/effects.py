"""Effects of an operator on names: reads, reads of the shape only, and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sublet.base.tensor import Dims
from sublet.frontends.paddle.format.program import EMPTY, Op, Program
from sublet.frontends.paddle.operators.facts import OpFacts, of, of_shapes

PARTLY = {"write_to_array": ("Out",), "select_output": ("Out",), "array_write": ("Out",), "set_value": ("Out",)}
"""Output slots with partial writes: the rest of the earlier content stays."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The names used by an operator, each once.

    reads   names with a read of the bytes
    shapes  names with a read of the shape only
    writes  names fully written
    adds    names partly written: the rest of the content stays
    """

    reads: tuple[str, ...]
    shapes: tuple[str, ...]
    writes: tuple[str, ...]
    adds: tuple[str, ...]


def effects(op: Op) -> Effects:
    """Return the effects of an operator by its slots, without the effects of operators in nested blocks."""
    shape_only, partly = of(op.type).shape_only, PARTLY.get(op.type, ())
    reads = _named(op.inputs, lambda slot: slot not in shape_only)
    shapes = _named(op.inputs, lambda slot: slot in shape_only)
    writes = _named(op.outputs, lambda slot: slot not in partly)
    adds = _named(op.outputs, lambda slot: slot in partly)
    return Effects(reads, tuple(name for name in shapes if name not in reads), writes, adds)


def facts_where(op: Op, dims: Callable[[str], Dims]) -> OpFacts:
    """Return the facts of an operator for given extents of its inputs X and Y."""
    x, y = (dims(name) if (name := op.input(slot)) else None for slot in ("X", "Y"))
    axis = op.attrs.get("axis")
    if axis is not None and x is not None and y is not None and axis.value not in (-1, len(x) - len(y)):
        y = None  # at such an axis, the extents of Y do not determine the broadcast
    return of_shapes(op.type, x, y)


def facts_declared(program: Program, block: int, op: Op) -> OpFacts:
    """Return the facts of an operator for the extents declared in the program."""

    def declared_dims(name: str) -> Dims:
        """Return the declared extents of a name; None if open or undeclared."""
        var = program.var(block, name)
        return None if var is None or -1 in var.dims else var.dims

    return facts_where(op, declared_dims)


def there(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without empty names."""
    return tuple(name for name in names if name not in (EMPTY, ""))


def _named(slots: Mapping[str, tuple[str, ...]], taken: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the names in the slots accepted by `taken`, each once."""
    return tuple(dict.fromkeys(name for slot, names in slots.items() if taken(slot) for name in there(names)))

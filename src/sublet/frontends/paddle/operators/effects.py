"""Effects of an operator on names: reads, reads of the shape only, and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sublet.base.tensor import Dims
from sublet.frontends.paddle.format.program import EMPTY_NAME, PaddleOp, PaddleProgram
from sublet.frontends.paddle.operators.facts import OpFacts, facts_of, facts_of_shapes

PARTIAL_WRITES = {"write_to_array": ("Out",), "select_output": ("Out",), "array_write": ("Out",), "set_value": ("Out",)}
"""Output slots with partial writes: the rest of the earlier content stays."""


@dataclass(frozen=True, slots=True)
class OperatorEffects:
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


def effects_of(op: PaddleOp) -> OperatorEffects:
    """Return the effects of an operator by its slots, without the effects of operators in nested blocks."""
    shape_only, partly = facts_of(op.type).shape_only, PARTIAL_WRITES.get(op.type, ())
    reads = _names_in_slots(op.inputs, lambda slot: slot not in shape_only)
    shapes = _names_in_slots(op.inputs, lambda slot: slot in shape_only)
    writes = _names_in_slots(op.outputs, lambda slot: slot not in partly)
    adds = _names_in_slots(op.outputs, lambda slot: slot in partly)
    return OperatorEffects(reads, tuple(name for name in shapes if name not in reads), writes, adds)


def facts_for_dims(op: PaddleOp, dims: Callable[[str], Dims]) -> OpFacts:
    """Return the facts of an operator for given extents of its inputs X and Y."""
    x, y = (dims(name) if (name := op.first_input(slot)) else None for slot in ("X", "Y"))
    axis = op.attrs.get("axis")
    if axis is not None and x is not None and y is not None and axis.value not in (-1, len(x) - len(y)):
        y = None  # at such an axis, the extents of Y do not determine the broadcast
    return facts_of_shapes(op.type, x, y)


def facts_from_declaration(program: PaddleProgram, block: int, op: PaddleOp) -> OpFacts:
    """Return the facts of an operator for the extents declared in the program."""

    def declared_dims(name: str) -> Dims:
        """Return the declared extents of a name; None if open or undeclared."""
        var = program.find_var(block, name)
        return None if var is None or -1 in var.dims else var.dims

    return facts_for_dims(op, declared_dims)


def nonempty_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without empty names."""
    return tuple(name for name in names if name not in (EMPTY_NAME, ""))


def _names_in_slots(slots: Mapping[str, tuple[str, ...]], taken: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the names in the slots accepted by `taken`, each once."""
    return tuple(dict.fromkeys(name for slot, names in slots.items() if taken(slot) for name in nonempty_names(names)))

"""The `paddle` dialect: Paddle's operators under their own names, as in "paddle.conv2d".

The node attributes "inputs" and "outputs" name the slot of each operand. The facts come from `facts.json`, with results
of experiments: an operator without an entry shares no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from sublet.base.tensor import Dims, TensorSpec
from sublet.integrations.paddle.format.program import EMPTY_NAME, PaddleOp, PaddleProgram
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, no_shares

# Facts about Paddle's operators beyond their names, found by experiments with installed versions (`facts.json`).
#
# Sublet is conservative with an operator without an entry: no output takes the place of an input, and outputs stay.

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


# Effects of an operator on names: reads, reads of the shape only, and writes.

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


PREFIX = "paddle."
UNDEFINED = "undefined"
"""No operator of Paddle: defines the content of a variable left unwritten by a branch."""

SAME_BYTES = frozenset(
    {
        *("assign", "flatten", "flatten2", "flatten_contiguous_range", "reshape", "reshape2", "squeeze", "squeeze2"),
        *("unsqueeze", "unsqueeze2", "share_data"),
    }
)
"""Operators with a first output equal to the first input: the same elements in the same order."""

RANDOM = frozenset(
    {
        *("bernoulli", "dropout", "exponential", "gaussian_random", "multinomial", "randint", "randperm"),
        *("truncated_gaussian_random", "uniform_random", "uniform_random_batch_size_like", UNDEFINED),
    }
)


@lru_cache(maxsize=4096)
def paddle_op(name: str) -> Op:
    """Return the operator record of a type; for a type without facts, a record without views or in-place outputs."""
    op_type = name.removeprefix(PREFIX)
    known = facts_of(op_type)
    same = op_type in SAME_BYTES and ("X", "Out") in known.placed
    return Op(
        name,
        views=_view_shares if same else no_shares,
        inplace=no_shares if same or not known.placed else partial(_inplace_shares, op_type),
        pure=op_type not in RANDOM and (known.known or op_type in SAME_BYTES),
    )


def _value_bytes(value: Value | None) -> int:
    """Return the bytes of a value; 0 if unknown."""
    return value.spec.nbytes if value is not None and isinstance(value.spec, TensorSpec) else 0


def _view_shares(node: Node) -> tuple[Share, ...]:
    """Return the view relation of a copying operator: the first output is the whole first input."""
    if not node.inputs or not node.outputs:
        return ()
    size = _value_bytes(node.inputs[0])
    return (Share(0, 0),) if size and size == _value_bytes(node.outputs[0]) else ()


def _inplace_shares(of: str, node: Node) -> tuple[Share, ...]:
    """Return the in-place relation: an output may take the place of an input of equal size, passed in no other slot."""
    sources, targets = node.attrs.get("inputs", ()), node.attrs.get("outputs", ())
    if not isinstance(sources, tuple) or not isinstance(targets, tuple):
        return ()
    operands = dict(zip(sources, node.inputs, strict=False))
    pairs = facts_of_shapes(of, _value_dims(operands.get("X")), _value_dims(operands.get("Y"))).placed
    return tuple(
        Share(j, i)
        for j, (target, result) in enumerate(zip(targets, node.outputs, strict=False))
        for i, (source, value) in enumerate(zip(sources, node.inputs, strict=False))
        if (source, target) in pairs
        and _value_bytes(result) == _value_bytes(value) > 0
        and node.inputs.count(value) == 1
        and sources.count(source) == 1
    )


def _value_dims(value: Value | None) -> Dims:
    """Return the extents of a value, or None."""
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else None

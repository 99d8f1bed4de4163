"""Encoder from records to the bytes of a ProgramDesc.

A decoded record is written as its original bytes, with only the fields patched that `dataclasses.replace` changed. The
encoder finds changed fields by identity. A new record is written as Paddle writes records, by field number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sublet.base.errors import ModelError
from sublet.integrations.paddle.format import wire
from sublet.integrations.paddle.format.program import (
    ATTRS,
    DTYPES,
    KINDS,
    SCALARS,
    TENSOR_FIELD,
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
)
from sublet.integrations.paddle.format.wire import FIXED32, FIXED64

KIND_NUMBERS = {name: number for number, name in KINDS.items()}
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
ATTR_NUMBERS = {name: (number, tag, many) for number, (name, tag, many) in ATTRS.items()}
SCALAR_NUMBERS = {kind: number for number, kind in SCALARS.items()}
VALUE_FIELDS = tuple(tag for _, tag, _ in ATTRS.values())

Record = TypeVar("Record", PaddleAttr, PaddleOp, PaddleVar, PaddleBlock, PaddleProgram)
Changes = Mapping[int, bytes]


def encode_program(program: PaddleProgram) -> bytes:
    """Return the bytes of a program. Unchanged parts of a decoded program keep their bytes."""
    raw, before = _origin_of(program)
    changes: dict[int, bytes] = {}
    if before is None or program.blocks is not before.blocks:
        changes[1] = wire.encode_messages(1, map(_block, program.blocks))
    if program.version != (before.version if before else 0):
        version = wire.patch_message(wire.payload_of(raw, 4), {1: wire.encode_integers(1, [program.version])})
        changes[4] = wire.encode_messages(4, [version])
    return wire.patch_message(raw, changes) if changes else raw


def _origin_of(record: Record) -> tuple[bytes, Record | None]:
    """Return the bytes that a record was decoded from, and the decoded record."""
    origin = record.origin
    if origin is None or not isinstance(origin.record, type(record)):
        return b"", None
    return origin.raw, origin.record


def _block(block: PaddleBlock) -> bytes:
    """Encode a block."""
    raw, before = _origin_of(block)
    changes: dict[int, bytes] = {}
    numbers = {1: (block.index, before and before.index), 2: (block.parent, before and before.parent)}
    numbers[5] = (block.forward, before and before.forward)
    for tag, (number, was) in numbers.items():
        if number != was:
            changes[tag] = wire.encode_integers(tag, [number])
    if before is None or block.vars is not before.vars:
        changes[3] = wire.encode_messages(3, (_var(name, var) for name, var in block.vars.items()))
    if before is None or block.ops is not before.ops:
        changes[4] = wire.encode_messages(4, map(_op, block.ops))
    return wire.patch_message(raw, changes) if changes else raw


def _op(op: PaddleOp) -> bytes:
    """Encode an operator."""
    raw, before = _origin_of(op)
    changes: dict[int, bytes] = {}
    if before is None or op.inputs is not before.inputs:
        changes[1] = _slots(1, op.inputs)
    if before is None or op.outputs is not before.outputs:
        changes[2] = _slots(2, op.outputs)
    if before is None or op.type != before.type:
        changes[3] = wire.encode_texts(3, [op.type])
    if before is None or op.attrs is not before.attrs:
        changes[4] = wire.encode_messages(4, (_attr(name, attr) for name, attr in op.attrs.items()))
    return wire.patch_message(raw, changes) if changes else raw


def _slots(tag: int, slots: Mapping[str, tuple[str, ...]]) -> bytes:
    """Encode the slots of an operator."""
    return wire.encode_messages(
        tag, (wire.encode_texts(1, [slot]) + wire.encode_texts(2, names) for slot, names in slots.items())
    )


def _attr(name: str, attr: PaddleAttr) -> bytes:
    """Encode an attribute. Raises ModelError for a value that the kind cannot hold."""
    raw, before = _origin_of(attr)
    changes: dict[int, bytes] = {}
    if before is None or name != before.name:
        changes[1] = wire.encode_texts(1, [name])
    if before is None or attr.kind != before.kind or attr.value is not before.value:
        number, tag, many = _numbers(name, attr)
        changes |= dict.fromkeys(VALUE_FIELDS, b"")
        changes[2] = wire.encode_integers(2, [number])
        try:
            changes[tag] = _value(attr.kind.removesuffix("S") if many else attr.kind, tag, attr.value, many)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ModelError(f"attribute {name!r} is {attr.kind} and cannot hold {attr.value!r:.80}") from error
    return wire.patch_message(raw, changes) if changes else raw


def _numbers(name: str, attr: PaddleAttr) -> tuple[int, int, bool]:
    """Return Paddle's number, field and repetition of an attribute kind. Raises ModelError for an unknown kind."""
    if attr.kind not in ATTR_NUMBERS:
        known = ", ".join(ATTR_NUMBERS)
        raise ModelError(f"attribute {name!r} is of a kind {attr.kind!r} that Paddle does not know (known: {known})")
    return ATTR_NUMBERS[attr.kind]


def _value(kind: str, tag: int, value: object, many: bool) -> bytes:
    """Encode the value of an attribute."""
    values = tuple(value) if many and isinstance(value, list | tuple) else (value,)
    if kind == "SCALAR":
        return wire.encode_messages(tag, map(_scalar, values))
    if kind in ("STRING", "VAR"):
        return wire.encode_texts(tag, values)
    if kind in ("FLOAT", "FLOAT64"):
        return wire.encode_reals(tag, FIXED32 if kind == "FLOAT" else FIXED64, values)
    return wire.encode_integers(tag, map(int, values))


def _scalar(value: bool | int | float | complex) -> bytes:
    """Encode a scalar attribute."""
    number = wire.encode_integers(1, [SCALAR_NUMBERS[type(value)]])
    if isinstance(value, int):
        return number + wire.encode_integers(2 if isinstance(value, bool) else 3, [value])
    if isinstance(value, float):
        return number + wire.encode_reals(4, FIXED64, [value])
    parts = wire.encode_reals(1, FIXED64, [value.real]) + wire.encode_reals(2, FIXED64, [value.imag])
    return number + wire.encode_messages(5, [parts])


def _var(name: str, var: PaddleVar) -> bytes:
    """Encode a variable."""
    raw, before = _origin_of(var)
    changes: dict[int, bytes] = {}
    if before is None or name != before.name:
        changes[1] = wire.encode_texts(1, [name])
    type_ = _type(var, before, wire.payload_of(raw, 2))
    if type_ is not None:
        changes[2] = wire.encode_messages(2, [type_])
    flags = {3: ("persistable", var.persistable), 5: ("parameter", var.parameter)}
    flags[6] = ("stop_gradient", var.stop_gradient)
    for tag, (attribute, flag) in flags.items():
        if flag != (getattr(before, attribute) if before else False):
            changes[tag] = wire.encode_integers(tag, [flag])
    return wire.patch_message(raw, changes) if changes else raw


def _type(var: PaddleVar, before: PaddleVar | None, raw: bytes) -> bytes | None:
    """Encode the type of a variable; None if the type is unchanged."""
    if before and (var.kind, var.dtype, var.dims, var.lod_level) == (
        before.kind, before.dtype, before.dims, before.lod_level
    ):  # fmt: skip
        return None
    changes: dict[int, bytes] = {}
    if before is None or var.kind != before.kind:
        number = KIND_NUMBERS.get(var.kind)
        if number is None:
            raise ModelError(f"variable {var.name!r} is of a kind {var.kind!r} that Paddle does not know")
        changes[1] = wire.encode_integers(1, [number])
    tag, nested = TENSOR_FIELD.get(var.kind, (0, False))
    if tag and (var.dtype is not None or var.dims):
        outer = wire.payload_of(raw, tag)
        tensor = wire.payload_of(outer, 1) if nested else outer
        tensor = wire.patch_message(tensor, _tensor(var, before))
        if nested:
            outer_changes = {1: wire.encode_messages(1, [tensor])}
            if var.lod_level != (before.lod_level if before else 0):
                outer_changes[2] = wire.encode_integers(2, [var.lod_level])
            tensor = wire.patch_message(outer, outer_changes)
        changes[tag] = wire.encode_messages(tag, [tensor])
    return wire.patch_message(raw, changes)


def _tensor(var: PaddleVar, before: PaddleVar | None) -> Changes:
    """Return the changed fields of a tensor description."""
    changes: dict[int, bytes] = {}
    if before is None or var.kind != before.kind or var.dtype is not before.dtype:
        if var.dtype is not None and var.dtype not in DTYPE_NUMBERS:
            raise ModelError(f"variable {var.name!r}: Paddle has no elements of type {var.dtype}")
        changes[1] = b"" if var.dtype is None else wire.encode_integers(1, [DTYPE_NUMBERS[var.dtype]])
    if before is None or var.kind != before.kind or var.dims != before.dims:
        changes[2] = wire.encode_integers(2, var.dims)
    return changes

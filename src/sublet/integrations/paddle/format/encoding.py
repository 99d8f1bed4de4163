"""Encoder from records to the bytes of a ProgramDesc, and decoder from the bytes to records.

A decoded record is written as its original bytes, with only the fields patched that `dataclasses.replace` changed. The
encoder finds changed fields by identity. A new record is written as Paddle writes records, by field number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sublet.base.errors import ModelError
from sublet.base.tensor import DType
from sublet.integrations.paddle.format import wire
from sublet.integrations.paddle.format.program import (
    ATTRS,
    DTYPES,
    KINDS,
    SCALARS,
    TENSOR_FIELD,
    AttrValue,
    Origin,
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    require_block_tree,
)
from sublet.integrations.paddle.format.wire import FIXED32, FIXED64, WireMessage

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
        changes[1] = wire.encode_messages(1, map(_encode_block, program.blocks))
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


def _encode_block(block: PaddleBlock) -> bytes:
    """Encode a block."""
    raw, before = _origin_of(block)
    changes: dict[int, bytes] = {}
    numbers = {1: (block.index, before and before.index), 2: (block.parent, before and before.parent)}
    numbers[5] = (block.forward, before and before.forward)
    for tag, (number, was) in numbers.items():
        if number != was:
            changes[tag] = wire.encode_integers(tag, [number])
    if before is None or block.vars is not before.vars:
        changes[3] = wire.encode_messages(3, (_encode_var(name, var) for name, var in block.vars.items()))
    if before is None or block.ops is not before.ops:
        changes[4] = wire.encode_messages(4, map(_encode_op, block.ops))
    return wire.patch_message(raw, changes) if changes else raw


def _encode_op(op: PaddleOp) -> bytes:
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
        changes[4] = wire.encode_messages(4, (_encode_attr(name, attr) for name, attr in op.attrs.items()))
    return wire.patch_message(raw, changes) if changes else raw


def _slots(tag: int, slots: Mapping[str, tuple[str, ...]]) -> bytes:
    """Encode the slots of an operator."""
    return wire.encode_messages(
        tag, (wire.encode_texts(1, [slot]) + wire.encode_texts(2, names) for slot, names in slots.items())
    )


def _encode_attr(name: str, attr: PaddleAttr) -> bytes:
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
            changes[tag] = _encode_value(attr.kind.removesuffix("S") if many else attr.kind, tag, attr.value, many)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ModelError(f"attribute {name!r} is {attr.kind} and cannot hold {attr.value!r:.80}") from error
    return wire.patch_message(raw, changes) if changes else raw


def _numbers(name: str, attr: PaddleAttr) -> tuple[int, int, bool]:
    """Return Paddle's number, field and repetition of an attribute kind. Raises ModelError for an unknown kind."""
    if attr.kind not in ATTR_NUMBERS:
        known = ", ".join(ATTR_NUMBERS)
        raise ModelError(f"attribute {name!r} is of a kind {attr.kind!r} that Paddle does not know (known: {known})")
    return ATTR_NUMBERS[attr.kind]


def _encode_value(kind: str, tag: int, value: object, many: bool) -> bytes:
    """Encode the value of an attribute."""
    values = tuple(value) if many and isinstance(value, list | tuple) else (value,)
    if kind == "SCALAR":
        return wire.encode_messages(tag, map(_encode_scalar, values))
    if kind in ("STRING", "VAR"):
        return wire.encode_texts(tag, values)
    if kind in ("FLOAT", "FLOAT64"):
        return wire.encode_reals(tag, FIXED32 if kind == "FLOAT" else FIXED64, values)
    return wire.encode_integers(tag, map(int, values))


def _encode_scalar(value: bool | int | float | complex) -> bytes:
    """Encode a scalar attribute."""
    number = wire.encode_integers(1, [SCALAR_NUMBERS[type(value)]])
    if isinstance(value, int):
        return number + wire.encode_integers(2 if isinstance(value, bool) else 3, [value])
    if isinstance(value, float):
        return number + wire.encode_reals(4, FIXED64, [value])
    parts = wire.encode_reals(1, FIXED64, [value.real]) + wire.encode_reals(2, FIXED64, [value.imag])
    return number + wire.encode_messages(5, [parts])


def _encode_var(name: str, var: PaddleVar) -> bytes:
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
        tensor = wire.patch_message(tensor, _encode_tensor(var, before))
        if nested:
            outer_changes = {1: wire.encode_messages(1, [tensor])}
            if var.lod_level != (before.lod_level if before else 0):
                outer_changes[2] = wire.encode_integers(2, [var.lod_level])
            tensor = wire.patch_message(outer, outer_changes)
        changes[tag] = wire.encode_messages(tag, [tensor])
    return wire.patch_message(raw, changes)


def _encode_tensor(var: PaddleVar, before: PaddleVar | None) -> Changes:
    """Return the changed fields of a tensor description."""
    changes: dict[int, bytes] = {}
    if before is None or var.kind != before.kind or var.dtype is not before.dtype:
        if var.dtype is not None and var.dtype not in DTYPE_NUMBERS:
            raise ModelError(f"variable {var.name!r}: Paddle has no elements of type {var.dtype}")
        changes[1] = b"" if var.dtype is None else wire.encode_integers(1, [DTYPE_NUMBERS[var.dtype]])
    if before is None or var.kind != before.kind or var.dims != before.dims:
        changes[2] = wire.encode_integers(2, var.dims)
    return changes


Named = TypeVar("Named")


def decode_program(data: bytes, where: str) -> PaddleProgram:
    """Decode a program. Messages call the program `where`. Raises ModelError for malformed bytes."""
    message = WireMessage.parse(data, where)
    version = message.message(4)
    blocks = tuple(_decode_block(each) for each in message.messages(1))
    program = require_block_tree(PaddleProgram(blocks, version.integer(1) if version else 0), where)
    return replace(program, origin=Origin(message.raw, program))


def _decode_block(message: WireMessage) -> PaddleBlock:
    """Decode a block."""
    message.require_fields(1, 2)
    variables = _unique_by_name(message, "variable", ((var.name, var) for var in map(_decode_var, message.messages(3))))
    ops = tuple(map(_decode_op, message.messages(4)))
    block = PaddleBlock(message.integer(1), message.integer(2), message.integer(5, -1), variables, ops)
    return replace(block, origin=Origin(message.raw, block))


def _unique_by_name(message: WireMessage, what: str, pairs: Iterable[tuple[str, Named]]) -> dict[str, Named]:
    """Return the pairs as a dict. Raises ModelError for a duplicate name."""
    by_name: dict[str, Named] = {}
    for name, value in pairs:
        if name in by_name:
            raise message.damage_error(f"the {what} {name!r:.80} occurs twice")
        by_name[name] = value
    return by_name


def _decode_var(message: WireMessage) -> PaddleVar:
    """Decode a variable."""
    message.require_fields(1, 2)
    type_ = message.message(2)
    assert type_ is not None
    type_.require_fields(1)
    number = type_.integer(1)
    kind = KINDS.get(number, f"KIND_{number}")
    dtype, dims, lod_level = _decode_tensor(type_, kind)
    var = PaddleVar(
        message.text(1), kind, dtype, dims, lod_level, message.flag(3), message.flag(5), message.flag(6)
    )  # fmt: skip
    return replace(var, origin=Origin(message.raw, var))


def _decode_tensor(type_: WireMessage, kind: str) -> tuple[DType | None, tuple[int, ...], int]:
    """Decode element type, extents and level of detail, as far as present.

    Paddle writes some gradients without an element type (see `with_missing_types` of `transpile.py`).
    """
    tag, nested = TENSOR_FIELD.get(kind, (0, False))
    outer = type_.message(tag) if tag else None
    tensor = outer.message(1) if outer and nested else outer
    if outer is None or tensor is None:
        return None, (), 0
    dtype = DTYPES.get(tensor.integer(1, -1))
    return dtype, tensor.integers(2), outer.integer(2) if nested else 0


def _decode_op(message: WireMessage) -> PaddleOp:
    """Decode an operator."""
    message.require_fields(3)
    sides = [
        _unique_by_name(message, "slot", ((slot.text(1), slot.texts(2)) for slot in message.messages(tag)))
        for tag in (1, 2)
    ]
    attrs = {
        attr.name: attr for attr in map(_decode_attr, message.messages(4))
    }  # 2.6 writes some twice; the last is valid
    op = PaddleOp(message.text(3), sides[0], sides[1], attrs)
    return replace(op, origin=Origin(message.raw, op))


def _decode_attr(message: WireMessage) -> PaddleAttr:
    """Decode an attribute."""
    message.require_fields(1, 2)
    number = message.integer(2)
    if number not in ATTRS:
        raise message.damage_error(f"an attribute cannot be of type {number}")
    kind, tag, many = ATTRS[number]
    attr = PaddleAttr(
        kind, _decode_value(message, kind.removesuffix("S") if many else kind, tag, many), name=message.text(1)
    )
    return replace(attr, origin=Origin(message.raw, attr))


def _decode_value(message: WireMessage, kind: str, tag: int, many: bool) -> AttrValue:
    """Decode the value of an attribute, or a tuple of values if `many`."""
    if kind == "SCALAR":
        scalars = tuple(_decode_scalar(each) for each in message.messages(tag))
        return scalars if many else next(iter(scalars), 0)
    if kind in ("STRING", "VAR"):
        return message.texts(tag) if many else message.text(tag)
    if kind in ("FLOAT", "FLOAT64"):
        width = FIXED32 if kind == "FLOAT" else FIXED64
        return message.reals(tag, width) if many else message.real(tag, width)
    if kind == "BOOLEAN":
        return tuple(map(bool, message.integers(tag))) if many else message.flag(tag)
    return message.integers(tag) if many else message.integer(tag)


def _decode_scalar(message: WireMessage) -> bool | int | float | complex:
    """Decode a scalar attribute."""
    kind = SCALARS.get(message.integer(1))
    if kind is bool:
        return message.flag(2)
    if kind is int:
        return message.integer(3)
    if kind is float:
        return message.real(4, FIXED64)
    pair = message.message(5)
    if kind is None or pair is None:
        raise message.damage_error("a scalar without a type or value")
    return complex(pair.real(1, FIXED64), pair.real(2, FIXED64))

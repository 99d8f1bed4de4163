"""Decoder from the bytes of a ProgramDesc to records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from sublet.base.tensor import DType
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

Named = TypeVar("Named")


def decode_program(data: bytes, where: str) -> PaddleProgram:
    """Decode a program. Messages call the program `where`. Raises ModelError for malformed bytes."""
    message = WireMessage.parse(data, where)
    version = message.message(4)
    blocks = tuple(_block(each) for each in message.messages(1))
    program = require_block_tree(PaddleProgram(blocks, version.integer(1) if version else 0), where)
    return replace(program, origin=Origin(message.raw, program))


def _block(message: WireMessage) -> PaddleBlock:
    """Decode a block."""
    message.require_fields(1, 2)
    variables = _unique_by_name(message, "variable", ((var.name, var) for var in map(_var, message.messages(3))))
    ops = tuple(map(_op, message.messages(4)))
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


def _var(message: WireMessage) -> PaddleVar:
    """Decode a variable."""
    message.require_fields(1, 2)
    type_ = message.message(2)
    assert type_ is not None
    type_.require_fields(1)
    number = type_.integer(1)
    kind = KINDS.get(number, f"KIND_{number}")
    dtype, dims, lod_level = _tensor(type_, kind)
    var = PaddleVar(
        message.text(1), kind, dtype, dims, lod_level, message.flag(3), message.flag(5), message.flag(6)
    )  # fmt: skip
    return replace(var, origin=Origin(message.raw, var))


def _tensor(type_: WireMessage, kind: str) -> tuple[DType | None, tuple[int, ...], int]:
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


def _op(message: WireMessage) -> PaddleOp:
    """Decode an operator."""
    message.require_fields(3)
    sides = [
        _unique_by_name(message, "slot", ((slot.text(1), slot.texts(2)) for slot in message.messages(tag)))
        for tag in (1, 2)
    ]
    attrs = {attr.name: attr for attr in map(_attr, message.messages(4))}  # 2.6 writes some twice; the last is valid
    op = PaddleOp(message.text(3), sides[0], sides[1], attrs)
    return replace(op, origin=Origin(message.raw, op))


def _attr(message: WireMessage) -> PaddleAttr:
    """Decode an attribute."""
    message.require_fields(1, 2)
    number = message.integer(2)
    if number not in ATTRS:
        raise message.damage_error(f"an attribute cannot be of type {number}")
    kind, tag, many = ATTRS[number]
    attr = PaddleAttr(kind, _value(message, kind.removesuffix("S") if many else kind, tag, many), name=message.text(1))
    return replace(attr, origin=Origin(message.raw, attr))


def _value(message: WireMessage, kind: str, tag: int, many: bool) -> AttrValue:
    """Decode the value of an attribute, or a tuple of values if `many`."""
    if kind == "SCALAR":
        scalars = tuple(_scalar(each) for each in message.messages(tag))
        return scalars if many else next(iter(scalars), 0)
    if kind in ("STRING", "VAR"):
        return message.texts(tag) if many else message.text(tag)
    if kind in ("FLOAT", "FLOAT64"):
        width = FIXED32 if kind == "FLOAT" else FIXED64
        return message.reals(tag, width) if many else message.real(tag, width)
    if kind == "BOOLEAN":
        return tuple(map(bool, message.integers(tag))) if many else message.flag(tag)
    return message.integers(tag) if many else message.integer(tag)


def _scalar(message: WireMessage) -> bool | int | float | complex:
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

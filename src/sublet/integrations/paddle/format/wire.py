"""Protobuf wire format: parse, encode and patch the fields of a message.

A patched message keeps all other bytes, including unknown fields and their order. The module does not know the meaning
of fields. For any input bytes, the memory of the result is a small multiple of the input size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sublet.base.errors import ModelError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
WIRE_TYPE_NAMES = {VARINT: "a number", FIXED64: "eight bytes", LENGTH: "a string or message", FIXED32: "four bytes"}
ADVICE = "the file is damaged, or not a Paddle program: save the program again"


class Field(NamedTuple):
    """A field in a message: tag at byte `start`, payload in bytes [at, end); `number` is the value of a varint."""

    tag: int
    wire: int
    start: int
    at: int
    end: int
    number: int


def damage_error(where: str, at: int, what: str) -> ModelError:
    """Return the error for malformed bytes at an offset."""
    return ModelError(f"{where}: at byte {at}: {what} ({ADVICE})")


def _decode_varint(data: bytes, at: int, end: int, where: str) -> tuple[int, int]:
    """Decode a varint, and return the value and the offset behind the varint."""
    if at < end and data[at] < 128:
        return data[at], at + 1
    number = shift = 0
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise damage_error(where, at, "a number has no last byte")


def parse_fields(data: bytes, start: int, end: int, where: str) -> list[Field]:
    """Return the fields of the message `data[start:end]`, in order. Raises ModelError for malformed bytes."""
    parsed = []
    at = start
    while at < end:
        begin = at
        key, at = _decode_varint(data, at, end, where)
        tag, wire, number = key >> 3, key & 7, 0
        if wire == VARINT:
            number, stop = _decode_varint(data, at, end, where)
        elif wire == LENGTH:
            length, at = _decode_varint(data, at, end, where)
            stop = at + length
        elif wire in (FIXED32, FIXED64):
            stop = at + (8 if wire == FIXED64 else 4)
        else:
            raise damage_error(where, begin, f"no field begins with {key}")
        if not 0 < tag < 1 << 29:
            raise damage_error(where, begin, f"a field cannot have the number {tag}")
        if stop > end:
            raise damage_error(where, begin, f"field {tag} has {stop - at} bytes, but only {end - at} are left")
        parsed.append(Field(tag, wire, begin, at, stop, number))
        at = stop
    return parsed


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message with its fields by number."""

    data: bytes
    start: int
    end: int
    where: str
    by_tag: Mapping[int, Sequence[Field]]

    @classmethod
    def parse(cls, data: bytes, where: str, start: int = 0, end: int | None = None) -> WireMessage:
        """Parse the message `data[start:end]`."""
        stop = len(data) if end is None else end
        by_tag: dict[int, list[Field]] = {}
        for field in parse_fields(data, start, stop, where):
            by_tag.setdefault(field.tag, []).append(field)
        return cls(data, start, stop, where, by_tag)

    @property
    def raw(self) -> bytes:
        """The bytes of the message."""
        return self.data[self.start : self.end]

    def damage_error(self, what: str, field: Field | None = None) -> ModelError:
        """Return the error for a malformed message, or for a field of the message."""
        return damage_error(self.where, field.start if field else self.start, what)

    def _single_field(self, tag: int, wire: int) -> Field | None:
        """Return the single field of a number, or None. Raises ModelError for a repeated field or another wire type."""
        repeated = self.by_tag.get(tag)
        if not repeated:
            return None
        if len(repeated) > 1:
            raise self.damage_error(f"field {tag} occurs twice", repeated[1])
        return self._require_wire_type(repeated[0], wire)

    def _require_wire_type(self, field: Field, wire: int) -> Field:
        """Return the field if its wire type is `wire`. Raises ModelError otherwise."""
        if field.wire != wire:
            raise self.damage_error(
                f"field {field.tag} is {WIRE_TYPE_NAMES[field.wire]}, not {WIRE_TYPE_NAMES[wire]}", field
            )
        return field

    def require_fields(self, *tags: int) -> None:
        """Raise ModelError if a field is missing."""
        for tag in tags:
            if tag not in self.by_tag:
                raise self.damage_error(f"field {tag} of a message of {self.end - self.start} bytes is missing")

    def integer(self, tag: int, default: int = 0) -> int:
        """Return a signed integer field."""
        field = self._single_field(tag, VARINT)
        return to_signed(field.number) if field else default

    def flag(self, tag: int) -> bool:
        """Return a bool field; False if missing."""
        return bool(self.integer(tag))

    def real(self, tag: int, wire: int) -> float:
        """Return a float field of 4 or 8 bytes; 0.0 if missing."""
        field = self._single_field(tag, wire)
        return self._decode_reals(field)[0] if field else 0.0

    def text(self, tag: int) -> str:
        """Return a string field; "" if missing."""
        field = self._single_field(tag, LENGTH)
        return self._decode_text(field) if field else ""

    def message(self, tag: int) -> WireMessage | None:
        """Return a nested message; None if missing."""
        field = self._single_field(tag, LENGTH)
        return WireMessage.parse(self.data, self.where, field.at, field.end) if field else None

    def integers(self, tag: int) -> tuple[int, ...]:
        """Return a repeated integer field, packed or not."""
        numbers: list[int] = []
        for field in self.by_tag.get(tag, ()):
            if field.wire == LENGTH:
                at = field.at
                while at < field.end:
                    number, at = _decode_varint(self.data, at, field.end, self.where)
                    numbers.append(to_signed(number))
            else:
                numbers.append(to_signed(self._require_wire_type(field, VARINT).number))
        return tuple(numbers)

    def reals(self, tag: int, wire: int) -> tuple[float, ...]:
        """Return a repeated float field of 4 or 8 bytes, packed or not."""
        each = 4 if wire == FIXED32 else 8
        numbers: list[float] = []
        for field in self.by_tag.get(tag, ()):
            if field.wire == LENGTH and (field.end - field.at) % each == 0:
                numbers += struct.unpack(
                    f"<{(field.end - field.at) // each}{_CODE[wire]}", self.data[field.at : field.end]
                )
            else:
                numbers += self._decode_reals(self._require_wire_type(field, wire))
        return tuple(numbers)

    def texts(self, tag: int) -> tuple[str, ...]:
        """Return a repeated string field."""
        return tuple(self._decode_text(self._require_wire_type(field, LENGTH)) for field in self.by_tag.get(tag, ()))

    def messages(self, tag: int) -> list[WireMessage]:
        """Return a repeated nested message."""
        nested = [self._require_wire_type(field, LENGTH) for field in self.by_tag.get(tag, ())]
        return [WireMessage.parse(self.data, self.where, field.at, field.end) for field in nested]

    def _decode_text(self, field: Field) -> str:
        """Decode a string. Bytes outside of UTF-8 become surrogates, and are restored by the encoder."""
        return self.data[field.at : field.end].decode("utf-8", "surrogateescape")

    def _decode_reals(self, field: Field) -> tuple[float, ...]:
        """Decode a single float."""
        return struct.unpack(f"<{_CODE[field.wire]}", self.data[field.at : field.end])


_CODE = {FIXED32: "f", FIXED64: "d"}


def to_signed(number: int) -> int:
    """Return the two's complement value of 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def encode_varint(number: int) -> bytes:
    """Encode a number in groups of seven bits."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def encode_integers(tag: int, numbers: Iterable[int]) -> bytes:
    """Encode integers, each as a separate field: the proto2 form of a repeated field."""
    key = encode_varint(tag << 3 | VARINT)
    return b"".join(key + encode_varint(number) for number in numbers)


def encode_reals(tag: int, wire: int, numbers: Iterable[float]) -> bytes:
    """Encode floats, each as a separate field."""
    key = encode_varint(tag << 3 | wire)
    return b"".join(key + struct.pack(f"<{_CODE[wire]}", number) for number in numbers)


def encode_messages(tag: int, payloads: Iterable[bytes]) -> bytes:
    """Encode nested messages, each as a separate field."""
    key = encode_varint(tag << 3 | LENGTH)
    return b"".join(key + encode_varint(len(payload)) + payload for payload in payloads)


def encode_texts(tag: int, strings: Iterable[str]) -> bytes:
    """Encode strings, each as a separate field."""
    return encode_messages(tag, (text.encode("utf-8", "surrogateescape") for text in strings))


def payload_of(raw: bytes, tag: int) -> bytes:
    """Return the payload of the first field `tag` of a valid message; b"" if missing."""
    matching = [field for field in parse_fields(raw, 0, len(raw), "") if field.tag == tag]
    return raw[matching[0].at : matching[0].end] if matching else b""


def patch_message(raw: bytes, changes: Mapping[int, bytes]) -> bytes:
    """Return the message with all fields of each number in `changes` replaced by encoded fields; b"" drops the fields.

    New fields take the position of the first old field. Fields absent from the message come last, by number.
    """
    parts: list[bytes] = []
    done: set[int] = set()
    for field in parse_fields(raw, 0, len(raw), ""):
        if field.tag not in changes:
            parts.append(raw[field.start : field.end])
        elif field.tag not in done:
            done.add(field.tag)
            parts.append(changes[field.tag])
    return b"".join([*parts, *(changes[tag] for tag in sorted(changes.keys() - done))])

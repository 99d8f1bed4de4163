"""Protobuf's wire format: fields read with the offset where they stand, written, and patched within a message.

A message that is patched keeps every other byte, unknown fields and their order among them. Nothing here knows
what a field means. Whatever the bytes say, what is made of them is a small multiple of their number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sublet.base.errors import ModelError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
KINDS = {VARINT: "a number", FIXED64: "eight bytes", LENGTH: "a string or message", FIXED32: "four bytes"}
ADVICE = "the file is damaged, or is no Paddle program: save it again"


class Field(NamedTuple):
    """One field where it stands: its tag at `start`, its payload from `at` to `end`; `number` is a varint's."""

    tag: int
    wire: int
    start: int
    at: int
    end: int
    number: int


def broken(where: str, at: int, what: str) -> ModelError:
    """The error that says where bytes are wrong."""
    return ModelError(f"{where}: at byte {at}: {what} ({ADVICE})")


def _varint(data: bytes, at: int, end: int, where: str) -> tuple[int, int]:
    if at < end and data[at] < 128:
        return data[at], at + 1
    number = shift = 0
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise broken(where, at, "a number does not end")


def fields(data: bytes, start: int, end: int, where: str) -> list[Field]:
    """The fields of the message that is `data[start:end]`, in order. Raises ModelError where they do not add up."""
    found = []
    at = start
    while at < end:
        begin = at
        key, at = _varint(data, at, end, where)
        tag, wire, number = key >> 3, key & 7, 0
        if wire == VARINT:
            number, stop = _varint(data, at, end, where)
        elif wire == LENGTH:
            length, at = _varint(data, at, end, where)
            stop = at + length
        elif wire in (FIXED32, FIXED64):
            stop = at + (8 if wire == FIXED64 else 4)
        else:
            raise broken(where, begin, f"no field begins with {key}")
        if not 0 < tag < 1 << 29:
            raise broken(where, begin, f"a field cannot have the number {tag}")
        if stop > end:
            raise broken(where, begin, f"field {tag} has {stop - at} bytes, of which {end - at} are there")
        found.append(Field(tag, wire, begin, at, stop, number))
        at = stop
    return found


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its fields by number."""

    data: bytes
    start: int
    end: int
    where: str
    by_tag: Mapping[int, Sequence[Field]]

    @classmethod
    def read(cls, data: bytes, where: str, start: int = 0, end: int | None = None) -> Message:
        """The message that is `data[start:end]`."""
        stop = len(data) if end is None else end
        by_tag: dict[int, list[Field]] = {}
        for field in fields(data, start, stop, where):
            by_tag.setdefault(field.tag, []).append(field)
        return cls(data, start, stop, where, by_tag)

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    def broken(self, what: str, field: Field | None = None) -> ModelError:
        """The error that says what is wrong with this message, or with a field of it."""
        return broken(self.where, field.start if field else self.start, what)

    def _one(self, tag: int, wire: int) -> Field | None:
        found = self.by_tag.get(tag)
        if not found:
            return None
        if len(found) > 1:
            raise self.broken(f"field {tag} is there twice", found[1])
        return self._checked(found[0], wire)

    def _checked(self, field: Field, wire: int) -> Field:
        if field.wire != wire:
            raise self.broken(f"field {field.tag} is {KINDS[field.wire]}, not {KINDS[wire]}", field)
        return field

    def needs(self, *tags: int) -> None:
        """Raises ModelError when a field is missing."""
        for tag in tags:
            if tag not in self.by_tag:
                raise self.broken(f"field {tag} of a message of {self.end - self.start} bytes is missing")

    def integer(self, tag: int, default: int = 0) -> int:
        field = self._one(tag, VARINT)
        return signed(field.number) if field else default

    def flag(self, tag: int) -> bool:
        return bool(self.integer(tag))

    def real(self, tag: int, wire: int) -> float:
        """A float of 4 or 8 bytes."""
        field = self._one(tag, wire)
        return self._reals(field)[0] if field else 0.0

    def text(self, tag: int) -> str:
        field = self._one(tag, LENGTH)
        return self._text(field) if field else ""

    def message(self, tag: int) -> Message | None:
        field = self._one(tag, LENGTH)
        return Message.read(self.data, self.where, field.at, field.end) if field else None

    def integers(self, tag: int) -> tuple[int, ...]:
        """Repeated numbers, packed or not."""
        found: list[int] = []
        for field in self.by_tag.get(tag, ()):
            if field.wire == LENGTH:
                at = field.at
                while at < field.end:
                    number, at = _varint(self.data, at, field.end, self.where)
                    found.append(signed(number))
            else:
                found.append(signed(self._checked(field, VARINT).number))
        return tuple(found)

    def reals(self, tag: int, wire: int) -> tuple[float, ...]:
        """Repeated floats of 4 or 8 bytes, packed or not."""
        each = 4 if wire == FIXED32 else 8
        found: list[float] = []
        for field in self.by_tag.get(tag, ()):
            if field.wire == LENGTH and (field.end - field.at) % each == 0:
                found += struct.unpack(
                    f"<{(field.end - field.at) // each}{_CODE[wire]}", self.data[field.at : field.end]
                )
            else:
                found += self._reals(self._checked(field, wire))
        return tuple(found)

    def texts(self, tag: int) -> tuple[str, ...]:
        return tuple(self._text(self._checked(field, LENGTH)) for field in self.by_tag.get(tag, ()))

    def messages(self, tag: int) -> list[Message]:
        found = [self._checked(field, LENGTH) for field in self.by_tag.get(tag, ())]
        return [Message.read(self.data, self.where, field.at, field.end) for field in found]

    def _text(self, field: Field) -> str:
        """Bytes that are no UTF-8 come through as surrogates, and out again."""
        return self.data[field.at : field.end].decode("utf-8", "surrogateescape")

    def _reals(self, field: Field) -> tuple[float, ...]:
        return struct.unpack(f"<{_CODE[field.wire]}", self.data[field.at : field.end])


_CODE = {FIXED32: "f", FIXED64: "d"}


def signed(number: int) -> int:
    """What 64 bits mean in two's complement."""
    return number - (1 << 64) if number >> 63 else number


def varint(number: int) -> bytes:
    """The number in groups of seven bits."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def integers(tag: int, numbers: Iterable[int]) -> bytes:
    """One field a number, as proto2 writes repeated ones."""
    key = varint(tag << 3 | VARINT)
    return b"".join(key + varint(number) for number in numbers)


def reals(tag: int, wire: int, numbers: Iterable[float]) -> bytes:
    key = varint(tag << 3 | wire)
    return b"".join(key + struct.pack(f"<{_CODE[wire]}", number) for number in numbers)


def messages(tag: int, payloads: Iterable[bytes]) -> bytes:
    key = varint(tag << 3 | LENGTH)
    return b"".join(key + varint(len(payload)) + payload for payload in payloads)


def texts(tag: int, strings: Iterable[str]) -> bytes:
    return messages(tag, (text.encode("utf-8", "surrogateescape") for text in strings))


def inside(raw: bytes, tag: int) -> bytes:
    """The payload of the one field `tag` of a message that has been read before; b"" when it has none."""
    found = [field for field in fields(raw, 0, len(raw), "") if field.tag == tag]
    return raw[found[0].at : found[0].end] if found else b""


def patched(raw: bytes, changes: Mapping[int, bytes]) -> bytes:
    """The message with all fields of each number in `changes` replaced by encoded ones, b"" to drop them.

    They stand where the first of them stood; what was not there comes last, by number.
    """
    parts: list[bytes] = []
    done: set[int] = set()
    for field in fields(raw, 0, len(raw), ""):
        if field.tag not in changes:
            parts.append(raw[field.start : field.end])
        elif field.tag not in done:
            done.add(field.tag)
            parts.append(changes[field.tag])
    return b"".join([*parts, *(changes[tag] for tag in sorted(changes.keys() - done))])

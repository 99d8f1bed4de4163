"""A reader of FlatBuffers within bounds: tables by field numbers, with every offset checked before use.

The reader does not know the meaning of any field. A malicious file may place a million tables at the same bytes: a
small multiple of the file's size therefore bounds the total number of bytes read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.base.errors import ModelError

READ_PER_BYTE = 8
"""Reads of a byte of a well-formed file, at most. Tables may share names and vectors, although writers do not share."""

FIXED = 1 << 16
"""Bytes readable from a file of any size, in addition to READ_PER_BYTE."""


@dataclass(slots=True)
class Wire:
    """The bytes of a file, and the number of bytes that may still be read; `advice` ends every error."""

    data: bytes
    where: str
    advice: str
    budget_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.budget_bytes = READ_PER_BYTE * len(self.data) + FIXED

    def format_error(self, at: int, what: str) -> ModelError:
        """Return the error for wrong bytes at address `at`."""
        return ModelError(f"{self.where}: at byte {at}: {what} ({self.advice})")

    def number(self, kind: str, at: int, what: str) -> int:
        """Return one little-endian number. Raises ModelError at the end of the file."""
        width = struct.calcsize(f"<{kind}")
        self.account_for(at, width, what)
        return int(struct.unpack_from(f"<{kind}", self.data, at)[0])

    def account_for(self, at: int, nbytes: int, what: str) -> None:
        """Account for a read of `nbytes` bytes. Raises ModelError beyond the file, or beyond the total bound."""
        if at < 0 or at + nbytes > len(self.data):
            raise self.format_error(
                at, f"{what} has {nbytes} bytes, of which the file holds {max(0, len(self.data) - at)}"
            )
        self.budget_bytes -= nbytes
        if self.budget_bytes < 0:
            raise self.format_error(at, "the file refers to the same bytes too often")

    def root(self, identifier: bytes) -> Table:
        """Return the root table. Raises ModelError for a file of another kind."""
        if self.data[4:8] != identifier:
            raise self.format_error(4, f"{identifier.decode()!r} expected here: the identifier of the file format")
        return Table(self, self.number("I", 0, "the offset of the first table"))


@dataclass(slots=True)
class Table:
    """A table at an address. Absent fields have defaults, as in the FlatBuffers format."""

    wire: Wire
    at: int
    _fields: int = field(init=False)
    _count: int = field(init=False)
    _end: int = field(init=False)

    def __post_init__(self) -> None:
        wire = self.wire
        self._fields = self.at - wire.number("i", self.at, "a table")
        nbytes = wire.number("H", self._fields, "the fields of a table")
        self._end = self.at + wire.number("H", self._fields + 2, "the fields of a table")
        if nbytes < 4 or nbytes % 2:
            raise wire.format_error(self._fields, f"the fields of a table cannot have {nbytes} bytes")
        wire.account_for(self._fields, nbytes, "the fields of a table")
        wire.account_for(self.at, max(0, self._end - self.at), "a table")
        self._count = (nbytes - 4) // 2

    @property
    def fields(self) -> tuple[int, ...]:
        """The numbers of the present fields."""
        return tuple(number for number in range(self._count) if self.field_address(number, 1) is not None)

    def field_address(self, number: int, width: int) -> int | None:
        """Return the address of a field of `width` bytes; None for an absent field."""
        if number >= self._count:
            return None
        offset = struct.unpack_from("<H", self.wire.data, self._fields + 4 + 2 * number)[0]
        if offset == 0:
            return None
        if offset < 4 or self.at + offset + width > self._end:
            raise self.wire.format_error(self.at, f"field {number} lies outside its table")
        return self.at + int(offset)

    def integer(self, number: int, kind: str, default: int = 0) -> int:
        """Return a number in a field."""
        at = self.field_address(number, struct.calcsize(f"<{kind}"))
        return default if at is None else int(struct.unpack_from(f"<{kind}", self.wire.data, at)[0])

    def offset_target(self, number: int) -> int | None:
        """Return the address referenced by the offset in a field; None for an absent field."""
        at = self.field_address(number, 4)
        return None if at is None else at + int(struct.unpack_from("<I", self.wire.data, at)[0])

    def table(self, number: int) -> Table | None:
        """Return the table referenced by a field."""
        at = self.offset_target(number)
        return None if at is None else Table(self.wire, at)

    def vector_extent(self, number: int, width: int) -> tuple[int, int]:
        """Return the address of the elements of a vector, and the number of elements."""
        at = self.offset_target(number)
        if at is None:
            return 0, 0
        count = self.wire.number("I", at, "the length of a vector")
        self.wire.account_for(at + 4, count * width, f"field {number}, a vector,")
        return at + 4, count

    def raw(self, number: int) -> memoryview | None:
        """Return the bytes of a vector; None for an absent field."""
        if self.field_address(number, 4) is None:
            return None
        at, count = self.vector_extent(number, 1)
        return memoryview(self.wire.data)[at : at + count]

    def text(self, number: int) -> str:
        """Return a string; invalid UTF-8 becomes escapes."""
        return bytes(self.raw(number) or b"").decode("utf-8", "backslashreplace")

    def integers(self, number: int, kind: str) -> tuple[int, ...]:
        """Return a vector of numbers."""
        at, count = self.vector_extent(number, struct.calcsize(f"<{kind}"))
        return struct.unpack_from(f"<{count}{kind}", self.wire.data, at) if count else ()

    def reals(self, number: int) -> tuple[float, ...]:
        """Return a vector of floats."""
        at, count = self.vector_extent(number, 4)
        return struct.unpack_from(f"<{count}f", self.wire.data, at) if count else ()

    def tables(self, number: int) -> Iterator[Table]:
        """Yield the tables of a vector."""
        at, count = self.vector_extent(number, 4)
        for place in range(at, at + 4 * count, 4):
            yield Table(self.wire, place + int(struct.unpack_from("<I", self.wire.data, place)[0]))

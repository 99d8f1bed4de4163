"""FlatBuffer encoder: serialises a tree of tables, vectors and strings, parents before children.

The new tables may refer to existing bytes appended after the tables: a file gets a new root and keeps all old bytes
unchanged, see `KeptItem`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_ALIGNMENT = 16
"""The largest alignment of vector elements, in bytes: tensor contents need 16."""


@dataclass(frozen=True, slots=True)
class NumberField:
    """A scalar table field; `kind` is a format character of `struct`."""

    kind: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of numbers or bytes; `kind` is a format character of `struct`, `alignment` is in bytes."""

    kind: str
    values: Sequence[int | float]
    alignment: int = 4


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    text: str


@dataclass(frozen=True, slots=True)
class KeptItem:
    """A reference to the item at byte `at` of the kept bytes."""

    at: int


@dataclass(frozen=True, slots=True)
class ItemVector:
    """A vector of tables or strings."""

    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table: fields by field number."""

    fields: Mapping[int, Item]


Item = NumberField | Vector | Text | KeptItem | ItemVector | TableRecord


def encode_flatbuffer(root: TableRecord, identifier: bytes, kept: bytes = b"") -> bytes:
    """Return a file with the table `root`, followed by the `kept` bytes at a multiple of `MAX_ALIGNMENT`."""
    writer = _FlatBufferWriter()
    writer.raw += b"\0\0\0\0" + identifier
    writer.add_reference(0, root)
    while writer.todo:
        place, item = writer.todo.pop(0)
        at = writer.write_item(item)
        struct.pack_into("<I", writer.raw, place, at - place)
    writer.pad_to(MAX_ALIGNMENT)
    base = len(writer.raw)
    for place, item in writer.kept_references:
        struct.pack_into("<I", writer.raw, place, base + item.at - place)
    return bytes(writer.raw) + kept


@dataclass
class _FlatBufferWriter:
    """The encoded bytes, with offsets still to resolve: `todo` to new items, `later` to kept items."""

    raw: bytearray = field(default_factory=bytearray)
    todo: list[tuple[int, Item]] = field(default_factory=list)
    kept_references: list[tuple[int, KeptItem]] = field(default_factory=list)

    def pad_to(self, alignment: int, before: int = 0) -> None:
        """Append zeros to align the position `before` bytes later."""
        self.raw += bytes(-(len(self.raw) + before) % alignment)

    def add_reference(self, place: int, item: Item) -> None:
        """Register the offset field at `place`, pointing to `item`."""
        if isinstance(item, KeptItem):
            self.kept_references.append((place, item))
        else:
            self.todo.append((place, item))

    def write_item(self, item: Item) -> int:
        """Append an item and return the item's position."""
        if isinstance(item, TableRecord):
            return self._write_table(item)
        if isinstance(item, Text):
            content = item.text.encode()
            return self._write_vector(len(content), content + b"\0", 4)
        if isinstance(item, Vector):
            content = item.values if isinstance(item.values, bytes) else b""
            if not content:
                content = struct.pack(f"<{len(item.values)}{item.kind}", *item.values)
            return self._write_vector(len(item.values), content, max(item.alignment, struct.calcsize(f"<{item.kind}")))
        assert isinstance(item, ItemVector)
        at = self._write_vector(len(item.items), bytes(4 * len(item.items)), 4)
        for i, each in enumerate(item.items):
            self.add_reference(at + 4 + 4 * i, each)
        return at

    def _write_vector(self, count: int, content: bytes, alignment: int) -> int:
        """Append a vector with a length prefix and return the position."""
        self.pad_to(max(4, alignment), 4)
        at = len(self.raw)
        self.raw += struct.pack("<I", count) + content
        return at

    def _write_table(self, record: TableRecord) -> int:
        """Append a table with a vtable and return the position."""
        widths = {
            n: struct.calcsize(f"<{i.kind}") if isinstance(i, NumberField) else 4 for n, i in record.fields.items()
        }
        offsets, nbytes = {}, 4
        for number in sorted(widths, key=lambda n: -widths[n]):
            nbytes += -nbytes % widths[number]
            offsets[number] = nbytes
            nbytes += widths[number]
        count = max(record.fields, default=-1) + 1
        self.pad_to(8, 4 + 2 * count)
        begin = len(self.raw)
        self.raw += struct.pack(f"<HH{count}H", 4 + 2 * count, nbytes, *(offsets.get(n, 0) for n in range(count)))
        at = len(self.raw)
        self.raw += struct.pack("<i", at - begin) + bytes(nbytes - 4)
        for number, item in record.fields.items():
            if isinstance(item, NumberField):
                struct.pack_into(f"<{item.kind}", self.raw, at + offsets[number], item.value)
            else:
                self.add_reference(at + offsets[number], item)
        return at

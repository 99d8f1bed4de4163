"""Offline memory plans for TensorFlow Lite Micro, stored in the metadata of a .tflite file.

The metadata buffer holds 32-bit integers: a version, the number of subgraphs, the number of offsets, and the arena
offset in bytes of each tensor, subgraph after subgraph, or -1 for a tensor to be placed by TFLM.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, PlanError
from sublet.base.flatbuffer import Table, Wire
from sublet.integrations.tflite.program import ADVICE, IDENTIFIER, TFLiteProgram, decode

METADATA = "OfflineMemoryAllocation"
VERSION, PLACED_BY_TFLM = 1, -1

Offsets = tuple[tuple[int | None, ...], ...]
"""For each subgraph the arena offset of each tensor in bytes; None for a tensor to be placed by TFLM."""


def offline_plan(program: TFLiteProgram) -> Offsets | None:
    """Return the offline plan in a file; None without a plan.

    Raises ModelError for a plan of another number of tensors.
    """
    stored = program.metadata_content(METADATA)
    if stored is None:
        return None
    counts = [len(subgraph.tensors) for subgraph in program.subgraphs]
    length = len(stored) // 4
    numbers = struct.unpack_from(f"<{length}i", stored)
    if length < 3 or numbers[2] != sum(counts) or length < 3 + sum(counts):
        size = f"{numbers[2]} offsets" if length > 2 else f"{len(stored)} bytes"
        raise ModelError(
            f"{program.where}: the offline memory plan has {size}, the model {sum(counts)} tensors: plan again"
        )
    plan, at = [], 3
    for count in counts:
        plan.append(tuple(None if offset == PLACED_BY_TFLM else offset for offset in numbers[at : at + count]))
        at += count
    return tuple(plan)


def encode_offsets(offsets: Sequence[Sequence[int | None]]) -> bytes:
    """Return the content of the metadata buffer for a plan."""
    flat = [PLACED_BY_TFLM if offset is None else offset for subgraph in offsets for offset in subgraph]
    return struct.pack(f"<{3 + len(flat)}i", VERSION, len(offsets), len(flat), *flat)


# FlatBuffer encoder: serialises a tree of tables, vectors and strings, parents before children.
#
# The new tables may refer to existing bytes appended after the tables: a file gets a new root and keeps all old bytes
# unchanged, see `KeptItem`.

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


# Replacement of the offline plan in a .tflite file, with all remaining content unchanged.
#
# The old bytes stay contiguous and unchanged behind a new root. All offsets in a flatbuffer point forward, so new
# tables at the beginning can refer to old content. A plan of equal length overwrites the old plan directly.

VERSION, SUBGRAPHS, BUFFERS, METADATA_FIELD, KNOWN_FIELDS = 0, 2, 4, 6, 8
SUBGRAPH_OPERATORS = 3
"""Field numbers of the model table, and the number of known fields; the field of a subgraph table."""


def with_offline_plan(raw: bytes, where: str, content: bytes | None) -> bytes:
    """Return the file with `content` as offline plan, or without an offline plan if None.

    Raises ModelError for an unsupported file, PlanError if the result differs in more than the plan.
    """
    program = decode(raw, where)
    if program.has_detached_content:
        raise ModelError(f"{where}: content lies behind the flatbuffer, where TensorFlow Lite Micro cannot read")
    stored = program.metadata_content(METADATA)
    if content is None and stored is None:
        return raw
    if content is not None and stored is not None and len(stored) == len(content):
        patched = _overwrite_plan(raw, where, content)
    else:
        patched = _add_root(raw, where, content)
    _require_only_plan_differs(program, decode(patched, where), content)
    return patched


def with_operator_order(raw: bytes, where: str, order: Sequence[int]) -> bytes:
    """Return the file with the operators of the first subgraph in another order.

    order  the present positions of the operators, in the new order

    Only the entries of one vector change. Raises ModelError for a file in which a table lies before this vector.
    """
    main = next(Wire(raw, where, ADVICE).root(IDENTIFIER).tables(SUBGRAPHS))
    at, count = main.vector_extent(SUBGRAPH_OPERATORS, 4)
    assert sorted(order) == list(range(count))
    tables = [at + 4 * i + offset for i, (offset,) in enumerate(struct.iter_unpack("<I", raw[at : at + 4 * count]))]
    offsets = [tables[position] - (at + 4 * i) for i, position in enumerate(order)]
    if any(offset <= 0 for offset in offsets):
        raise ModelError(f"{where}: the operators cannot be written in another order: a table lies before their list")
    return raw[:at] + struct.pack(f"<{count}I", *offsets) + raw[at + 4 * count :]


def _metadata_entries(root: Table) -> list[tuple[Table, bool]]:
    """Return the metadata tables, each with True for an offline plan."""
    return [(table, table.text(0) == METADATA) for table in root.tables(METADATA_FIELD)]


def _overwrite_plan(raw: bytes, where: str, content: bytes) -> bytes:
    """Return the file with the plan's bytes overwritten."""
    root = Wire(raw, where, ADVICE).root(IDENTIFIER)
    buffers = list(root.tables(BUFFERS))
    index = next(table.integer(1, "I") for table, plan in _metadata_entries(root) if plan)
    at, _ = buffers[index].vector_extent(0, 1)
    return raw[:at] + content + raw[at + len(content) :]


def _add_root(raw: bytes, where: str, content: bytes | None) -> bytes:
    """Return the file with a new root table in front. Raises ModelError for a root field unknown to Sublet."""
    root = Wire(raw, where, ADVICE).root(IDENTIFIER)
    unknown = [number for number in root.fields if number >= KNOWN_FIELDS]
    if unknown:
        raise ModelError(f"{where}: the model has a field {unknown[0]}, newer than the fields known to Sublet")
    fields: dict[int, Item] = {VERSION: NumberField("I", root.integer(VERSION, "I"))}
    for number in root.fields:
        target = root.offset_target(number) if number != VERSION else None
        if target is not None:
            fields[number] = KeptItem(target)
    buffers: list[Item] = [KeptItem(table.at) for table in root.tables(BUFFERS)]
    entries: list[Item] = [KeptItem(table.at) for table, plan in _metadata_entries(root) if not plan]
    if content is not None:
        entries.append(TableRecord({0: Text(METADATA), 1: NumberField("I", len(buffers))}))
        buffers.append(TableRecord({0: Vector("B", content, MAX_ALIGNMENT)}))
    fields |= {BUFFERS: ItemVector(buffers), METADATA_FIELD: ItemVector(entries)}
    return encode_flatbuffer(TableRecord(fields), IDENTIFIER, raw)


def _require_only_plan_differs(old: TFLiteProgram, new: TFLiteProgram, content: bytes | None) -> None:
    """Raise PlanError if the programs differ in more than the plan, or if the new plan is not `content`."""
    plan = new.metadata_content(METADATA)
    others = [[each for each in program.metadata if each[0] != METADATA] for program in (old, new)]
    old_count = len(old.buffers)
    changed = {buffer for name, buffer in old.metadata if name == METADATA}
    same = all(a == b for i, (a, b) in enumerate(zip(old.buffers, new.buffers, strict=False)) if i not in changed)
    if (
        (None if plan is None else bytes(plan)) != content
        or old.subgraphs != new.subgraphs
        or others[0] != others[1]
        or not old_count <= len(new.buffers) <= old_count + 1
        or not same
        or (old.version, old.description) != (new.version, new.description)
    ):
        raise PlanError(f"{old.where}: adding the plan changes more than the plan: no file is written")

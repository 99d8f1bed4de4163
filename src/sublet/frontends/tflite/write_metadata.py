"""Replacement of the offline plan in a .tflite file, with all remaining content unchanged.

The old bytes stay contiguous and unchanged behind a new root. All offsets in a flatbuffer point forward, so new tables
at the beginning can refer to old content. A plan of equal length overwrites the old plan directly.
"""

from __future__ import annotations

from sublet.base.errors import ModelError, PlanError
from sublet.base.flatbuffer import Table, Wire
from sublet.frontends.tflite.flatbuffer_encoder import (
    MAX_ALIGNMENT,
    Item,
    ItemVector,
    KeptItem,
    NumberField,
    TableRecord,
    Text,
    Vector,
    encode_flatbuffer,
)
from sublet.frontends.tflite.offline_plan import METADATA
from sublet.frontends.tflite.program import ADVICE, IDENTIFIER, TFLiteProgram, decode

VERSION, BUFFERS, METADATA_FIELD, KNOWN_FIELDS = 0, 4, 6, 8
"""Field numbers of the model table, and the number of known fields."""


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

"""A .tflite file with another memory plan in its metadata, and everything else as it was.

The old bytes stay together and unchanged, behind a new root: all offsets in a flatbuffer point forward, so that a new
table at the begin can hold what is old. A plan of the same length is written over the one that is there.
"""

from __future__ import annotations

from sublet.base.errors import ModelError, PlanError
from sublet.base.flatbuffer import Table, Wire
from sublet.frontends.tflite.offline import METADATA
from sublet.frontends.tflite.program import ADVICE, IDENTIFIER, Program, decode
from sublet.frontends.tflite.writing import WIDEST, Item, Kept, Number, Record, Several, Text, Vector, written

VERSION, BUFFERS, METADATAS, FIELDS = 0, 4, 6, 8
"""Numbers of fields of the model, and how many of them are known."""


def with_metadata(raw: bytes, where: str, content: bytes | None) -> bytes:
    """The file with this as its offline plan, or without one.

    Raises ModelError for a file that cannot be changed, PlanError if what comes out differs in anything else.
    """
    program = decode(raw, where)
    if program.detached:
        raise ModelError(f"{where}: what it holds lies behind its flatbuffer, where TensorFlow Lite Micro cannot reach")
    stored = program.stored(METADATA)
    if content is None and stored is None:
        return raw
    if content is not None and stored is not None and len(stored) == len(content):
        made = _overwritten(raw, where, content)
    else:
        made = _with_root(raw, where, content)
    _require_same(program, decode(made, where), content)
    return made


def _entries(root: Table) -> list[tuple[Table, bool]]:
    """The tables of metadata, and which of them are plans."""
    return [(table, table.text(0) == METADATA) for table in root.tables(METADATAS)]


def _overwritten(raw: bytes, where: str, content: bytes) -> bytes:
    """The file with the plan's bytes changed where they are."""
    root = Wire(raw, where, ADVICE).root(IDENTIFIER)
    buffers = list(root.tables(BUFFERS))
    index = next(table.integer(1, "I") for table, plan in _entries(root) if plan)
    at, _ = buffers[index].block(0, 1)
    return raw[:at] + content + raw[at + len(content) :]


def _with_root(raw: bytes, where: str, content: bytes | None) -> bytes:
    root = Wire(raw, where, ADVICE).root(IDENTIFIER)
    unknown = [number for number in root.fields if number >= FIELDS]
    if unknown:
        raise ModelError(f"{where}: its model has a field {unknown[0]}, which is newer than what Sublet can keep")
    fields: dict[int, Item] = {VERSION: Number("I", root.integer(VERSION, "I"))}
    for number in root.fields:
        target = root.target(number) if number != VERSION else None
        if target is not None:
            fields[number] = Kept(target)
    buffers: list[Item] = [Kept(table.at) for table in root.tables(BUFFERS)]
    told: list[Item] = [Kept(table.at) for table, plan in _entries(root) if not plan]
    if content is not None:
        told.append(Record({0: Text(METADATA), 1: Number("I", len(buffers))}))
        buffers.append(Record({0: Vector("B", content, WIDEST)}))
    fields |= {BUFFERS: Several(buffers), METADATAS: Several(told)}
    return written(Record(fields), IDENTIFIER, raw)


def _require_same(old: Program, new: Program, content: bytes | None) -> None:
    """Nothing but the plan may differ."""
    plan = new.stored(METADATA)
    others = [[each for each in program.metadata if each[0] != METADATA] for program in (old, new)]
    kept = len(old.buffers)
    changed = {buffer for name, buffer in old.metadata if name == METADATA}
    same = all(a == b for i, (a, b) in enumerate(zip(old.buffers, new.buffers, strict=False)) if i not in changed)
    if (
        (None if plan is None else bytes(plan)) != content
        or old.subgraphs != new.subgraphs
        or others[0] != others[1]
        or not kept <= len(new.buffers) <= kept + 1
        or not same
        or (old.version, old.description) != (new.version, new.description)
    ):
        raise PlanError(f"{old.where}: with the plan in it the file says something else: nothing is written")

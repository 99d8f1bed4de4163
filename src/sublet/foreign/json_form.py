"""The JSON in which any tool can tell where its tensors lie; docs/foreign.md has an example of each kind.

    format      "sublet-placed"; `version` 1           tensors    a list of objects:
    tool        who planned, for people                name       of the tensor in the model
    alignment   every offset is to be a multiple       offset     in its region; null or -1: it has no place
    regions     sizes of memories, by name             region     the memory; "arena" if missing
    steps       what happens at step 0, 1, ...         bytes      its size, as the tool has it
                                                       lifetimes  [[begin, end], ...], half-open ranges of steps
                                                       shares     a tensor whose bytes it is on purpose

Only format, version, and the names and offsets of tensors are needed for a plan of a model; without a model every
placed tensor needs bytes and lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.base.errors import PlanError
from sublet.base.json_text import parse_json
from sublet.foreign.placed import LARGEST, MOST_ALIGNMENT, ForeignPlan, Placed
from sublet.packing.problem import MAX_TIME
from sublet.plan import ARENA

FORMAT, VERSION = "sublet-placed", 1
FIELDS = ("format", "version", "tool", "alignment", "regions", "steps", "tensors")
OF_TENSOR = ("name", "offset", "region", "bytes", "lifetimes", "shares")
NO_PLACE = -1


def is_placed(raw: Any) -> bool:
    """Whether decoded JSON says that it is of this form."""
    return isinstance(raw, Mapping) and raw.get("format") == FORMAT


def placed_from_json(text: str, source: str) -> ForeignPlan:
    """The plan in a JSON text. Raises PlanError naming the field that is wrong."""
    return placed_from_object(parse_json(text, source, PlanError), source)


def placed_from_object(raw: Any, source: str) -> ForeignPlan:
    """The plan in decoded JSON. Raises PlanError naming the field that is wrong."""
    read = _Reader(source)
    fields = read.record(raw, "", FIELDS, ("format", "version", "tensors"))
    if fields["format"] != FORMAT or fields["version"] != VERSION:
        raise read.error("format", f"must be {FORMAT!r}, of version {VERSION}")
    placed, left_out = [], []
    for i, entry in enumerate(read.array(fields["tensors"], "tensors")):
        where = f"tensors[{i}]"
        tensor = read.record(entry, where, OF_TENSOR, ("name", "offset"))
        name = read.text(tensor["name"], f"{where}.name")
        if tensor["offset"] in (None, NO_PLACE):
            left_out.append(name)
            continue
        nbytes = tensor.get("bytes")
        placed.append(
            Placed(
                name,
                read.integer(tensor["offset"], f"{where}.offset", -LARGEST, LARGEST),
                read.text(tensor.get("region", ARENA), f"{where}.region"),
                None if nbytes is None else read.integer(nbytes, f"{where}.bytes", 0, LARGEST),
                read.ranges(tensor.get("lifetimes", []), f"{where}.lifetimes"),
                read.text(tensor.get("shares", ""), f"{where}.shares", empty=True),
            )
        )
    return _plan(read, fields, tuple(placed), tuple(left_out))


def _plan(
    read: _Reader, fields: Mapping[str, Any], placed: tuple[Placed, ...], left_out: tuple[str, ...]
) -> ForeignPlan:
    regions = fields.get("regions", {})
    if not isinstance(regions, dict):
        raise read.error("regions", "must be an object of sizes by name")
    alignment = fields.get("alignment")
    steps = read.array(fields.get("steps", []), "steps")
    return ForeignPlan(
        placed,
        read.text(fields.get("tool", "another tool"), "tool"),
        {name: read.integer(size, f"regions.{name}", 0, LARGEST) for name, size in regions.items()},
        None if alignment is None else read.integer(alignment, "alignment", 1, MOST_ALIGNMENT),
        left_out,
        tuple(read.text(step, f"steps[{i}]", empty=True) for i, step in enumerate(steps)),
    )


class _Reader:
    """Typed access to decoded JSON; every complaint names the file and the field."""

    def __init__(self, source: str) -> None:
        self._source = source

    def error(self, field: str, what: str) -> PlanError:
        return PlanError(f"{self._source}: {f'{field} ' if field else ''}{what}")

    def record(self, raw: Any, field: str, known: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise self.error(field, f"must be an object, not {_shown(raw)}")
        for name in needed:
            if name not in raw:
                raise self.error(field, f"lacks {name!r}")
        for name in raw:
            if name not in known:
                raise self.error(field, f"has the unknown field {name[:40]!r}; known are {', '.join(known)}")
        return raw

    def array(self, raw: Any, field: str) -> list[Any]:
        if not isinstance(raw, list):
            raise self.error(field, f"must be a list, not {_shown(raw)}")
        return raw

    def text(self, raw: Any, field: str, *, empty: bool = False) -> str:
        if not isinstance(raw, str) or not (raw or empty):
            raise self.error(field, f"must be a text, not {_shown(raw)}")
        return raw

    def integer(self, raw: Any, field: str, least: int, most: int) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise self.error(field, f"must be an integer from {least} to {most}, not {_shown(raw)}")
        return raw

    def ranges(self, raw: Any, field: str) -> tuple[tuple[int, int], ...]:
        found = []
        for i, pair in enumerate(self.array(raw, field)):
            ends = self.array(pair, f"{field}[{i}]")
            if len(ends) != 2:
                raise self.error(f"{field}[{i}]", "must be a pair [begin, end]")
            begin, end = (self.integer(edge, f"{field}[{i}]", -MAX_TIME, MAX_TIME) for edge in ends)
            if begin >= end:
                raise self.error(f"{field}[{i}]", f"must begin before it ends, not {_shown(pair)}")
            found.append((begin, end))
        return tuple(found)


def _shown(raw: Any) -> str:
    return repr(raw)[:40]

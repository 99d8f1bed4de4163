"""Reader of the documented JSON format for plans of any tool; docs/foreign.md has an example of each kind.

    format      "sublet-placed"; `version` 1           tensors    a list of objects:
    tool        name of the planner, for people        name       of the tensor in the model
    alignment   every offset must be a multiple        offset     in the region; null or -1: no place
    regions     sizes of memories, by name             region     the memory; "arena" if missing
    steps       descriptions of steps 0, 1, ...        bytes      size, as the tool has it
                                                       lifetimes  [[begin, end], ...], half-open ranges of steps
                                                       shares     a tensor with the same bytes on purpose

A plan of a model needs only format, version, and the names and offsets of tensors. Without a model, every placed tensor
needs bytes and lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.base.errors import PlanError
from sublet.base.json_text import parse_json
from sublet.foreign.foreign_plan import MAX_ALIGNMENT, MAX_BYTES, ForeignPlan, PlacedTensor
from sublet.packing.problem import MAX_TIME
from sublet.plan import ARENA

FORMAT, VERSION = "sublet-placed", 1
FIELDS = ("format", "version", "tool", "alignment", "regions", "steps", "tensors")
TENSOR_FIELDS = ("name", "offset", "region", "bytes", "lifetimes", "shares")
NO_PLACE = -1


def has_plan_format(raw: Any) -> bool:
    """Return True if decoded JSON declares the format of foreign plans."""
    return isinstance(raw, Mapping) and raw.get("format") == FORMAT


def plan_from_json(text: str, source: str) -> ForeignPlan:
    """Parse a plan from JSON text. Raises PlanError with the name of the wrong field."""
    return plan_from_object(parse_json(text, source, PlanError), source)


def plan_from_object(raw: Any, source: str) -> ForeignPlan:
    """Return the plan in decoded JSON. Raises PlanError with the name of the wrong field."""
    read = _PlanJsonReader(source)
    fields = read.record(raw, "", FIELDS, ("format", "version", "tensors"))
    if fields["format"] != FORMAT or fields["version"] != VERSION:
        raise read.error("format", f"must be {FORMAT!r}, version {VERSION}")
    placed, left_out = [], []
    for i, entry in enumerate(read.array(fields["tensors"], "tensors")):
        where = f"tensors[{i}]"
        tensor = read.record(entry, where, TENSOR_FIELDS, ("name", "offset"))
        name = read.text(tensor["name"], f"{where}.name")
        if tensor["offset"] in (None, NO_PLACE):
            left_out.append(name)
            continue
        nbytes = tensor.get("bytes")
        placed.append(
            PlacedTensor(
                name,
                read.integer(tensor["offset"], f"{where}.offset", -MAX_BYTES, MAX_BYTES),
                read.text(tensor.get("region", ARENA), f"{where}.region"),
                None if nbytes is None else read.integer(nbytes, f"{where}.bytes", 0, MAX_BYTES),
                read.ranges(tensor.get("lifetimes", []), f"{where}.lifetimes"),
                read.text(tensor.get("shares", ""), f"{where}.shares", empty=True),
            )
        )
    return _build_plan(read, fields, tuple(placed), tuple(left_out))


def _build_plan(
    read: _PlanJsonReader, fields: Mapping[str, Any], placed: tuple[PlacedTensor, ...], left_out: tuple[str, ...]
) -> ForeignPlan:
    """Return the plan from the placed tensors and the remaining fields."""
    regions = fields.get("regions", {})
    if not isinstance(regions, dict):
        raise read.error("regions", "must be an object of sizes by name")
    alignment = fields.get("alignment")
    steps = read.array(fields.get("steps", []), "steps")
    return ForeignPlan(
        placed,
        read.text(fields.get("tool", "another tool"), "tool"),
        {name: read.integer(size, f"regions.{name}", 0, MAX_BYTES) for name, size in regions.items()},
        None if alignment is None else read.integer(alignment, "alignment", 1, MAX_ALIGNMENT),
        left_out,
        tuple(read.text(step, f"steps[{i}]", empty=True) for i, step in enumerate(steps)),
    )


class _PlanJsonReader:
    """Typed access to decoded JSON; every error names the file and the field."""

    def __init__(self, source: str) -> None:
        self._source = source

    def error(self, field: str, what: str) -> PlanError:
        """Return the error for `field`."""
        return PlanError(f"{self._source}: {f'{field} ' if field else ''}{what}")

    def record(self, raw: Any, field: str, known: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
        """Return `raw` as an object with all `needed` fields and only `known` fields. Raises PlanError otherwise."""
        if not isinstance(raw, dict):
            raise self.error(field, f"must be an object, not {_short_repr(raw)}")
        for name in needed:
            if name not in raw:
                raise self.error(field, f"lacks {name!r}")
        for name in raw:
            if name not in known:
                raise self.error(field, f"has the unknown field {name[:40]!r}; known are {', '.join(known)}")
        return raw

    def array(self, raw: Any, field: str) -> list[Any]:
        """Return `raw` as a list. Raises PlanError otherwise."""
        if not isinstance(raw, list):
            raise self.error(field, f"must be a list, not {_short_repr(raw)}")
        return raw

    def text(self, raw: Any, field: str, *, empty: bool = False) -> str:
        """Return `raw` as a string, empty only if `empty` allows an empty string. Raises PlanError otherwise."""
        if not isinstance(raw, str) or not (raw or empty):
            raise self.error(field, f"must be a string, not {_short_repr(raw)}")
        return raw

    def integer(self, raw: Any, field: str, minimum: int, maximum: int) -> int:
        """Return `raw` as an integer from `minimum` to `maximum`. Raises PlanError otherwise."""
        if isinstance(raw, bool) or not isinstance(raw, int) or not minimum <= raw <= maximum:
            raise self.error(field, f"must be an integer from {minimum} to {maximum}, not {_short_repr(raw)}")
        return raw

    def ranges(self, raw: Any, field: str) -> tuple[tuple[int, int], ...]:
        """Return `raw` as half-open ranges of steps with begin < end. Raises PlanError otherwise."""
        pairs = []
        for i, pair in enumerate(self.array(raw, field)):
            ends = self.array(pair, f"{field}[{i}]")
            if len(ends) != 2:
                raise self.error(f"{field}[{i}]", "must be a pair [begin, end]")
            begin, end = (self.integer(edge, f"{field}[{i}]", -MAX_TIME, MAX_TIME) for edge in ends)
            if begin >= end:
                raise self.error(f"{field}[{i}]", f"must begin before it ends, not {_short_repr(pair)}")
            pairs.append((begin, end))
        return tuple(pairs)


def _short_repr(raw: Any) -> str:
    """Return the first 40 characters of the repr, for error messages."""
    return repr(raw)[:40]

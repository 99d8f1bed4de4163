"""Plan files: versioned JSON with an exact round trip, and the fingerprint that ties a plan to its graph."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from sublet.base.errors import PlanError, SubletError
from sublet.base.files import parse_json, read_text, write
from sublet.base.formatting import printable
from sublet.ir.graph import Graph
from sublet.ir.text import to_text
from sublet.plan import FORMAT_VERSION, MemoryPlan
from sublet.plan.schedule import Schedule

MOST_REPEATED = 64
"""Repeated storages in a plan, at most; the checker reports each. `from_json` refuses a plan with more."""

OLDER_VERSIONS = (9, 10, 11)
LATER_RECIPE_FIELDS = ("const", "state", "carried")
"""Fields of the recipe that older plan files lack: the first two version 9, the last all; each is empty there."""
LISTS_SINCE_11: Mapping[str, Any] = {"ranges": [], "equal_dims": []}
"""Fields of plans before version 11, which have no ranges of dimensions."""
REGION_FIELDS_SINCE_11 = {"rows": 1, "pitch": 0}
"""Fields of regions that plan files before version 11 lack, with their values there: a single row."""

LARGEST = 1 << 62
"""The largest size, offset or point in a plan; `from_json` refuses larger integers."""


def fingerprint(graph: Graph, schedule: Schedule) -> str:
    """Return a SHA-256 hash of the whole program and its schedule: all inputs that a plan depends on."""
    order = json.dumps(asdict(schedule), sort_keys=True)
    return sha256(f"{to_text(graph)}\n{order}".encode()).hexdigest()


def to_json(plan: MemoryPlan) -> str:
    """Return the plan as one JSON object."""
    return json.dumps(asdict(plan), indent=1)


def from_json(text: str, source: str = "plan") -> MemoryPlan:
    """Return the plan in a JSON text. Raises PlanError naming the invalid field."""
    raw = parse_json(text, source, PlanError)
    version = raw.get("version") if isinstance(raw, dict) else None
    if version in OLDER_VERSIONS:
        raw, version = _upgraded_content(raw), FORMAT_VERSION
    if version != FORMAT_VERSION:
        known = ", ".join(map(str, OLDER_VERSIONS))
        raise PlanError(
            f"{source} has format version {version!r}; this Sublet reads versions {known} and {FORMAT_VERSION}"
        )
    plan = _decode(MemoryPlan, raw, source)
    assert isinstance(plan, MemoryPlan)
    _require_placed_once(plan, source)
    return plan


def _upgraded_content(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an older plan file as of the current version; malformed parts stay, for the decoder."""
    recipe, placements = raw.get("recipe"), raw.get("placements")
    if isinstance(recipe, dict):
        recipe = {**{key: [] for key in LATER_RECIPE_FIELDS}, **recipe}
    if isinstance(placements, list):
        placements = [
            {**place, "region": {**REGION_FIELDS_SINCE_11, **place["region"]}}
            if isinstance(place, dict) and isinstance(place.get("region"), dict)
            else place
            for place in placements
        ]
    upgraded = {"placements": placements, "recipe": recipe, "version": FORMAT_VERSION}
    return {**LISTS_SINCE_11, **raw, **{key: upgraded[key] for key in upgraded if key in raw}}


def _require_placed_once(plan: MemoryPlan, source: str) -> None:
    """Raise PlanError for a plan with many repeated storages, or a value placed twice in the same body versions.

    The checker reports every such entry, and needs minutes for a file full of repeated entries.
    """
    lists: dict[str, list[tuple[str, object]]] = {
        "placements": [(placement.value, placement.copies) for placement in plan.placements],
        "storages": [(storage.name, ()) for storage in plan.storages],
    }
    for name, entries in lists.items():
        first: dict[tuple[str, object], int] = {}
        repeated = 0
        for i, entry in enumerate(entries):
            repeated += first.setdefault(entry, i) != i
            if repeated > (MOST_REPEATED if name == "storages" else 0):
                raise PlanError(
                    f"{source}: {name}[{i}] is {printable(entry[0])[:80]!r} again, as {name}[{first[entry]}] is. "
                    "Expected each once. Plan the model again."
                )


def save(plan: MemoryPlan, path: str | Path) -> None:
    """Write a plan; the file is complete or untouched."""
    write(path, f"{to_json(plan)}\n")


def load(path: str | Path) -> MemoryPlan:
    """Read a plan. Raises PlanError for an unreadable file, or a file without a valid plan."""
    return from_json(read_text(path, PlanError), str(path))


def _decode(kind: Any, raw: Any, where: str) -> Any:
    """Return decoded JSON `raw` as an instance of annotation `kind`. Raises PlanError naming the field `where`."""
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _decode_record(kind, raw, where)
    if origin is tuple:
        return _decode_tuple(get_args(kind), raw, where)
    if origin is Mapping:
        item = get_args(kind)[1]
        if not isinstance(raw, dict):
            raise PlanError(f"{where} must be an object")
        return {key: _decode(item, value, f"{where}.{key}") for key, value in raw.items()}
    if origin is types.UnionType or not isinstance(raw, kind) or isinstance(raw, bool) is not (kind is bool):
        raise PlanError(f"{where} must be of type {kind.__name__}, found {json.dumps(raw)[:40]}")
    if kind is int and not -1 <= raw <= LARGEST:
        raise PlanError(f"{where} must be between -1 and 2^62, found {str(raw)[:40]}")
    return raw


def _decode_record(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise PlanError(f"{where} must be an object")
    hints = _fields_of(kind)
    missing, unknown = [n for n in hints if n not in raw], [n for n in raw if n not in hints]
    if missing or unknown:
        wrong = [f"lacks {name}" for name in missing] + [f"has the unknown field {name}" for name in unknown]
        raise PlanError(f"{where} {', '.join(wrong)}")
    decoded = {name: _decode(hint, raw[name], f"{where}.{name}") for name, hint in hints.items()}
    try:
        return kind(**decoded)
    except SubletError as error:  # a record with an invariant of its own
        raise PlanError(f"{where}: {error}") from None


@cache
def _fields_of(kind: Any) -> Mapping[str, Any]:
    """Return the annotation of each field of a record."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _decode_tuple(items: tuple[Any, ...], raw: Any, where: str) -> Any:
    if not isinstance(raw, list):
        raise PlanError(f"{where} must be a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], item, f"{where}[{i}]") for i, item in enumerate(raw))
    if len(items) != len(raw):
        raise PlanError(f"{where} must have {len(items)} items")
    return tuple(_decode(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(items, raw, strict=True)))

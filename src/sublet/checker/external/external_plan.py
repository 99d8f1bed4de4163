"""A memory plan by another tool as plain data: the region and offset of each tensor, and further declarations.

The verdict on such a plan: violations, tensors not judged, and the distance to a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from sublet.base.errors import Finding, PlanError
from sublet.base.files import parse_json
from sublet.base.ranges import Ranges
from sublet.packing.problem import MAX_TIME, Packing, Problem
from sublet.plan import ARENA, MemoryPlan

Lifetimes = tuple[tuple[int, int], ...]
"""Half-open ranges of steps, in order: the live range of a tensor's bytes."""

MAX_BYTES = 1 << 61
"""Limit of offsets and sizes in bytes. Beyond, the plan is refused."""
MAX_ALIGNMENT = 1 << 32
"""Limit of the alignment in bytes. Beyond, the plan is refused."""


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor as placed by a tool: bytes [offset, offset + nbytes) of a region.

    nbytes     size by the tool; None if only the model has a size
    lifetimes  lifetimes by the tool; empty if only the model has lifetimes
    shares     name of a tensor with the same bytes on purpose (a view, or an in-place result); "" for none
    """

    name: str
    offset: int
    region: str = ARENA
    nbytes: int | None = None
    lifetimes: Lifetimes = ()
    shares: str = ""


@dataclass(frozen=True)
class ForeignPlan:
    """A memory plan by another tool.

    tensors    the placed tensors, each name once
    tool       name of the planner, for people
    regions    sizes of memories in bytes, as far as declared; a region without a size ends with its last tensor
    alignment  every offset must be a multiple; None if the tool declares none
    left_out   tensors known to the tool, but without a place
    findings   violations of the tool's own rules
    nested     regions inside of room reserved by another region, at an unknown offset: their bytes count in that region
    steps      a description of each step of the lifetimes, for people

    Raises PlanError for a name listed twice, numbers beyond 2^61, an invalid alignment, or an invalid region name.
    """

    tensors: tuple[PlacedTensor, ...]
    tool: str = "another tool"
    regions: Mapping[str, int] = field(default_factory=dict)
    alignment: int | None = None
    left_out: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    nested: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in (*(tensor.name for tensor in self.tensors), *self.left_out):
            if name in seen:
                raise PlanError(f"the plan of {self.tool} lists {name!r} twice: expected one entry a tensor")
            seen.add(name)
        numbers = [number for t in self.tensors for number in (t.offset, t.nbytes or 0)]
        if any(abs(number) > MAX_BYTES for number in (*numbers, *self.regions.values())):
            raise PlanError(f"the plan of {self.tool} has a number beyond 2^61")
        if self.alignment is not None and not 1 <= self.alignment <= MAX_ALIGNMENT:
            raise PlanError(f"the plan of {self.tool}: alignment {self.alignment} must be between 1 and 2^32")
        for name in (*self.regions, *(tensor.region for tensor in self.tensors)):
            if not name or name[0] in "%?":
                raise PlanError(f"the plan of {self.tool}: {name!r} is not a region name")

    def with_capacity(self, capacity: int | None) -> ForeignPlan:
        """Return the plan with `capacity` bytes for the single memory; the plan itself if `capacity` is None.

        Raises PlanError if the plan has several memories.
        """
        if capacity is None:
            return self
        if len(self.region_names) > 1:
            raise PlanError(f"the plan of {self.tool} has {len(self.region_names)} memories, each with its own size")
        return replace(self, regions=dict.fromkeys(self.region_names, capacity))

    def region_bytes(self, region: str, sizes: Mapping[str, int]) -> int:
        """Return the bytes of a region: its declared size, else the end of its last tensor.

        `sizes` has the bytes of each tensor.
        """
        ends = (t.offset + sizes[t.name] for t in self.tensors if t.region == region and sizes.get(t.name))
        return self.regions.get(region, max(ends, default=0))

    @property
    def region_names(self) -> tuple[str, ...]:
        """The names of all regions, beginning with the regions of a declared size."""
        return tuple(dict.fromkeys((*self.regions, *(tensor.region for tensor in self.tensors))))


# Reader of the documented JSON format for plans of any tool; docs/foreign.md has an example of each kind.
#
#     format      "sublet-placed"; `version` 1           tensors    a list of objects:
#     tool        name of the planner, for people        name       of the tensor in the model
#     alignment   every offset must be a multiple        offset     in the region; null or -1: no place
#     regions     sizes of memories, by name             region     the memory; "arena" if missing
#     steps       descriptions of steps 0, 1, ...        bytes      size, as the tool has it
#                                                        lifetimes  [[begin, end], ...], half-open ranges of steps
#                                                        shares     a tensor with the same bytes on purpose
#
# A plan of a model needs only the names and offsets of tensors; format and version may be missing. Without a model,
# every placed tensor needs bytes and lifetimes.

FORMAT, VERSION = "sublet-placed", 1
FIELDS = ("format", "version", "tool", "alignment", "regions", "steps", "tensors")
TENSOR_FIELDS = ("name", "offset", "region", "bytes", "lifetimes", "shares")
NO_PLACE = -1


def has_plan_format(raw: Any) -> bool:
    """Return True if decoded JSON declares the format of foreign plans, or declares no format and lists places."""
    if not isinstance(raw, Mapping) or "format" in raw:
        return isinstance(raw, Mapping) and raw["format"] == FORMAT
    tensors = raw.get("tensors")
    first = tensors[0] if isinstance(tensors, list) and tensors else None
    return isinstance(first, dict) and {"name", "offset"} <= first.keys()


def plan_from_json(text: str, source: str) -> ForeignPlan:
    """Parse a plan from JSON text. Raises PlanError with the name of the wrong field."""
    return plan_from_object(parse_json(text, source, PlanError), source)


def plan_from_object(raw: Any, source: str) -> ForeignPlan:
    """Return the plan in decoded JSON. Raises PlanError with the name of the wrong field."""
    read = _PlanJsonReader(source)
    if isinstance(raw, dict) and "format" not in raw:
        raw = {"format": FORMAT, "version": VERSION, **raw}
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


class ForeignOutcome(StrEnum):
    """Kind of a verdict: right; wrong; or right in all judged tensors, with further tensors not judged."""

    RIGHT = "right"
    WRONG = "wrong"
    PARTLY = "partly judged"


class Evidence(StrEnum):
    """Evidence for a verdict: the source of the live ranges that the plan was checked against."""

    REPLAY = "the model, replayed byte by byte"
    LIFETIMES = "the lifetimes in the file"
    INSTRUCTIONS = "the instructions of the program, replayed"


@dataclass(frozen=True, slots=True)
class RegionVerdict:
    """Verdict on a memory of the plan: the size, and a lower bound for the same tensors with the same sharing."""

    name: str
    nbytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class ForeignVerdict:
    """Verdict on a plan by another tool.

    findings     every violated rule
    judged       the tensors checked against the rules
    not_judged   the reason for each remaining tensor
    plan         the plan to draw, for a plan of a model: live ranges and points come from the model
    drawn        the packing of each region to draw, for a plan with lifetimes
    """

    tool: str
    evidence: Evidence
    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    not_judged: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[RegionVerdict, ...] = ()
    plan: MemoryPlan | None = None
    drawn: tuple[tuple[Problem, Packing], ...] = ()

    @property
    def outcome(self) -> ForeignOutcome:
        """The kind of the verdict: wrong if any rule is violated, even if only some tensors were judged."""
        if self.findings:
            return ForeignOutcome.WRONG
        return ForeignOutcome.PARTLY if self.not_judged else ForeignOutcome.RIGHT

    @property
    def nbytes(self) -> int:
        """The size of all regions together, in bytes."""
        return sum(region.nbytes for region in self.regions)

    @property
    def lower_bound_bytes(self) -> int:
        """The sum of the regions' lower bounds, in bytes. The assignment of tensors to regions is fixed."""
        return sum(region.lower_bound_bytes for region in self.regions)


def peak_bytes_in_use(pieces: Iterable[tuple[int, int, Ranges]]) -> int:
    """Return the most bytes in use at any time; `pieces` are (begin, end, time ranges in use). A byte counts once.

    The result is a lower bound if the plan is right. Tensors needed at the same time then have different bytes, apart
    from tensors shared on purpose. So no plan with the same sharing uses fewer bytes.
    """
    held = [(begin, end, live) for begin, end, live in pieces if begin < end]
    edges = sorted({edge for begin, end, _ in held for edge in (begin, end)})
    rank = {edge: i for i, edge in enumerate(edges)}
    lengths = np.array([after - before for before, after in pairwise(edges)], dtype=np.int64)
    count = np.zeros(len(lengths), dtype=np.int64)
    events = sorted(
        (when, step, begin, end) for begin, end, live in held for a, b in live for when, step in ((a, 1), (b, -1))
    )
    peak = 0
    for i, (when, step, begin, end) in enumerate(events):
        count[rank[begin] : rank[end]] += step
        if step > 0 and (i + 1 == len(events) or events[i + 1][1] < 0 or events[i + 1][0] > when):
            peak = max(peak, int(lengths[count > 0].sum()))
    return peak

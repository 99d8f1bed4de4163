"""A plan that another tool made, as plain data: which tensor lies where, and what the tool says besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sublet.base.errors import Finding, PlanError
from sublet.plan import ARENA

Lifetimes = tuple[tuple[int, int], ...]
"""Half-open ranges of steps at which a tensor's bytes are needed, in order."""

LARGEST = 1 << 61
"""No offset or size is beyond this."""
MOST_ALIGNMENT = 1 << 32


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor as a tool placed it: bytes [offset, offset + nbytes) of a region.

    nbytes     as the tool says; None when only the model tells
    lifetimes  as the tool says; empty when only the model tells
    shares     a tensor whose bytes it is on purpose (a view, or written in place); "" for none
    """

    name: str
    offset: int
    region: str = ARENA
    nbytes: int | None = None
    lifetimes: Lifetimes = ()
    shares: str = ""


@dataclass(frozen=True)
class ForeignPlan:
    """What a tool planned.

    tensors    those that it placed, each name once
    tool       who made it, for people
    regions    the sizes of memories, as far as they are told; others end where the last tensor in them ends
    alignment  every offset is to be a multiple of it; None when the tool says none
    left_out   tensors that it knows and gave no place
    findings   what breaks a rule of the tool's own
    nested     regions that lie in room that another reserves, nobody tells where: their bytes are counted there
    steps      what happens at each step of the lifetimes, for people
    Raises PlanError for a name that is placed twice.
    """

    tensors: tuple[Placed, ...]
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
                raise PlanError(f"the plan of {self.tool} lists {name!r} twice: one line a tensor is needed")
            seen.add(name)
        told = [number for t in self.tensors for number in (t.offset, t.nbytes or 0)]
        if any(abs(number) > LARGEST for number in (*told, *self.regions.values())):
            raise PlanError(f"the plan of {self.tool} has a number beyond 2^61")
        if self.alignment is not None and not 1 <= self.alignment <= MOST_ALIGNMENT:
            raise PlanError(f"the plan of {self.tool}: alignment {self.alignment} must be between 1 and 2^32")
        for name in (*self.regions, *(tensor.region for tensor in self.tensors)):
            if not name or name[0] in "%?":
                raise PlanError(f"the plan of {self.tool}: {name!r} is no name for a region")

    def within(self, capacity: int | None) -> ForeignPlan:
        """The plan, whose one memory has so many bytes. Raises PlanError where it has several."""
        if capacity is None:
            return self
        if len(self.region_names) > 1:
            raise PlanError(f"the plan of {self.tool} has {len(self.region_names)} memories, each of a size of its own")
        return replace(self, regions=dict.fromkeys(self.region_names, capacity))

    def size_of(self, region: str, sizes: Mapping[str, int]) -> int:
        """The bytes of a region: as told, else up to the end of the last tensor; `sizes` are those of the tensors."""
        ends = (t.offset + sizes[t.name] for t in self.tensors if t.region == region and sizes.get(t.name))
        return self.regions.get(region, max(ends, default=0))

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions, those told first."""
        return tuple(dict.fromkeys((*self.regions, *(tensor.region for tensor in self.tensors))))

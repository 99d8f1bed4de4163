"""A memory plan by another tool as plain data: the region and offset of each tensor, and further declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sublet.base.errors import Finding, PlanError
from sublet.plan import ARENA

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

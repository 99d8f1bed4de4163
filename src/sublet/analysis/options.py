"""How to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sublet.base.errors import ProblemError
from sublet.ir.recipe import GIVEN, LEAST, LESS
from sublet.packing import Region as MemoryRegion
from sublet.packing.problem import MAX_ALIGNMENT

Where = Literal["arena", "bound"]
SMALLEST = 256 << 10
"""Bytes of a slice or row from which on a copy costs more than telling every step of a round where it is."""

Order = Literal["given", "less", "least"]
AtCuts = Literal["arena", "apart"]

CHOICES = {
    "io": ("arena", "bound"), "weights": ("arena", "bound"), "order": (GIVEN, LESS, LEAST),
    "at_cuts": ("arena", "apart"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """How to plan.

    strategy   a name of `sublet.STRATEGIES`, or "auto" for the best of them
    alignment  the offset of every tensor is a multiple of this many bytes, from 1 on. Below the size of the elements
               some kernels compute in memory of their own and copy
    io         whether inputs and outputs lie in the arena, or are bound to memory of the caller
    weights    the same for weights
    streams    how many streams may run at the same time
    timeout    seconds after which "auto" takes the best packing so far; None for no limit
    regions    memory regions to spread the arena over, one arena in each; none for one arena without a limit
    share      whether views, in-place outputs and carries may be the same bytes; with strategy "no_reuse"
               and share=False every tensor has bytes of its own, for debugging
    forbid_copies   refuse a plan in which loops, branches or updates move bytes
    order      "given": the order of the graph, with what depends on no input computed on demand; "less": another one
               where that gives a smaller arena; "least": where that is above the bound on all orders, CP-SAT decides
               order, sharing and offsets together, which may take half a minute (the extra `exact`)
    in_place_from   slices and rows of loops of at least so many bytes are read and written where they lie in the
                    whole; None for where that costs less than a copy, or for 0 where copies are forbidden
    at_cuts    where that lies which a program in pieces keeps from one to the next: in the arena, or apart, in an arena
               of its own, so that between the pieces the other one holds nothing

    Raises ProblemError for an alignment or a number of streams that makes no sense.
    """

    strategy: str = "auto"
    alignment: int = 64
    io: Where = "arena"
    weights: Where = "bound"
    streams: int = 1
    timeout: float | None = None
    share: bool = True
    regions: tuple[MemoryRegion, ...] = ()
    forbid_copies: bool = False
    in_place_from: int | None = None
    order: Order = "given"
    at_cuts: AtCuts = "arena"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ProblemError(f"{name} {getattr(self, name)!r} must be one of {', '.join(allowed)}")
        for name in ("alignment", "streams"):
            if type(getattr(self, name)) is not int:
                raise ProblemError(f"{name} {getattr(self, name)!r} must be an integer")
        if not 1 <= self.alignment <= MAX_ALIGNMENT:
            raise ProblemError(f"alignment {self.alignment} must be between 1 and 2^32")
        if self.streams < 1:
            raise ProblemError(f"there must be at least one stream, not {self.streams}")

    @property
    def smallest(self) -> int:
        """Bytes from which on a slice or row lies in its whole."""
        if self.in_place_from is not None:
            return self.in_place_from
        return 0 if self.forbid_copies else SMALLEST

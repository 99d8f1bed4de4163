"""The options of planning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sublet.analysis.program_facts import ProgramFacts
from sublet.base.errors import ProblemError
from sublet.base.tensor import CACHE_LINE_BYTES
from sublet.ir.graph import Graph, Value
from sublet.ir.recipe import GIVEN, LEAST, LESS
from sublet.packing import MemoryRegion as MemoryRegion
from sublet.packing.problem import MAX_ALIGNMENT
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule
from sublet.plan.statistics import io_of

StorageChoice = Literal["arena", "bound"]
MIN_VIEW_BYTES = 256 << 10
"""Bytes of a slice or row. A smaller one is copied: a copy costs less than passing a new address every iteration."""

Order = Literal["given", "less", "least"]
AtCuts = Literal["arena", "apart"]

MIN_ROW_BYTES = 4 << 10
"""Bytes of a row in place. A smaller one is copied: a copy costs less than a call a row."""

CHOICES = {
    "io": ("arena", "bound"), "weights": ("arena", "bound"), "order": (GIVEN, LESS, LEAST),
    "at_cuts": ("arena", "apart"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """The options of planning.

    strategy   a name of `sublet.STRATEGIES`, or "auto" for the best of all
    alignment  the offset of every tensor is a multiple of this number, from 1 to 2^32. Below the size of an element,
               some kernels compute in private memory and copy
    io         "arena": inputs and outputs lie in the arena; "bound": the caller provides their memory
    weights    the same for weights
    streams    the number of streams that may run at the same time
    timeout    seconds after which "auto" takes the best packing so far; None for no limit
    regions    memory regions to spread the arena over, an arena in each; empty for a single arena without a limit
    share      if true, views, in-place outputs and carries may share bytes; with strategy "no_reuse" and share=False
               every tensor has separate bytes, for debugging
    forbid_copies   refuse a plan in which loops, branches or updates move bytes
    order      "given": the order of the graph, with nodes that depend on no input run on demand; "less": another order
               if it gives a smaller arena; "least": if the arena is still above the bound on all orders, CP-SAT decides
               order, sharing and offsets together, which may take half a minute (the extra `exact`)
    in_place_from   slices and rows of loops, and rows of a batch, of at least this many bytes are read and written in
                    place in the whole; None for the size from which a copy costs more, or for 0 if copies are forbidden
    in_rows    if true, channel slices of a batch and operands of a concatenation of channels lie in the whole row by
               row (one row a sample), where all kernels take strides and the arena does not grow; if copies are
               forbidden, the arena may grow
    at_cuts    where values kept across a suspension point lie: in the arena, or "apart", in a separate arena, so that
               the first arena is free while the program is suspended

    Raises ProblemError for an alignment or a number of streams out of range, and for an unknown choice.
    """

    strategy: str = "auto"
    alignment: int = CACHE_LINE_BYTES
    io: StorageChoice = "arena"
    weights: StorageChoice = "bound"
    streams: int = 1
    timeout: float | None = None
    share: bool = True
    regions: tuple[MemoryRegion, ...] = ()
    forbid_copies: bool = False
    in_place_from: int | None = None
    order: Order = "given"
    at_cuts: AtCuts = "arena"
    in_rows: bool = True

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
            raise ProblemError(f"streams {self.streams} must be at least 1")

    @property
    def min_view_bytes(self) -> int:
        """The least bytes of a slice or row placed as a view of the whole."""
        if self.in_place_from is not None:
            return self.in_place_from
        return 0 if self.forbid_copies else MIN_VIEW_BYTES

    @property
    def min_row_bytes(self) -> int:
        """The least bytes of a row placed in place."""
        return MIN_ROW_BYTES if self.in_place_from is None else self.in_place_from


# The request for one plan, received by every stage of planning: a graph in one order, with options and limits.

Progress = Callable[[str, int], None]
"""A function called with each packing strategy tried, and the bytes of its packing."""


@dataclass(frozen=True)
class PlanRequest:
    """A graph to plan in one order.

    facts           the facts of the graph; None for the facts of its ops
    smallest_arena  the arena of the best plan in another order, in bytes: a larger arena need not be improved
    fixed_offsets   offsets of values, in bytes; the planner uses the offsets only if they lower the arena
    """

    graph: Graph
    schedule: Schedule
    options: Options
    progress: Progress | None = None
    facts: ProgramFacts | None = None
    smallest_arena: int | None = None
    fixed_offsets: Mapping[Value, int] = field(default_factory=dict)


def options_of(plan: MemoryPlan) -> Options:
    """Return the options that a plan records: alignment, storage of inputs and outputs, and order."""
    return Options(alignment=plan.alignment, io=io_of(plan), order=LESS if plan.recipe.order == LESS else GIVEN)

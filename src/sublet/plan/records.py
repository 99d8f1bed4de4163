"""A memory plan: which bytes every value of a graph lives in. Pure data, saved as JSON.

A *storage* is a block of memory that somebody allocates once: the arena, or the own memory of a
bound weight, input or output. A region is a range of bytes of one storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

from sublet.base.tensor import DType, Unplannable
from sublet.ir.graph import Graph
from sublet.ir.recipe import PLAIN, Recipe
from sublet.plan.schedule import Schedule

ARENA = "arena"
KEPT = "kept"
"""The arena of what a program in pieces keeps from one to the next, where that lies apart."""
FORMAT_VERSION = 9
UNLIMITED = -1
OPEN = -1
"""Stands for an extent, or for a placement, that is known only when the network has run."""

RUN, UPDATE = "run", "update"
"""Kinds of points: a node runs; at the end of a run, the updates of the graph are made."""

POINTER = "pointer"
"""How a value lives that has no bytes of its own: it stands for what control flow assigned to it last."""

SLICE, ROW = "slice", "row"
"""How a value lives that is bytes of a sequence, or of a stacked output, other ones every round."""

Context = tuple[tuple[str, int], ...]
"""The copy of the body of each rolled loop around a node, as (loop, copy) pairs from the root down."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where control flow moves values: the kind of point (see `analysis.flow`) and the loop or branch, "" for none."""

    kind: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" if self.node else self.kind


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of a run: what happens (see `analysis.flow`), to which node, in which copy of the bodies around."""

    kind: str
    node: str = ""
    copies: Context = ()

    @property
    def edge(self) -> Edge:
        """The point, as one at which control flow moves values."""
        return Edge(self.kind, self.node)

    def __str__(self) -> str:
        what = self.node if self.kind == RUN else str(self.edge)
        return what + "".join(f" @{copy}" for _, copy in self.copies)


def bound_to(value: str) -> str:
    """The name of the storage bound to a value; a value called "arena" does not clash with the arena."""
    return f"%{value}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of memory. `kind` is "arena", "weight", "input" or "output".

    There is one arena, called "arena", or one in each memory region the plan was made for, with its name.
    Every other storage is named after the value bound to it, see `bound_to`. A weight or input storage is
    the caller's, and is written by the network only when the graph updates its value. `capacity` is that of the memory
    region of an arena, UNLIMITED when it has none. A memory with a `rate`, in bytes a second, is touched by
    transfers alone (`nn.offload`, `nn.reload`).
    """

    name: str
    kind: str
    nbytes: int
    capacity: int = UNLIMITED
    rate: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [offset, offset + nbytes) of a storage."""

    storage: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Stride:
    """In round k of `loop` a value lies k * `nbytes` further than in round 0, or nearer when it moves `backwards`."""

    loop: str
    nbytes: int
    backwards: bool = False

    @property
    def step(self) -> int:
        """What is added to the offset from one round to the next."""
        return -self.nbytes if self.backwards else self.nbytes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one value lives, and what a reader wants to know about it.

    live      half-open ranges of points (see `analysis.flow`) at which its bytes are needed
    buffer    values of the same buffer are, or overlap, the same bytes on purpose; -1 outside the arena
    region    where it lies; when it has strides, in round 0 of their loops
    how       "own", "view", "part", "inplace" or "carry": why it shares the buffer of `shares`; "slice" or
              "row": it is one step of the sequence or stacked output `shares`; "joined": it came into the
              buffer of `shares` with another value, which has the reason;
              or "pointer": the region names no storage, and the value is where its source is
    shares    the value whose bytes it took, "" when it has its own: one value of each buffer does
    producer  name of the node that writes it; "" for an input or weight
    copies    the copies of the bodies around it in which the region is this one; empty for all. A value
              with several placements is a multi-view tensor: its region changes from round to round
    stands_for   the values with bytes of their own that a pointer may stand for
    strides   how its region moves from round to round of the loops around it, from the outermost inwards
    """

    value: str
    spec: str
    region: Region
    live: tuple[tuple[int, int], ...]
    buffer: int
    how: str = "own"
    shares: str = ""
    producer: str = ""
    copies: tuple[Context, ...] = ()
    stands_for: tuple[str, ...] = ()
    strides: tuple[Stride, ...] = ()

    @property
    def begin(self) -> int:
        return self.live[0][0] if self.live else 0

    @property
    def end(self) -> int:
        return self.live[-1][1] if self.live else 0


@dataclass(frozen=True, slots=True)
class Jump:
    """After copy `copy` of a body comes copy `next`, if its loops and branches were left by these `ways`.

    ways   (loop or branch of the body, the way out of it): of a loop the copy of its own body in which it ended, of
           a branch the arm it took, counting the fallbacks as one more
    """

    copy: int
    ways: tuple[tuple[str, int], ...]
    next: int


@dataclass(frozen=True, slots=True)
class Rolled:
    """A loop whose values take turns among several regions.

    Round c runs copy c of its body while c < first, then copy first + (c - first) % ring [NNC: the repeat of a
    multi-view tensor; one with `first` is of type II]; where there are jumps, these say which copy comes next.
    A loop within copies of others has one record for each.

    heads   what the pointers among the loop's parameters stand for when each copy begins: numbers of placements, in
            the order of the parameters; OPEN where only the run knows
    """

    loop: str
    within: Context
    first: int
    ring: int
    jumps: tuple[Jump, ...] = ()
    heads: tuple[tuple[int, ...], ...] = ()

    @property
    def copies(self) -> int:
        """How many copies of the body there are."""
        return self.first + self.ring

    def following(self, copy: int) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        """The copies that may follow a copy, each with the ways that lead there."""
        jumps = [(jump.ways, jump.next) for jump in self.jumps if jump.copy == copy]
        return jumps or [((), self.after(copy, {}))]

    def after(self, copy: int, ways: Mapping[str, int]) -> int:
        """The copy that follows a copy, when loops and branches in it were left by these ways."""
        for jump in self.jumps:
            if jump.copy == copy and all(ways.get(name) == way for name, way in jump.ways):
                return jump.next
        return copy + 1 if copy + 1 < self.copies else self.first


@dataclass(frozen=True, slots=True)
class CopiedMove:
    """Bytes that a loop or branch moves when it passes an edge of the control flow, or the updates at the end.

    edge     "enter" and "exit" are passed once a run of the loop, "yield" once a run of the branch, "fetch" and "next"
             once a round. On a fetch a slice is copied out of its sequence, on a next the rows are copied into the
             stacked outputs, if they do not lie there. "update" comes once a run, after all nodes
    source, destination   values of the program; in an unrolled loop some copies of the body may move nothing
    nbytes   bytes copied each time
    why      the reason, for people
    """

    edge: Edge
    source: str
    destination: str
    nbytes: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outside:
    """A value that could not be planned, and the reason.

    type    as its source names it
    dtype   of its elements; "" for what is no tensor, or one of a type that is not known
    dims    its extents, OPEN for those that are not known; empty when not even the rank is
    bound   it is a weight, input or output in memory of the caller, so the arena would not hold it in any case
    """

    value: str
    type: str
    reason: str
    dtype: str = ""
    dims: tuple[int, ...] = ()
    bound: bool = False

    @classmethod
    def of(cls, value: str, spec: Unplannable, bound: bool) -> Self:
        """The record of a value whose type cannot be planned."""
        dtype, dims = spec.known or ("", None)
        extents = tuple(OPEN if extent is None else extent for extent in dims or ())
        return cls(value, spec.type, spec.reason, str(dtype), extents, bound)

    def most_bytes(self, largest: int | None = None) -> int | None:
        """The most bytes it can have when no open extent is above `largest`; None when nobody can tell."""
        if not self.dtype or not self.dims or (OPEN in self.dims and largest is None):
            return None
        elements = prod(largest if extent == OPEN and largest is not None else extent for extent in self.dims)
        return (elements * DType.parse(self.dtype).bits + 7) // 8


@dataclass(frozen=True, slots=True)
class Described:
    """A node as people know it: its name, its op, and where it comes from, "" when nobody noted that."""

    name: str
    op: str
    source: str

    @classmethod
    def all_of(cls, graph: Graph) -> tuple[Described, ...]:
        """The nodes of a program, those of sub-graphs included."""
        return tuple(cls(node.name, node.op, node.source) for node in graph.walk())


@dataclass(frozen=True, slots=True)
class Peak:
    """The point with the most live bytes: its number, and which values are alive there."""

    point: int
    nbytes: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of one graph under one schedule.

    arena_bytes        size of the arena; of all arenas together when there are several memory regions
    lower_bound_bytes  no placement of the same buffers can do with fewer
    bound              how the lower bound was found ("peak" or "antichain")
    total_bytes        sum of all planned tensors, each once and with bytes of its own: no reuse at all
    view_bytes, inplace_bytes   part of that sum which needs no buffer thanks to views and parts,
                       and to in-place outputs and carries
    points             what happens at each point of time
    dims               the dimension bindings the model was read with
    max_trips          the declared maxima of rounds it was read with, by loop; "" stands for every loop
    proof              the buffers that prove the lower bound, by what they need at one point; in several streams as a
                       whole: no two of them may overlap
    rolled             the loops whose bodies have several copies in the plan
    moves              what loops, branches and updates copy; empty when no byte is moved
    stopped            "timeout" or "interrupt" when the search for a packing was cut short, else ""
    updated            the inputs and weights that every run leaves with another content
    exchanged          cycles of updated values in memory of their own: when a run has ended, each gets the memory that
                       the next had, the last that of the first, with what lies there
    nodes              what the names of nodes mean, those of sub-graphs included
    recipe             how the planned graph comes from its model
    """

    graph: str
    fingerprint: str
    schedule: Schedule
    alignment: int
    strategy: str
    arena_bytes: int
    lower_bound_bytes: int
    bound: str
    total_bytes: int
    view_bytes: int
    inplace_bytes: int
    storages: tuple[Storage, ...]
    placements: tuple[Placement, ...]
    outside: tuple[Outside, ...]
    peak: Peak
    points: tuple[Point, ...]
    dims: tuple[tuple[str, int], ...] = ()
    max_trips: tuple[tuple[str, int], ...] = ()
    proof: tuple[int, ...] = ()
    rolled: tuple[Rolled, ...] = ()
    moves: tuple[CopiedMove, ...] = ()
    stopped: str = ""
    updated: tuple[str, ...] = ()
    exchanged: tuple[tuple[str, ...], ...] = ()
    nodes: tuple[Described, ...] = ()
    recipe: Recipe = PLAIN
    version: int = FORMAT_VERSION

    def __repr__(self) -> str:
        more = f", values not counted {len(self.not_counted)}" if self.not_counted else ""
        return f"<MemoryPlan {self.graph}: arena {self.arena_bytes:,} bytes, values {len(self.placements)}{more}>"

    @property
    def arenas(self) -> tuple[Storage, ...]:
        """The storages that the planner fills; none when the plan was read from a file that lists none."""
        return tuple(storage for storage in self.storages if storage.kind == ARENA)

    @property
    def bound_bytes(self) -> int:
        """The bytes of storages that are no arena."""
        return sum(storage.nbytes for storage in self.storages if storage.kind != ARENA)

    @property
    def in_arenas(self) -> tuple[Placement, ...]:
        """The values that lie in an arena, in order."""
        names = {storage.name for storage in self.arenas}
        return tuple(place for place in self.placements if place.region.storage in names)

    @property
    def at_peak(self) -> Point:
        """What happens at the peak."""
        return self.points[self.peak.point]

    @property
    def assumed(self) -> tuple[tuple[str, str], ...]:
        """The values whose shape nobody computed, with their types: the caller or the file told it."""
        return self.recipe.conditions

    @property
    def not_counted(self) -> tuple[Outside, ...]:
        """The values that need memory of which the plan knows nothing."""
        return tuple(outside for outside in self.outside if not outside.bound)

    @property
    def gap(self) -> float | None:
        """Fragmentation over the lower bound: 0.0 is a proof that no packing of the same buffers is smaller.

        None when something is not counted: arena and bound are then of the planned part only; and with several
        memory regions, of whose arenas together the bound is not what they could reach.
        """
        if self.not_counted or len(self.arenas) > 1:
            return None
        return fragmentation(self.arena_bytes, self.lower_bound_bytes)


def fragmentation(arena_bytes: int, lower_bound_bytes: int) -> float:
    """How far an arena is above a lower bound, as a part of it, or of one byte."""
    return (arena_bytes - lower_bound_bytes) / max(1, lower_bound_bytes)

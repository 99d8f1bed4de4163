"""Records of a memory plan: the bytes assigned to every value of a graph. Pure data, saved as JSON.

A *storage* is a block of memory allocated once: the arena, or the memory bound to a weight, input or output. A region
is a range of bytes of one storage. The names of record fields are the keys of the JSON file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Self

from sublet.base.boxes import Range
from sublet.base.tensor import DType, Unplannable
from sublet.ir.graph import Graph
from sublet.ir.recipe import PLAIN, Recipe
from sublet.plan.schedule import Schedule

ARENA = "arena"
KEPT = "kept"
"""The name of the arena of values saved across suspension points, if separate from the main arena."""
FORMAT_VERSION = 12
UNLIMITED = -1
MAX_ROWS = 1024
"""Rows of a region. A value with more lies in contiguous bytes: a checker looks at each row."""
OPEN = -1
"""The number of an unknown extent, or of a placement known only in the run."""

RUN, UPDATE = "run", "update"
"""Kinds of points: a node runs; the updates of the graph at the end of a run."""

POINTER = "pointer"
"""`Placement.how` of a renamed value without own bytes, bound to the last source assigned by control flow."""

SLICE, ROW = "slice", "row"
"""`Placement.how` of a view of a sequence or of a stacked output, with different bytes in every iteration."""

Context = tuple[tuple[str, int], ...]
"""The body version of each enclosing rolled loop, as (loop, version) pairs from the outermost loop inwards."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A control-flow edge: the kind of point (see `analysis.control_flow`) and the loop or branch, "" for none."""

    kind: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" if self.node else self.kind


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """A program point: the event (see `analysis.control_flow`), the node, and the body versions of enclosing loops."""

    kind: str
    node: str = ""
    copies: Context = ()

    @property
    def edge(self) -> Edge:
        """The point as a control-flow edge."""
        return Edge(self.kind, self.node)

    def __str__(self) -> str:
        what = self.node if self.kind == RUN else str(self.edge)
        return what + "".join(f" @{copy}" for _, copy in self.copies)


def bound_storage_name(value: str) -> str:
    """Return the name of the storage bound to a value; the prefix keeps a value "arena" apart from the arena."""
    return f"%{value}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of memory. `kind` is "arena", "weight", "input" or "output".

    A plan has one arena, called "arena", or one arena for each memory region, with the name of the memory region.
    Every other storage has a name from `bound_storage_name` of the bound value. The caller owns weight and input
    storages, and the network writes to them only if the graph updates the value. `capacity` is the capacity of an
    arena's memory region, UNLIMITED for none. Only transfers (`nn.offload`, `nn.reload`) access a memory with a `rate`,
    in bytes a second.
    """

    name: str
    kind: str
    nbytes: int
    capacity: int = UNLIMITED
    rate: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [offset, offset + nbytes) of a storage; or `rows` rows of equal size, `pitch` bytes from row to row.

    The rows of a value are its elements along the leading axis: a channel slice of a batch has one row a sample.
    """

    storage: str
    offset: int
    nbytes: int
    rows: int = 1
    pitch: int = 0

    @property
    def end(self) -> int:
        """The first byte behind the region, bytes of others between rows included."""
        return self.offset + (self.rows - 1) * self.pitch + self.nbytes // max(1, self.rows)

    def row(self, number: int, rows: int) -> Region:
        """Return a row of the region, which is contiguous or has `rows` rows."""
        nbytes = self.nbytes // rows
        return Region(self.storage, self.offset + number * (self.pitch or nbytes), nbytes)

    @property
    def runs(self) -> tuple[Region, ...]:
        """The contiguous regions that form the region, in order of address."""
        return (self,) if self.rows <= 1 else tuple(self.row(i, self.rows) for i in range(self.rows))


@dataclass(frozen=True, slots=True)
class Stride:
    """The movement of a view: in iteration k of `loop` the value lies k * `nbytes` above its position in iteration 0.

    With `backwards` the value lies k * `nbytes` below that position.
    """

    loop: str
    nbytes: int
    backwards: bool = False

    @property
    def step(self) -> int:
        """The signed change of the offset from one iteration to the next."""
        return -self.nbytes if self.backwards else self.nbytes


@dataclass(frozen=True, slots=True)
class Placement:
    """The region of one value, with facts for readers of the plan.

    live      half-open ranges of points (see `analysis.control_flow`) where the bytes are needed: the live range
    buffer    the number of the buffer; values of one buffer share or overlap bytes on purpose; -1 outside the arena
    region    the bytes; for a value with strides, the bytes in iteration 0 of the loops of the strides
    how       the reason to share the buffer of `shares`: "own", "view", "part" (concat operand in place), "inplace" or
              "carry"; "slice" or "row" for a step of the sequence or stacked output `shares`; "joined" for a value
              coalesced with the buffer of `shares` through another value, which has the reason;
              "pointer" for a renamed value: the region names no storage, and the value lies where its source lies
    shares    the value sharing its bytes, "" for a value with own bytes: exactly one value of each buffer has own bytes
    producer  name of the node that writes the value; "" for an input or weight
    copies    the body versions of the enclosing loops with this region; empty for all. A value with several
              placements is a multi-view tensor: the region changes from iteration to iteration
    stands_for   the values with own bytes that a renamed value may be bound to
    strides   the movement of the region in the iterations of the enclosing loops, from the outermost inwards
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
        """The first live point; 0 for a value without live points."""
        return self.live[0][0] if self.live else 0

    @property
    def end(self) -> int:
        """The point behind the last live point; 0 for a value without live points."""
        return self.live[-1][1] if self.live else 0


@dataclass(frozen=True, slots=True)
class VersionTransition:
    """A transition between body versions: version `next` follows version `copy` if the run took the exits `ways`.

    ways   (loop or branch of the body, exit number): for a loop, the number is the version of the inner body in which
           the inner loop ended; for a branch, the arm taken, with the fallbacks as an additional arm
    """

    copy: int
    ways: tuple[tuple[str, int], ...]
    next: int


@dataclass(frozen=True, slots=True)
class RolledLoop:
    """A loop with several body versions, for values alternating between regions.

    Iteration c runs body version c while c < first (the prologue), then version first + (c - first) % ring (the period)
    [NNC: the repeat of a multi-view tensor; one with `first` is of type II]. Where the loop has jumps (transitions),
    the jumps select the next version instead. A loop nested in body versions of other loops has one record for each.

    heads   the entry bindings: for each body version, the placement bound to each renamed parameter of the loop when
            the version begins, as numbers of placements in the order of the parameters; OPEN if only the run
            determines the binding
    """

    loop: str
    within: Context
    first: int
    ring: int
    jumps: tuple[VersionTransition, ...] = ()
    heads: tuple[tuple[int, ...], ...] = ()

    @property
    def copies(self) -> int:
        """The number of body versions."""
        return self.first + self.ring

    def possible_successors(self, copy: int) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        """Return the body versions that may follow version `copy`, each with the exits leading there."""
        jumps = [(jump.ways, jump.next) for jump in self.jumps if jump.copy == copy]
        return jumps or [((), self.next_version(copy, {}))]

    def next_version(self, copy: int, ways: Mapping[str, int]) -> int:
        """Return the body version after version `copy` of an iteration that left loops and branches by exits `ways`."""
        for jump in self.jumps:
            if jump.copy == copy and all(ways.get(name) == way for name, way in jump.ways):
                return jump.next
        return copy + 1 if copy + 1 < self.copies else self.first


@dataclass(frozen=True, slots=True)
class CopiedMove:
    """Bytes copied by a loop or branch on a control-flow edge, or by the updates at the end.

    edge     the run passes "enter" and "exit" once a run of the loop, "yield" once a run of the branch, "fetch" and
             "next" once an iteration. On a fetch the loop copies a slice out of its sequence, on a next the rows into
             the stacked outputs, unless the values are views. "update" comes once a run, after all nodes
    source, destination   values of the program; in an unrolled loop some body versions may copy nothing
    nbytes   bytes copied each time
    why      the reason, for people
    """

    edge: Edge
    source: str
    destination: str
    nbytes: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class UnplannedValue:
    """A value that cannot be planned, and the reason.

    type    the type in the words of the source
    dtype   the element type; "" for a value that is no tensor, or has an unknown element type
    dims    the extents, OPEN for unknown extents; empty for an unknown rank
    bound   True for a weight, input or output in memory of the caller: the arena would not hold the value in any case
    """

    value: str
    type: str
    reason: str
    dtype: str = ""
    dims: tuple[int, ...] = ()
    bound: bool = False

    @classmethod
    def from_spec(cls, value: str, spec: Unplannable, bound: bool) -> Self:
        """Return the record of a value with an unplannable type."""
        dtype, dims = spec.dtype_and_dims or ("", None)
        extents = tuple(OPEN if extent is None else extent for extent in dims or ())
        return cls(value, spec.type, spec.reason, str(dtype), extents, bound)

    def max_bytes(self, largest: int | None = None) -> int | None:
        """Return the maximum bytes of the value if no open extent exceeds `largest`; None without a bound."""
        if not self.dtype or not self.dims or (OPEN in self.dims and largest is None):
            return None
        elements = prod(largest if extent == OPEN and largest is not None else extent for extent in self.dims)
        return (elements * DType.parse(self.dtype).bits + 7) // 8


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The name, op and source of a node, for messages; the source is "" if unknown."""

    name: str
    op: str
    source: str

    @classmethod
    def from_graph(cls, graph: Graph) -> tuple[NodeDescription, ...]:
        """Return the descriptions of all nodes of a program, sub-graphs included."""
        return tuple(cls(node.name, node.op, node.source) for node in graph.walk())


@dataclass(frozen=True, slots=True)
class Peak:
    """The point with the most live bytes: the number of the point, the live bytes, and the live values."""

    point: int
    nbytes: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of one graph under one schedule.

    graph              the name of the graph
    fingerprint        the SHA-256 hash of the graph and its schedule
    schedule           the order of execution
    alignment          every offset in an arena is a multiple of this number of bytes
    strategy           the name of the packing strategy
    storages           the arenas and the bound storages
    placements         the region of every planned value
    outside            the values that cannot be planned
    peak               the point with the most live bytes
    arena_bytes        size of the arena; of all arenas together for several memory regions
    lower_bound_bytes  a size below which no placement of the same buffers exists
    bound              the method of the lower bound ("peak", "antichain" or "search")
    total_bytes        sum of all planned tensors, each once and with own bytes: the size without reuse
    view_bytes, inplace_bytes   the part of `total_bytes` without own buffers thanks to views and concat operands in
                       place, and to in-place outputs and coalesced carries
    points             the event at each point
    dims               the dimension bindings used to read the model; the largest extents for ranges
    ranges             the ranges of dimensions; the plan is then that of the upper bounds of all sizes
    equal_dims         (name, name of the dimension with an equal extent) for ranges
    max_trips          the declared maximum trip counts used to read the model, by loop; "" means every loop
    proof              the buffers that prove the lower bound, by the bytes needed at one point; in several streams by
                       whole buffers of which no two may overlap
    rolled             the loops with several body versions
    moves              the copies by loops, branches and updates; empty if control flow copies no byte
    stopped            "timeout" or "interrupt" if the packing search was cut short, else ""
    updated            the inputs and weights with another content after every run
    exchanged          cycles of updated values with swapped storages: after a run, each value gets the storage and the
                       content of the next value, the last value those of the first
    nodes              descriptions of all nodes, sub-graphs included
    recipe             how the planned graph was derived from its model
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
    outside: tuple[UnplannedValue, ...]
    peak: Peak
    points: tuple[PlanPoint, ...]
    dims: tuple[tuple[str, int], ...] = ()
    ranges: tuple[Range, ...] = ()
    equal_dims: tuple[tuple[str, str], ...] = ()
    max_trips: tuple[tuple[str, int], ...] = ()
    proof: tuple[int, ...] = ()
    rolled: tuple[RolledLoop, ...] = ()
    moves: tuple[CopiedMove, ...] = ()
    stopped: str = ""
    updated: tuple[str, ...] = ()
    exchanged: tuple[tuple[str, ...], ...] = ()
    nodes: tuple[NodeDescription, ...] = ()
    recipe: Recipe = PLAIN
    version: int = FORMAT_VERSION

    def __repr__(self) -> str:
        more = f", values not counted {len(self.not_counted)}" if self.not_counted else ""
        return f"<MemoryPlan {self.graph}: arena {self.arena_bytes:,} bytes, values {len(self.placements)}{more}>"

    @property
    def dims_over_ranges(self) -> dict[str, int | str | Range]:
        """The extents, ranges and equal dimensions used to read the model, without ranges of iterations."""
        extents = dict(self.dims)
        return {**extents, **{each.name: each for each in self.ranges if each.name in extents}, **dict(self.equal_dims)}

    def _repr_html_(self) -> str:
        """Return the figures and a memory map for a notebook. Only a notebook loads the code that draws."""
        return str(import_module("sublet.viz.notebook").plan_html(self))

    @property
    def arenas(self) -> tuple[Storage, ...]:
        """The storages filled by the planner; empty for a plan file without any arena."""
        return tuple(storage for storage in self.storages if storage.kind == ARENA)

    @property
    def bound_bytes(self) -> int:
        """The total bytes of all storages except arenas."""
        return sum(storage.nbytes for storage in self.storages if storage.kind != ARENA)

    @property
    def in_arenas(self) -> tuple[Placement, ...]:
        """The placements in arenas, in order."""
        names = {storage.name for storage in self.arenas}
        return tuple(place for place in self.placements if place.region.storage in names)

    @property
    def peak_point(self) -> PlanPoint:
        """The program point of the peak."""
        return self.points[self.peak.point]

    @property
    def assumed_types(self) -> tuple[tuple[str, str], ...]:
        """The values with a declared, not computed, shape, with their types."""
        return self.recipe.conditions

    @property
    def not_counted(self) -> tuple[UnplannedValue, ...]:
        """The unplannable values in need of memory unknown to the plan: all but those in memory of the caller."""
        return tuple(outside for outside in self.outside if not outside.bound)

    @property
    def gap(self) -> float | None:
        """Fragmentation relative to the lower bound: 0.0 proves that no packing of the same buffers is smaller.

        None if some value is not counted: arena and bound then cover only the planned part. None for several memory
        regions: the arenas together may be unable to reach the bound.
        """
        if self.not_counted or len(self.arenas) > 1:
            return None
        return fragmentation(self.arena_bytes, self.lower_bound_bytes)


def fragmentation(arena_bytes: int, lower_bound_bytes: int) -> float:
    """Return (arena - bound) / max(1, bound): the excess of an arena over a lower bound, as a fraction of the bound."""
    return (arena_bytes - lower_bound_bytes) / max(1, lower_bound_bytes)

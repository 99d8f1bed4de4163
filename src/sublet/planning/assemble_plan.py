"""Assembly of the plan, the last stage before the checker: offsets of buffers become regions of values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.coalesced_buffer import Member
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.interference import SegmentedProblem
from sublet.analysis.liveness import LiveRange, to_point_ranges
from sublet.analysis.residual_copies import possible_bindings
from sublet.analysis.sharing import BufferAssignment, SharedBuffer
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.graph import Graph, Value
from sublet.packing import LowerBound, PackingReport, RegionPacking, lower_bound
from sublet.plan import (
    ARENA,
    OPEN,
    POINTER,
    ROW,
    SLICE,
    CopiedMove,
    MemoryPlan,
    NodeDescription,
    Peak,
    Placement,
    Region,
    RolledLoop,
    Storage,
    Stride,
    UnplannedValue,
)
from sublet.plan.file import fingerprint
from sublet.plan.schedule import Schedule
from sublet.plan.statistics import find_peak


@dataclass(frozen=True, slots=True)
class ArenaPlacement:
    """The placement of all arena buffers: for each buffer the name of an arena and the offset in it.

    arena_names  the name of the arena of each buffer
    offsets      the offset of each buffer in the arena, in bytes
    bound        the lower bound on the bytes of all arenas
    stopped      "timeout" or "interrupt" if the search was cut short, else ""
    """

    arenas: tuple[Storage, ...]
    arena_names: tuple[str, ...]
    offsets: tuple[int, ...]
    strategy: str
    bound: LowerBound
    stopped: str

    @property
    def arena_bytes(self) -> int:
        """The size of all arenas together."""
        return sum(arena.nbytes for arena in self.arenas)


def placement_in_one_arena(report: PackingReport, shapes: SegmentedProblem | None = None) -> ArenaPlacement:
    """Return the placement in a single arena, from a packing of rectangular buffers or of the segments in `shapes`."""
    packing, bound = report.packing, report.bound
    offsets = shapes.buffer_offsets(packing) if shapes else packing.offsets
    arenas = (Storage(ARENA, ARENA, packing.arena_bytes),)
    proven = shapes.bound_of_buffers(bound) if shapes else bound
    return ArenaPlacement(arenas, (ARENA,) * len(offsets), offsets, packing.strategy, proven, report.stopped)


def placement_in_regions(shapes: SegmentedProblem, packing: RegionPacking) -> ArenaPlacement:
    """Return the placement in an arena for each memory region.

    The lower bound sums the sizes of the buffers that prove it, without padding between buffers.
    """
    arenas = tuple(
        Storage(s.region.name, ARENA, s.arena_bytes, s.region.capacity, s.region.rate) for s in packing.shares
    )
    strategies = dict.fromkeys(share.strategy for share in packing.shares if share.members)
    proof = lower_bound(shapes.problem)
    nbytes = sum(shapes.problem.buffers[member].size for member in proof.members)
    bound = replace(shapes.bound_of_buffers(proof), bytes=nbytes)
    return ArenaPlacement(arenas, packing.names(), packing.offsets, ", ".join(strategies), bound, packing.stopped)


def assemble_plan(
    graph: Graph,
    schedule: Schedule,
    assignment: BufferAssignment,
    aliases: AliasPlanner,
    packed: ArenaPlacement,
    moves: tuple[CopiedMove, ...],
) -> MemoryPlan:
    """Return the plan of a graph, from the placement of its arena buffers."""
    timeline, lives, storages = assignment.flow, _storage_live_ranges(assignment), aliases.storages
    numbered = list(_make_placements(graph, assignment, lives, storages, packed))
    placements = tuple(placement for _, placement in numbered)
    plan = MemoryPlan(
        graph=graph.name,
        fingerprint=fingerprint(graph, schedule),
        schedule=schedule,
        alignment=aliases.options.alignment,
        strategy=packed.strategy,
        arena_bytes=packed.arena_bytes,
        lower_bound_bytes=packed.bound.bytes,
        bound=packed.bound.kind,
        **byte_totals(placements, {arena.name for arena in packed.arenas}),
        storages=(*packed.arenas, *storages.values()),
        placements=placements,
        outside=tuple(_unplanned_values(graph, aliases.bound_kinds)),
        peak=Peak(0, 0, ()),
        points=tuple(point.plan_point for point in timeline.points),
        proof=packed.bound.members,
        rolled=tuple(_rolled_loops_of(timeline, {instance: i for i, (instance, _) in enumerate(numbered)})),
        moves=moves,
        stopped=packed.stopped,
        updated=tuple(value.name for value in graph.updated_values),
        exchanged=aliases.swap_cycles,
        nodes=NodeDescription.from_graph(graph),
    )
    return replace(plan, peak=find_peak(plan))


def _storage_live_ranges(assignment: BufferAssignment) -> dict[Value, LiveRange]:
    """Return the live range, in points, of every version with bytes; the live ranges of its aliases are included."""
    roots = _roots_of(assignment)
    halves: dict[Value, LiveRange] = {}
    for instance, pieces in assignment.ranges.slot_ranges.items():
        root = roots.get(instance, instance)
        halves[root] = (*halves.get(root, ()), *pieces)
    return {instance: to_point_ranges(pieces) for instance, pieces in halves.items()}


def _roots_of(assignment: BufferAssignment) -> dict[Value, Value]:
    """Return for each version the version owning its bytes."""
    aliases = dict(assignment.flow.unrolling.aliases)
    roots: dict[Value, Value] = {}
    for instance in assignment.flow.unrolling.versions:
        root = instance
        while root in aliases:
            root = aliases[root]
        roots[instance] = root
    return roots


class ByteTotals(TypedDict):
    """The plan fields with sums of bytes over the values in arenas and the renamed values, each value once."""

    total_bytes: int
    view_bytes: int
    inplace_bytes: int


def byte_totals(placements: Sequence[Placement], arenas: Collection[str]) -> ByteTotals:
    """Return the bytes of all values in `arenas`, and of the values sharing bytes as views or in place."""
    kinds: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for place in placements:
        if place.region.storage in arenas or place.how == POINTER:
            kinds.setdefault(place.value, set()).add(place.how)
            sizes[place.value] = place.region.nbytes
    return {
        "total_bytes": sum(sizes.values()),
        "view_bytes": sum(nbytes for name, nbytes in sizes.items() if kinds[name] <= {"view", "part", SLICE, ROW}),
        "inplace_bytes": sum(nbytes for name, nbytes in sizes.items() if kinds[name] <= {"inplace", "carry"}),
    }


def _rolled_loops_of(timeline: ControlFlowGraph, numbers: Mapping[Value | None, int]) -> Iterator[RolledLoop]:
    """Yield the records of the unrolled loops, with entry bindings as numbers of placements."""
    for record, heads in zip(timeline.unrolling.rolled_loops, timeline.unrolling.entry_bindings, strict=True):
        entries = tuple(tuple(OPEN if head is None else numbers[head] for head in copy) for copy in heads)
        yield replace(record, heads=entries)


def _make_placements(
    graph: Graph,
    assignment: BufferAssignment,
    lives: Mapping[Value, LiveRange],
    storages: Mapping[Value, Storage],
    packed: ArenaPlacement,
) -> Iterator[tuple[Value | None, Placement]]:
    """Yield (version, placement) for every version of a plannable value, in order of definition.

    A renamed value has a single placement without storage, and None as version.
    """
    producer = {value: node.name for node in graph.walk() for value in node.defs}
    where = _places_of_versions(assignment.buffers, packed)
    stands_for = possible_bindings(graph, assignment.flow.unrolling.renamed_values)
    instances: dict[Value, list[Value]] = {}
    versions = assignment.flow.unrolling.versions
    names = {value.name: versions[root].base.name for value, root in _roots_of(assignment).items()}
    for instance, origin in versions.items():
        if origin.base not in assignment.flow.unrolling.renamed_values:
            instances.setdefault(origin.base, []).append(instance)
    for value in graph.values():
        if not isinstance(value.spec, TensorSpec):
            continue
        if value in assignment.flow.unrolling.renamed_values:
            nowhere = Region("", 0, value.nbytes)
            bindings, by = stands_for[value], producer.get(value, "")
            yield None, Placement(value.name, str(value.spec), nowhere, (), -1, POINTER, "", by, stands_for=bindings)
        for instance in instances.get(value, ()):
            home = storages[value].name if value in storages else packed.arenas[0].name
            member, place = where.get(instance, (Member(value, 0), _VersionPlace(home, 0, -1)))
            contexts = tuple(assignment.flow.unrolling.versions[instance].contexts)
            yield (
                instance,
                Placement(
                    value=value.name,
                    spec=str(value.spec),
                    region=_region_of(value, place),
                    live=lives.get(instance, ()),
                    buffer=place.buffer,
                    how=member.how,
                    shares=names.get(member.shares, member.shares),
                    producer=producer.get(value, ""),
                    copies=contexts if any(contexts) else (),
                    strides=place.strides,
                ),
            )


@dataclass(frozen=True, slots=True)
class _VersionPlace:
    """The place of a version: storage, offset in iteration 0, buffer number, strides of the loops around, rows."""

    storage: str
    offset: int
    buffer: int
    strides: tuple[Stride, ...] = ()
    rows: int = 1
    pitch: int = 0


def _region_of(value: Value, place: _VersionPlace) -> Region:
    """Return the region of a value; a value as wide as a row of its buffer is contiguous."""
    if place.rows == 1 or place.rows * place.pitch == value.nbytes:
        return Region(place.storage, place.offset, value.nbytes)
    return Region(place.storage, place.offset, value.nbytes, place.rows, place.pitch)


def _places_of_versions(
    buffers: tuple[SharedBuffer, ...], packed: ArenaPlacement
) -> dict[Value, tuple[Member, _VersionPlace]]:
    """Return for each version the member of its buffer, and the place."""
    bases: dict[int, _VersionPlace] = {}
    member_of: dict[Value, tuple[int, Member]] = {}
    index = 0
    for i, buffer in enumerate(buffers):
        member_of.update((member.value, (i, member)) for member in buffer.members)
        if buffer.needs_arena:
            place = _VersionPlace(packed.arena_names[index], packed.offsets[index], index)
            bases[i] = replace(place, rows=buffer.rows, pitch=buffer.pitch)
            index += 1
        elif buffer.bound_storage:
            bases[i] = _VersionPlace(buffer.bound_storage, 0, -1)

    def place_of(i: int) -> _VersionPlace:
        window = buffers[i].loop_view
        if i not in bases and window is not None:
            around, whole = member_of[window.whole]
            place = place_of(around)
            offset = place.offset + whole.offset + window.start_offset
            bases[i] = _VersionPlace(place.storage, offset, place.buffer, (*place.strides, window.stride))
        return bases[i]

    return {
        value: (member, replace(place_of(i), offset=place_of(i).offset + member.offset))
        for value, (i, member) in member_of.items()
    }


def _unplanned_values(graph: Graph, bound: Mapping[Value, str]) -> Iterator[UnplannedValue]:
    """Yield the records of the unplannable values."""
    for value in graph.values():
        if isinstance(value.spec, Unplannable):
            yield UnplannedValue.from_spec(value.name, value.spec, value in bound)

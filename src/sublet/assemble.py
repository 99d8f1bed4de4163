"""The last stage before the checker: offsets of buffers become regions of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.analysis.flow import Flow
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.merging import Member
from sublet.analysis.schedule import Schedule
from sublet.analysis.sharing import SharedBuffer
from sublet.ir.graph import Graph, Value
from sublet.packing import Report
from sublet.plan import ARENA, MemoryPlan, Outside, Peak, Placement, Region, Storage, bound_to
from sublet.plan_file import fingerprint
from sublet.tensor import TensorSpec, Unplannable


def bound_storages(graph: Graph, *, io_bound: bool, weights_bound: bool) -> dict[Value, Storage]:
    """The values that have memory of their own outside the arena."""
    kinds: dict[Value, str] = {}
    if weights_bound:
        kinds |= dict.fromkeys(graph.weights, "weight")
    if io_bound:
        kinds |= dict.fromkeys(graph.inputs, "input")
        kinds = dict.fromkeys((v for v in graph.outputs if v not in set(graph.weights)), "output") | kinds
    bound = {value: kind for value, kind in kinds.items() if value.plannable}
    return {value: Storage(bound_to(value.name), kind, value.nbytes) for value, kind in bound.items()}


def always_live(ranges: LiveRanges, values: tuple[Value, ...], points: int) -> LiveRanges:
    """`ranges` with `values` alive from the first point to the last: they serve the next run too."""
    return replace(ranges, halves={**ranges.halves, **dict.fromkeys(values, ((0, 2 * points),))})


def assemble(
    graph: Graph,
    schedule: Schedule,
    timeline: Flow,
    ranges: LiveRanges,
    storages: Mapping[Value, Storage],
    buffers: tuple[SharedBuffer, ...],
    report: Report,
    *,
    alignment: int,
    dims: Mapping[str, int],
) -> MemoryPlan:
    """The plan, from the packing of those `buffers` that have no home."""
    planned = [buffer for buffer in buffers if not buffer.home]
    arena = Storage(ARENA, "arena", report.packing.arena_bytes)
    placements = _placements(graph, timeline, ranges, storages, buffers, report.packing.offsets)
    in_arena = [p for p in placements if p.region.storage == ARENA]
    return MemoryPlan(
        graph=graph.name,
        fingerprint=fingerprint(graph, schedule),
        schedule=schedule,
        alignment=alignment,
        strategy=report.packing.strategy,
        arena_bytes=arena.nbytes,
        lower_bound_bytes=report.bound.bytes,
        bound=report.bound.kind,
        total_bytes=sum(p.region.nbytes for p in in_arena),
        view_bytes=sum(p.region.nbytes for p in in_arena if p.how in ("view", "part")),
        inplace_bytes=sum(p.region.nbytes for p in in_arena if p.how in ("inplace", "carry")),
        storages=(arena, *storages.values()),
        placements=placements,
        outside=tuple(_outside(graph)),
        peak=_peak(planned, timeline, ranges),
        points=tuple(str(point) for point in timeline.points),
        dims=tuple(dims.items()),
        proof=report.bound.members,
        stopped=report.stopped,
    )


def _placements(
    graph: Graph,
    timeline: Flow,
    ranges: LiveRanges,
    storages: Mapping[Value, Storage],
    buffers: tuple[SharedBuffer, ...],
    offsets: tuple[int, ...],
) -> tuple[Placement, ...]:
    """One placement a plannable value, in order of definition."""
    where: dict[Value, tuple[Member, str, int, int]] = {}
    index = 0
    for buffer in buffers:
        number, base = (-1, 0) if buffer.home else (index, offsets[index])
        index += not buffer.home
        for member in buffer.members:
            where[member.value] = (member, buffer.home or ARENA, base + member.offset, number)
    producer = {value: node.name for node in graph.walk() for value in node.defs}
    placements = []
    for value in graph.values():
        if not isinstance(value.spec, TensorSpec):
            continue
        nowhere = (Member(value, 0), storages[value].name if value in storages else ARENA, 0, -1)
        member, storage, offset, number = where.get(value, nowhere)
        region = Region(storage, offset, value.nbytes)
        placements.append(
            Placement(
                value=value.name,
                spec=str(value.spec),
                region=region,
                live=ranges.points(value),
                buffer=number,
                how=member.how,
                shares=member.shares,
                producer=producer.get(value, ""),
            )
        )
    return tuple(placements)


def _outside(graph: Graph) -> list[Outside]:
    return [
        Outside(value.name, value.spec.type, value.spec.reason)
        for value in graph.values()
        if isinstance(value.spec, Unplannable)
    ]


def _peak(buffers: list[SharedBuffer], timeline: Flow, ranges: LiveRanges) -> Peak:
    """The first of the points with the most live bytes."""
    change = [0] * (len(timeline.points) + 1)
    for buffer in buffers:
        for begin, end in buffer.live:
            change[begin] += buffer.nbytes
            change[end] -= buffer.nbytes
    best = live = peak = 0
    for t, step in enumerate(change):
        live += step
        if live > best:
            best, peak = live, t
    alive = [
        member.value.name
        for buffer in buffers
        for member in buffer.members
        if any(begin <= peak < end for begin, end in ranges.points(member.value))
    ]
    return Peak(peak, str(timeline.points[peak]), best, tuple(alive))

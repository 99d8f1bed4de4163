"""Exports for other tools: MiniMalloc's CSV, traces for Perfetto, and PyTorch memory snapshots.

A plan as MiniMalloc's CSV: one row a buffer, with half-open lifetimes in points of the plan, and the offset.

A buffer with several live segments takes one row a segment: companions at fixed distances.
`sublet check FILE.csv` checks the offsets against these lifetimes; `sublet pack FILE.csv` packs the same buffers again.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

from sublet.base.names import unused_name
from sublet.base.ranges import LiveSegment, gaps
from sublet.plan.export.table import sharing_reason
from sublet.plan.records import MemoryPlan
from sublet.plan.statistics import PlannedBuffer, live_curve_of, planned_buffers, require_counted


def minimalloc(plan: MemoryPlan) -> str:
    """Return the CSV of a plan's buffers, named after the owners. Raises PlanError for uncounted values."""
    require_counted(plan, "MiniMalloc's CSV")
    many_arenas, aligned = len(plan.arenas) > 1, plan.alignment > 1
    buffers = list(planned_buffers(plan))
    segmented = any(len(block.segments) > 1 for block in buffers)
    columns = ["id", "lower", "upper", "size", *(["alignment"] if aligned else []), "gaps"]
    columns += ["companion", "distance"] if segmented else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "offset", *(["region"] if many_arenas else [])])
    taken: set[str] = set()
    for block in buffers:
        lowest = block.segments[0]
        first = _row_name(block.owner.value, taken)
        for strip in block.segments:
            name = first if strip is lowest else _row_name(first, taken)
            distance = ["", ""] if strip is lowest else [first, strip.begin - lowest.begin]
            row = [name, strip.live[0][0], strip.live[-1][1], strip.nbytes, *([plan.alignment] if aligned else [])]
            row += [" ".join(f"{begin}-{end}" for begin, end in gaps(strip.live)), *(distance if segmented else [])]
            writer.writerow([*row, block.offset + strip.begin, *([block.arena] if many_arenas else [])])
    return text.getvalue()


def _row_name(base: str, taken: set[str]) -> str:
    """Return a name without a row, and add the name to `taken`: one value may have several rows."""
    return unused_name(f"{base}@{len(taken)}" if base in taken else base, taken)


# A plan as a trace for ui.perfetto.dev and chrome://tracing: one point of the plan is one microsecond.
#
# The trace has a lane for the events, a lane for each slot (an offset of an arena where segments begin, with
# consecutive tensors), and counters: live bytes, arena, and lower bound. Events of a lane never overlap.

RUNS = 1
"""The number of the lane of events."""


def perfetto(plan: MemoryPlan) -> str:
    """Return the trace as JSON. Raises PlanError for uncounted values."""
    require_counted(plan, "a trace")
    events = [*_names(plan), *_runs(plan), *_slots(plan), *_counters(plan)]
    metadata = {"graph": plan.graph, "fingerprint": plan.fingerprint, "unit": "1 us is one point of the plan"}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": metadata}, indent=1) + "\n"


def _names(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, f"{plan.graph}: arena {plan.arena_bytes} bytes")
    yield _meta("thread_name", RUNS, "runs")
    for lane, (arena, offset) in enumerate(_lanes(plan), RUNS + 1):
        yield _meta("thread_name", lane, f"{arena} +{offset}")
        yield {"ph": "M", "pid": 1, "tid": lane, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _meta(kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": lane, "name": kind, "args": {"name": name}}


def _lanes(plan: MemoryPlan) -> list[tuple[str, int]]:
    order = [storage.name for storage in plan.arenas]
    lanes = {(block.arena, block.offset + strip.begin) for block in planned_buffers(plan) for strip in block.segments}
    return sorted(lanes, key=lambda lane: (order.index(lane[0]), lane[1]))


def _runs(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    ops = {node.name: node for node in plan.nodes}
    for point, moment in enumerate(plan.points):
        node = ops.get(moment.node)
        args = {"point": point, **({} if node is None else {"op": node.op, "source": node.source})}
        yield {"ph": "X", "pid": 1, "tid": RUNS, "ts": point, "dur": 1, "name": str(moment), "args": args}


def _slots(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    lanes = {lane: number for number, lane in enumerate(_lanes(plan), RUNS + 1)}
    for block in planned_buffers(plan):
        reasons = {place.value: sharing_reason(place) for place in block.members if sharing_reason(place)}
        for strip in block.segments:
            offset = block.offset + strip.begin
            args = {"bytes": strip.nbytes, "offset": offset, "type": block.owner.spec, "values": list(block.values)}
            for begin, end in strip.live:
                times = {"ts": begin, "dur": end - begin}
                event = {"ph": "X", "pid": 1, "tid": lanes[block.arena, offset], **times, "name": block.owner.value}
                yield {**event, "args": {**args, **({"shares": reasons} if reasons else {})}}


def _counters(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    bound = {"lower bound": plan.lower_bound_bytes} if plan.gap is not None else {}
    last = len(plan.points)
    for name, nbytes in {"arena": plan.arena_bytes, **bound}.items():
        for point in (0, last):
            yield {"ph": "C", "pid": 1, "ts": point, "name": name, "args": {"bytes": nbytes}}
    for point, nbytes in live_curve_of(planned_buffers(plan)):
        yield {"ph": "C", "pid": 1, "ts": point, "name": "live", "args": {"bytes": nbytes}}


# A plan as a PyTorch memory snapshot, for `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz.
#
# Each arena is a segment of the snapshot. Each live segment of a buffer is allocated at the start of a live range, and
# freed at the end. One point of the plan is one microsecond. Bytes still live at the end of the run stay allocated.

PROTOCOL = 4
"""The pickle protocol: the web page reads no later protocol."""
BASE = 1 << 20
"""The address of the first segment: viewers take 0 for a null pointer."""
SEGMENT_SPACING = 1 << 21
"""Segments begin at multiples of this number of bytes."""

PlacedSegment = tuple[PlannedBuffer, LiveSegment]


def snapshot(plan: MemoryPlan) -> bytes:
    """Return the snapshot, as a pickle of dicts, lists, texts and numbers. Raises PlanError for uncounted values."""
    require_counted(plan, "a snapshot")
    blocks = [(block, strip) for block in planned_buffers(plan) for strip in block.segments]
    addresses = _addresses(plan)
    last = len(plan.points)
    left = [(block, strip) for block, strip in blocks if strip.live[-1][1] >= last]
    segments = [_segment(plan, name, address, left) for name, address in addresses.items()]
    record = {"segments": segments, "device_traces": [_trace(plan, blocks, addresses)], "allocator_settings": {}}
    return pickle.dumps(record, protocol=PROTOCOL)


def _addresses(plan: MemoryPlan) -> dict[str, int]:
    addresses, at = {}, BASE
    for storage in plan.arenas:
        if storage.nbytes:
            addresses[storage.name] = at
            at = -(-(at + storage.nbytes) // SEGMENT_SPACING) * SEGMENT_SPACING
    return addresses


def _trace(plan: MemoryPlan, blocks: list[PlacedSegment], addresses: dict[str, int]) -> list[dict[str, Any]]:
    """Return the allocations and frees in order; at each point frees come before allocations."""
    sizes = {storage.name: storage.nbytes for storage in plan.arenas}
    events = [_event("segment_alloc", address, sizes[name], 0, []) for name, address in addresses.items()]
    steps: list[tuple[int, int, int]] = []
    for i, (_, strip) in enumerate(blocks):
        for begin, end in strip.live:
            steps += [(begin, 1, i)] + ([(end, 0, i)] if end < len(plan.points) else [])
    for point, taken, i in sorted(steps):
        block, strip = blocks[i]
        at, frames = addresses[block.arena] + block.offset + strip.begin, _frames(plan, block)
        for action in ("alloc",) if taken else ("free_requested", "free_completed"):
            events.append(_event(action, at, strip.nbytes, point, frames))
    return events


def _event(action: str, address: int, nbytes: int, time: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": nbytes, "stream": 0, "time_us": time, "frames": frames}


def _frames(plan: MemoryPlan, block: PlannedBuffer) -> list[dict[str, Any]]:
    """Return stack frames for a buffer: one frame a tensor, with the producer in place of the source file."""
    sources = {node.name: node.source for node in plan.nodes}
    frames = []
    for place in block.members:
        label = f"{place.value} {place.spec}" + (f" ({sharing_reason(place)})" if sharing_reason(place) else "")
        where = sources.get(place.producer, "") or place.producer or "the caller"
        frames.append({"name": label, "filename": where, "line": 0})
    return frames


def _segment(plan: MemoryPlan, name: str, address: int, left: list[PlacedSegment]) -> dict[str, Any]:
    """Return the state of an arena at the end of a run: live blocks, and the free blocks between them."""
    total = next(storage.nbytes for storage in plan.arenas if storage.name == name)
    held = [(block.offset + strip.begin, strip.nbytes, block) for block, strip in left if block.arena == name]
    blocks, at = [], 0
    for offset, nbytes, block in sorted(held, key=lambda one: one[0]):
        if offset > at:
            blocks.append(_block(address + at, offset - at, "inactive", []))
        blocks.append(_block(address + offset, nbytes, "active_allocated", _frames(plan, block)))
        at = offset + nbytes
    if at < total:
        blocks.append(_block(address + at, total - at, "inactive", []))
    held_bytes = sum(nbytes for _, nbytes, _ in held)
    return {
        "device": 0, "address": address, "total_size": total, "allocated_size": held_bytes, "active_size": held_bytes,
        "requested_size": held_bytes, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _block(address: int, nbytes: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": nbytes, "requested_size": nbytes, "state": state, "frames": frames}

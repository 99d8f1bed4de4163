"""A plan as a PyTorch memory snapshot, for `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz.

Each arena is a segment of the snapshot. Each live segment of a buffer is allocated at the start of a live range, and
freed at the end. One point of the plan is one microsecond. Bytes still live at the end of the run stay allocated.
"""

from __future__ import annotations

import pickle
from typing import Any

from sublet.base.live_segments import LiveSegment
from sublet.plan.export.table import sharing_reason
from sublet.plan.intervals import PlannedBuffer, planned_buffers, require_counted
from sublet.plan.records import MemoryPlan

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

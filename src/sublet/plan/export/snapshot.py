"""A plan as a memory snapshot of PyTorch's, which `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz show.

Each arena is a segment; each strip of a buffer is allocated where it is needed from, and freed where that ends. One
point of the plan is one microsecond. What is still needed when a run ends stays allocated.
"""

from __future__ import annotations

import pickle
from typing import Any

from sublet.base.strips import Strip
from sublet.plan.export.table import why
from sublet.plan.records import MemoryPlan
from sublet.plan.slots import Block, require_counted, slots

PROTOCOL = 4
"""Of the pickle: the web page reads no later one."""
BASE = 1 << 20
"""The address of the first segment: 0 would be no pointer."""
APART = 1 << 21
"""Segments begin at multiples of this."""

Taken = tuple[Block, Strip]


def snapshot(plan: MemoryPlan) -> bytes:
    """The snapshot, as a pickle of dicts, lists, texts and numbers. Raises PlanError where something is not counted."""
    require_counted(plan, "a snapshot")
    blocks = [(block, strip) for block in slots(plan) for strip in block.strips]
    addresses = _addresses(plan)
    last = len(plan.points)
    left = [(block, strip) for block, strip in blocks if strip.live[-1][1] >= last]
    segments = [_segment(plan, name, address, left) for name, address in addresses.items()]
    record = {"segments": segments, "device_traces": [_trace(plan, blocks, addresses)], "allocator_settings": {}}
    return pickle.dumps(record, protocol=PROTOCOL)


def _addresses(plan: MemoryPlan) -> dict[str, int]:
    found, at = {}, BASE
    for storage in plan.arenas:
        if storage.nbytes:
            found[storage.name] = at
            at = -(-(at + storage.nbytes) // APART) * APART
    return found


def _trace(plan: MemoryPlan, blocks: list[Taken], addresses: dict[str, int]) -> list[dict[str, Any]]:
    """What is taken and given back, in order; what ends at a point is given back before anything is taken there."""
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


def _frames(plan: MemoryPlan, block: Block) -> list[dict[str, Any]]:
    """The tensors of a buffer and who writes them, in the place of a stack."""
    sources = {node.name: node.source for node in plan.nodes}
    frames = []
    for place in block.members:
        told = f"{place.value} {place.spec}" + (f" ({why(place)})" if why(place) else "")
        where = sources.get(place.producer, "") or place.producer or "the caller"
        frames.append({"name": told, "filename": where, "line": 0})
    return frames


def _segment(plan: MemoryPlan, name: str, address: int, left: list[Taken]) -> dict[str, Any]:
    """An arena when a run has ended: what is still needed, and what is free between it."""
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

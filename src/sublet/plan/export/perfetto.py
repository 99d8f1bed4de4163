"""A plan as a trace for ui.perfetto.dev and chrome://tracing: one point of the plan is one microsecond.

The trace has a lane for the events, a lane for each slot (an offset of an arena where segments begin, with consecutive
tensors), and counters: live bytes, arena, and lower bound. Events of a lane never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sublet.plan.export.table import sharing_reason
from sublet.plan.intervals import live_bytes_curve, planned_buffers, require_counted
from sublet.plan.records import MemoryPlan

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
    for point, nbytes in live_bytes_curve(list(planned_buffers(plan))):
        yield {"ph": "C", "pid": 1, "ts": point, "name": "live", "args": {"bytes": nbytes}}

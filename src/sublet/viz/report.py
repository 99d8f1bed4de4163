"""The output of `sublet plan --json`: the plan as one flat object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sublet.ir.recipe import Recipe
from sublet.plan import OPEN, POINTER, UNLIMITED, MemoryPlan
from sublet.plan.statistics import (
    bytes_by_edge,
    live_curve_of,
    multiview_values,
    peak_contributors,
    planned_buffers,
    planned_values,
    update_statistics,
)
from sublet.plan.verdict import EVERY, Verdict, buffers_at_peak, max_total_bytes
from sublet.viz.loop_bands import describe_versions


def _control_flow_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return loops, renamed loop-carried values, and copied bytes."""
    return {
        "loops": [
            {
                "loop": record.loop,
                "within": [list(pair) for pair in record.within],
                "first": record.first,
                "ring": record.ring,
                "jumps": [{"copy": j.copy, "ways": dict(j.ways), "next": j.next} for j in record.jumps],
                "words": describe_versions(record),
            }
            for record in plan.rolled
        ],
        "pointers": {p.value: list(p.stands_for) for p in plan.placements if p.how == POINTER},
        "multiview": list(multiview_values(plan)),
        "moves": [
            {"edge": str(m.edge), "source": m.source, "destination": m.destination, "nbytes": m.nbytes, "why": m.why}
            for m in plan.moves
        ],
        "bytes_by_edge": {str(edge): nbytes for edge, nbytes in bytes_by_edge(plan).items()},
    }


def recipe_json(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe of the planned graph as JSON data."""
    content = asdict(recipe)
    by_name = {name: dict(content[name]) for name in ("assumed", "declared", "scratch", "const")}
    return {**content, **by_name, "words": recipe.description}


def plan_json(plan: MemoryPlan, seconds: float | None, verdict: Verdict | None) -> dict[str, Any]:
    """Return figures, peak and tensors of a plan. Sizes and offsets are bytes; begin and end are points.

    Arena and bound cover the planned values. With uncounted values, `gap` is null; `most_bytes` is null if unknown.
    """
    largest = dict(verdict.largest) if verdict else {}
    content: dict[str, Any] = {
        "graph": plan.graph,
        "arena_bytes": plan.arena_bytes,
        "arenas": {storage.name: storage.nbytes for storage in plan.arenas},
        "lower_bound_bytes": plan.lower_bound_bytes,
        "bound": plan.bound,
        "gap": plan.gap,
        "planned": len(planned_values(plan)),
        "not_counted": len(plan.not_counted),
        "most_bytes": max_total_bytes(plan, largest),
        "total_bytes": plan.total_bytes,
        "view_bytes": plan.view_bytes,
        "inplace_bytes": plan.inplace_bytes,
        "bound_bytes": plan.bound_bytes,
        "updated": list(plan.updated),
        "updated_bytes": update_statistics(plan).nbytes,
        "exchanged": [list(cycle) for cycle in plan.exchanged],
        "alignment": plan.alignment,
        "strategy": plan.strategy,
        "stopped": plan.stopped,
        "seconds": seconds,
        "recipe": recipe_json(plan.recipe),
        "dims": dict(plan.dims),
        "max_trips": dict(plan.max_trips),
        **_control_flow_json(plan),
        "peak": {
            "point": plan.peak.point,
            "node": str(plan.peak_point),
            "bytes": plan.peak.nbytes,
            "buffers": [{"nbytes": live.nbytes, "tensors": list(live.values)} for live in buffers_at_peak(plan)],
        },
        "relief": _contributors_json(plan),
        "regions": _regions_json(plan),
        "tensors": _tensors_json(plan),
        "outside": _unplanned_json(plan, largest),
    }
    return content if verdict is None else content | verdict_json(verdict)


def _contributors_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return, for each buffer at the peak, the peak without the buffer, and with half of the buffer at a time."""
    return {
        "estimate": True,
        "buffers": [
            {
                "nbytes": one.nbytes,
                "tensors": list(one.values),
                "peak_without_bytes": one.without_bytes,
                "peak_halved_bytes": one.halved_bytes,
            }
            for one in peak_contributors(plan)
        ],
    }


def _regions_json(plan: MemoryPlan) -> list[dict[str, Any]]:
    """Return size, capacity and peak bytes of each memory."""
    blocks = list(planned_buffers(plan))
    return [
        {
            "name": storage.name,
            "nbytes": storage.nbytes,
            "capacity_bytes": None if storage.capacity == UNLIMITED else storage.capacity,
            "bytes_a_second": storage.rate or None,
            "peak_bytes": live_curve_of(b for b in blocks if b.arena == storage.name).peak_bytes,
            "buffers": sum(block.arena == storage.name for block in blocks),
        }
        for storage in plan.arenas
    ]


def _tensors_json(plan: MemoryPlan) -> list[dict[str, Any]]:
    """Return the placements."""
    return [
        {
            "name": place.value,
            "spec": place.spec,
            "storage": place.region.storage,
            "offset": place.region.offset,
            "nbytes": place.region.nbytes,
            "begin": place.begin,
            "end": place.end,
            "live": [list(piece) for piece in place.live],
            "producer": place.producer,
            "buffer": place.buffer,
            "how": place.how,
            "shares": place.shares,
            "copies": [[list(pair) for pair in context] for context in place.copies],
            "strides": {stride.loop: stride.step for stride in place.strides},
        }
        for place in plan.placements
    ]


def _unplanned_json(plan: MemoryPlan, largest: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the values outside of the plan."""
    return [
        {
            "name": o.value,
            "type": o.type,
            "dtype": o.dtype or None,
            "dims": [None if extent == OPEN else extent for extent in o.dims] or None,
            "most_bytes": o.max_bytes(largest.get(o.value, largest.get(EVERY))),
            "bound": o.bound,
            "reason": o.reason,
        }
        for o in plan.outside
    ]


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON data.

    `fits` is true, false, or null if unknown. `proven` is true if the verdict holds for every packing without
    assumptions; `assumed` lists the assumed types.
    """
    return {
        "budget_bytes": verdict.budget,
        "verdict": verdict.outcome.value,
        "fits": verdict.fits,
        "proven": verdict.is_proven,
        "least_bytes": verdict.least,
        "most_bytes": verdict.most,
        "max_dim": dict(verdict.largest),
        "assumed": dict(verdict.assumed),
        "proof": [{"nbytes": p.nbytes, "tensors": list(p.values)} for p in verdict.proof],
    }

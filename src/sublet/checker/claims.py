"""The claims of a plan beyond regions: the checker derives every number and name again, and compares.

The replay proves that a plan runs right; this module proves the plan's description of itself. The plan must have
passed the replay. A claim is proven, false (a finding), or unproven (reported with the reason).

Rules: false-bound, false-buffer, false-sharing, false-live, false-peak, false-points, false-sum, false-moves,
false-targets, false-heads, false-name, bad-copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from sublet.base.errors import Finding
from sublet.base.tensor import Unplannable
from sublet.checker.bound import BoundStatus, check_bound
from sublet.checker.buffers import CheckerBuffer, check_buffers, check_live_overlaps, rebuild_buffers
from sublet.checker.entry_bindings import check_entry_bindings, requested_bindings
from sublet.checker.liveness import Ranges, is_covered_by, may_live, merge_ranges, must_live, reachable_from_writes
from sublet.checker.moves import check_moves, check_possible_bindings
from sublet.checker.sharing_reasons import sharing_reasons
from sublet.checker.state_space import PlacementIndex, StateSpace, TooManyStatesError
from sublet.checker.timeline import TooLongError, build_timeline
from sublet.ir.graph import Graph, Value
from sublet.plan import ARENA, POINTER, UNLIMITED, MemoryPlan, Placement, Region
from sublet.plan.schedule import Schedule

MOST_ALIGNMENT = 1 << 32
"""Bytes. A larger alignment is a finding (bad-alignment)."""
STOPPED = ("", "timeout", "interrupt")
"""The values of `MemoryPlan.stopped`."""

PROVEN = (
    *("graph", "alignment", "arena_bytes", "lower_bound_bytes", "total_bytes", "view_bytes", "inplace_bytes"),
    *("storages", "placements", "live", "buffers", "sharing", "stands_for", "outside", "peak", "points", "rolled"),
    *("moves", "updated", "exchanged", "nodes"),
)
"""The fields of a plan implied by its model and its regions."""
LABELS = (
    *("strategy", "stopped", "moves.why", "recipe.by", "recipe.order"),
    *("storages.capacity", "storages.rate", "nodes.source"),
)
"""The fields without a proof: the history of the plan, and the source lines of its nodes."""


@dataclass
class ClaimCheck:
    """False claims as findings, and unproven claims as a map from the field of the plan to the reason."""

    findings: list[Finding] = field(default_factory=list)
    unproven: dict[str, str] = field(default_factory=dict)
    bound: BoundStatus = field(default_factory=BoundStatus)


def check_claims(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> ClaimCheck:
    """Check all claims of a plan; the plan must have passed the replay."""
    claims = ClaimCheck([*_check_names(graph, plan), *_check_storages(plan), *_check_sums(graph, plan)])
    places = PlacementIndex(plan)
    records = {(record.loop, record.within): record for record in plan.rolled}
    try:
        points = build_timeline(graph, schedule, places.pointers, records, len(plan.points))
    except TooLongError:
        claims.findings.append(
            Finding("false-points", "the plan", f"lists {len(plan.points)} points, but the program has more")
        )
        return claims
    if tuple(moment.point for moment in points.moments) != plan.points:
        claims.findings.append(Finding("false-points", "the plan", "lists other points than the program has"))
        return claims
    try:
        walk = StateSpace(points, places, requested_bindings(points, places, plan))
    except TooManyStatesError:
        why = "renamed values have too many states"
        claims.unproven.update(dict.fromkeys(("live", "buffers", "lower_bound_bytes", "moves", "rolled"), why))
        return claims
    claims.findings += _check_body_versions(plan, walk)
    claims.findings += check_possible_bindings(graph, plan)
    claims.findings += check_entry_bindings(plan, walk)
    claims.findings += check_moves(plan, walk)
    _check_liveness(graph, plan, walk, claims)
    return claims


def _check_liveness(graph: Graph, plan: MemoryPlan, walk: StateSpace, claim_check: ClaimCheck) -> None:
    """Check live ranges, buffers, the peak, and the lower bound."""
    constants = {value.name for value in graph.constants}
    lasting = [i for i, place in enumerate(plan.placements) if place.value in constants]
    must, may = must_live(walk, lasting), may_live(walk, lasting)
    findings = [*_check_live_ranges(plan, must, may), *_check_first_writes(plan, walk, must)]
    standing: dict[str, set[int]] = {}
    for visit in walk.visits:
        for (kind, name), number in visit.state.items():
            if kind == "pointer":
                standing.setdefault(name, set()).add(number)
    findings += check_buffers(plan, sharing_reasons(walk), standing)
    if not findings:
        said = rebuild_buffers(plan, {i: place.live for i, place in enumerate(plan.placements)})
        findings += check_live_overlaps(plan, said)
        findings += _check_peak(plan, said)
        wrong, claim_check.bound = check_bound(plan, walk, rebuild_buffers(plan, must), said)
        findings += wrong
        if claim_check.bound.unproven_reason:
            claim_check.unproven["lower_bound_bytes"] = claim_check.bound.unproven_reason
    claim_check.findings += findings


def _check_names(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check names, types, producers and reasons against the graph."""
    if plan.graph != graph.name:
        yield Finding("false-name", "the plan", f"names the graph {plan.graph!r}, but the graph is {graph.name!r}")
    if plan.alignment > MOST_ALIGNMENT:
        yield Finding("bad-alignment", "the plan", f"alignment {plan.alignment} is more than 2^32")
    if plan.stopped not in STOPPED:
        yield Finding(
            "false-name",
            "the plan",
            f"was stopped by {plan.stopped!r}, expected one of {', '.join(map(repr, STOPPED))}",
        )
    producers = {value.name: node.name for node in graph.walk() for value in node.defs}
    values = {value.name: value for value in graph.values()}
    for place in plan.placements:
        producer, value = producers.get(place.value, ""), values[place.value]
        if place.producer != producer:
            yield _claim_finding(
                place, "false-name", f"has the declared producer {place.producer!r}, but {producer!r} computes it"
            )
        if place.spec != str(value.spec):
            yield _claim_finding(place, "wrong-spec", f"is placed as {place.spec}, but is {value.spec}")
        if len(set(place.copies)) != len(place.copies):
            yield _claim_finding(place, "bad-copies", "lists a body version of the loops around it twice")
        if place.how == POINTER and not _has_no_place(place, value):
            yield _claim_finding(
                place, "bad-copies", "is renamed, so it cannot have a region, a live range or a buffer"
            )
    for outside in plan.outside:
        spec = values[outside.value].spec
        if isinstance(spec, Unplannable) and (outside.type, outside.reason) != (spec.type, spec.reason):
            what = (
                f"is listed outside the plan as {outside.type} ({outside.reason}), expected {spec.type} ({spec.reason})"
            )
            yield Finding("false-name", f"value %{outside.value}", what)
    if [(node.name, node.op) for node in plan.nodes] != [(node.name, node.op) for node in graph.walk()]:
        yield Finding("false-name", "the plan", "describes other nodes than the graph has")
    yield from _check_bound_flags(graph, plan)


def _check_bound_flags(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check that an unplanned input or output is marked as bound if the planned inputs and outputs are bound.

    The same applies to weights.
    """
    weights = {value.name for value in graph.weights}
    planned = [value for value in (*graph.weights, *graph.inputs, *graph.outputs) if value.plannable]
    bound = {storage.kind for storage in plan.storages}
    for outside in plan.outside:
        of_weights = outside.value in weights
        like = [value for value in planned if (value.name in weights) is of_weights]
        meant = not bound.isdisjoint({"weight"} if of_weights else {"input", "output"})
        caller = outside.value in {value.name for value in (*graph.weights, *graph.inputs, *graph.outputs)}
        if caller and like and outside.bound is not meant:
            what = f"is declared in memory of the {'caller' if outside.bound else 'arena'}, unlike others of its kind"
            yield Finding("outside-untold", f"value %{outside.value}", what)


def _has_no_place(place: Placement, value: Value) -> bool:
    """True if a renamed value has a size and no further placement data."""
    nothing = (place.region, place.live, place.buffer, place.shares, place.copies, place.strides)
    return nothing == (Region("", 0, value.nbytes), (), -1, "", (), ())


def _check_storages(plan: MemoryPlan) -> Iterator[Finding]:
    """Check that an arena ends with the last value, and that empty placements lie at offset 0."""
    ends = dict.fromkeys((storage.name for storage in plan.arenas), 0)
    for place in plan.placements:
        region, strided = place.region, bool(place.strides)
        if region.storage in ends and region.nbytes and not strided:
            ends[region.storage] = max(ends[region.storage], region.end)
        if place.how != POINTER and not region.nbytes and (region.offset, strided) != (0, False):
            yield _claim_finding(place, "out-of-storage", f"has no bytes, but lies at offset {region.offset}")
    for storage in plan.arenas:
        if storage.nbytes != ends[storage.name]:
            what = f"has {storage.nbytes} bytes, but its values end at {ends[storage.name]}"
            yield Finding("arena-size", f"storage {storage.name}", what)
    for storage in plan.storages:
        if storage.capacity != UNLIMITED and (storage.kind != ARENA or storage.capacity < storage.nbytes):
            what = f"has {storage.nbytes} bytes, but a capacity of {storage.capacity}"
            yield Finding("arena-size", f"storage {storage.name}", what)


def _check_sums(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check the byte sums over all values in arenas, and over the values without own bytes."""
    sizes = {value.name: value.nbytes for value in graph.values()}
    arenas = {storage.name for storage in plan.arenas}
    hows: dict[str, set[str]] = {}
    for place in plan.placements:
        if place.region.storage in arenas or place.how == POINTER:
            hows.setdefault(place.value, set()).add(place.how)
    parts = (
        ("total", plan.total_bytes, None),
        ("view", plan.view_bytes, {"view", "part", "slice", "row"}),
        ("inplace", plan.inplace_bytes, {"inplace", "carry"}),
    )
    for name, claimed, kinds in parts:
        actual = sum(sizes[value] for value, of in hows.items() if kinds is None or of <= kinds)
        if claimed != actual:
            yield Finding("false-sum", "the plan", f"declares {name}_bytes as {claimed}, but they are {actual}")


def _check_body_versions(plan: MemoryPlan, walk: StateSpace) -> Iterator[Finding]:
    """Check that every value has a placement in exactly the body versions writing the value; check rolled loops."""
    reached = {visit.point for visit in walk.visits}
    written: set[tuple[int, tuple[tuple[str, int], ...]]] = set()
    for point, moment in enumerate(walk.timeline.moments):
        for value in moment.writes if point in reached else ():
            entry = walk.places.find_placement(value, moment.context)
            if entry is not None:
                written.update([entry] if entry[1] in ((), moment.context) else [])
            elif value.plannable and value.name not in walk.places.pointers:
                copies = ", ".join(f"@{copy} of {loop}" for loop, copy in moment.context)
                what = f"is written in body version {copies}, where it has no placement"
                yield Finding("bad-copies", f"value {value}", what, "give it a placement in every body version")
    for i, place in enumerate(plan.placements):
        for context in place.copies or ((),):
            is_written = (i, context) in written and (context or not place.copies)
            if place.how != POINTER and not is_written:
                yield _claim_finding(place, "bad-copies", "has a placement in a body version that does not write it")
    runs = {(moment.node.name, moment.context[:-1]) for point, moment in enumerate(walk.timeline.moments)
            if point in reached and moment.kind == "round" and moment.node and moment.context}  # fmt: skip
    seen: set[object] = set()
    for record in plan.rolled:
        where = (record.loop, record.within)
        if where not in runs or where in seen or (record.jumps and record.first):
            what = "lists body versions within body versions that do not exist, or lists them twice"
            yield Finding("bad-copies", f"loop {record.loop}", what)
        seen.add(where)
    for point, moment in enumerate(walk.timeline.moments):
        if moment.kind == "round" and point not in reached:
            yield Finding("bad-copies", f"loop {moment.point.edge}", "has a body version that no iteration runs")


def _check_live_ranges(plan: MemoryPlan, must: Mapping[int, Ranges], may: Mapping[int, Ranges]) -> Iterator[Finding]:
    """Check that live ranges are sorted, cover the must-live points, and stay within the may-live points."""
    for i, place in enumerate(plan.placements):
        if place.how == POINTER:
            continue
        ends = [point for piece in place.live for point in piece]
        if any(one >= other for one, other in pairwise(ends)):
            yield _claim_finding(place, "false-live", f"is live in {place.live}, which is not sorted")
        elif not is_covered_by(must.get(i, ()), place.live):
            yield _claim_finding(
                place, "false-live", f"is declared live in {place.live}, but is needed in {must.get(i, ())}"
            )
        elif not is_covered_by(place.live, may.get(i, ())):
            what = f"is declared live in {place.live}, but can only be live in {may.get(i, ())}"
            yield _claim_finding(place, "false-live", what)


def _check_first_writes(plan: MemoryPlan, walk: StateSpace, must: Mapping[int, Ranges]) -> Iterator[Finding]:
    """Check that no live range contains points before any possible write."""
    for i, place in enumerate(plan.placements):
        known = must.get(i, ())
        if (
            place.how != POINTER
            and place.live != known
            and not is_covered_by(place.live, merge_ranges((*known, *reachable_from_writes(walk, i))))
        ):
            yield _claim_finding(
                place, "false-live", f"is declared live in {place.live}, partly before its first write"
            )


def _check_peak(plan: MemoryPlan, known: Mapping[int, CheckerBuffer]) -> Iterator[Finding]:
    """Check the first point with the most live bytes, and the values live there."""
    change = [0] * (len(plan.points) + 1)
    for strip in (strip for block in known.values() for strip in block.segments):
        for begin, end in strip.live:
            change[begin] += strip.high - strip.low
            change[end] -= strip.high - strip.low
    best = now = at = 0
    for point, step in enumerate(change):
        now += step
        if now > best:
            best, at = now, point
    alive = {
        place.value
        for place in plan.placements
        if place.buffer >= 0 and not place.strides and any(begin <= at < end for begin, end in place.live)
    }
    peak = plan.peak
    if (peak.point, peak.nbytes) != (at, best):
        what = f"is declared as {peak.nbytes} bytes at point {peak.point}, but is {best} at point {at}"
        yield Finding("false-peak", "the peak", f"{what}, {str(plan.points[at])!r}")
    elif set(peak.values) != alive or len(peak.values) != len(alive):
        yield Finding("false-peak", "the peak", "lists other values than those live there")


def _claim_finding(place: Placement, rule: str, what: str) -> Finding:
    """Return a finding about a placement."""
    return Finding(rule, f"value %{place.value}", what)

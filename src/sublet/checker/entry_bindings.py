"""Entry bindings: the placements declared for renamed parameters at the start of each body version of a loop.

An executor relies on the declared bindings. The replay proves that the bytes lie at the declared region in every run,
and the state-space exploration proves that the value is at the declared placement. OPEN declares no placement: the
run determines the binding.

Rule: false-heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sublet.base.errors import Finding
from sublet.checker.state import AbstractState
from sublet.checker.state_space import Name, PlacementIndex, StateSpace
from sublet.checker.timeline import CheckerTimeline
from sublet.ir.graph import Graph, Value, While
from sublet.plan import OPEN, POINTER, Context, MemoryPlan, Region, RolledLoop

EntryBindings = Mapping[tuple[str, Context], Sequence[Mapping[str, Region]]]
"""For each unrolled loop, and each body version, the region of each pointer with a binding independent of the run."""


def declared_bindings(graph: Graph, plan: MemoryPlan) -> tuple[EntryBindings, list[Finding]]:
    """Return the entry bindings declared by the plan, and findings for malformed declarations."""
    loops = {node.name: node for node in graph.walk() if isinstance(node, While)}
    pointers = frozenset(place.value for place in plan.placements if place.how == POINTER)
    declared: dict[tuple[str, Context], list[Mapping[str, Region]]] = {}
    findings: list[Finding] = []
    for record in plan.rolled:
        parameters = _renamed_parameters(loops[record.loop], pointers) if record.loop in loops else []
        wrong = _malformed_reason(record, parameters, plan)
        if wrong:
            fix = "declare a placement, or -1, for each renamed parameter of each body version"
            findings.append(Finding("false-heads", f"loop {record.loop}", wrong, fix, (record.loop,)))
            continue
        declared[record.loop, record.within] = [
            {
                value.name: plan.placements[number].region
                for value, number in zip(parameters, heads, strict=True)
                if number != OPEN and not plan.placements[number].strides
            }
            for heads in record.heads
        ]
    return declared, findings


def _renamed_parameters(loop: While, pointers: frozenset[str]) -> list[Value]:
    """Return the renamed parameters of a loop."""
    return [parameter for parameter in loop.parameters if parameter.name in pointers]


def _malformed_reason(record: RolledLoop, own: Sequence[Value], plan: MemoryPlan) -> str:
    """Return the reason why the declared entry bindings of a loop are malformed; "" for well-formed declarations."""
    if len(record.heads) != record.copies or any(len(heads) != len(own) for heads in record.heads):
        return f"must declare the bindings of {len(own)} renamed parameters in each of {record.copies} body versions"
    for copy, heads in enumerate(record.heads):
        for parameter, number in zip(own, heads, strict=True):
            place = plan.placements[number] if 0 <= number < len(plan.placements) else None
            if number != OPEN and (place is None or place.how == POINTER or place.region.nbytes != parameter.nbytes):
                return f"enters body version @{copy} with {parameter} bound to placement {number}, which cannot hold it"
    return ""


def mismatched_entries(
    node: While, declared: Sequence[Mapping[str, Region]], heads: Mapping[int, AbstractState]
) -> Iterator[Finding]:
    """Yield findings for body versions entered with a pointer at a region other than the declared region."""
    for copy, state in heads.items():
        for parameter in node.parameters:
            region = declared[copy].get(parameter.name) if 0 <= copy < len(declared) else None
            pointer = state.pointers.get(parameter.name)
            if region is not None and region.nbytes and (pointer is None or set(pointer.targets) != {region}):
                what = f"does not enter body version @{copy} with {parameter} at the declared placement"
                yield Finding("false-heads", f"loop {node.name}", what, names=(node.name, parameter.name))


def requested_bindings(
    timeline: CheckerTimeline, places: PlacementIndex, plan: MemoryPlan
) -> dict[int, frozenset[Name]]:
    """Return the declared pointers for each point where a body version starts."""
    return {
        point: frozenset(("pointer", name) for name, number in heads.items() if number != OPEN)
        for point, heads in _version_starts(timeline, places, plan)
    }


def _version_starts(
    timeline: CheckerTimeline, places: PlacementIndex, plan: MemoryPlan
) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Yield the points where body versions start, each with the declared placement numbers of pointers."""
    records = {(record.loop, record.within): record for record in plan.rolled}
    for point, moment in enumerate(timeline.moments):
        if moment.kind == "round" and isinstance(moment.node, While) and moment.context:
            record = records.get((moment.node.name, moment.context[:-1]))
            if record is not None:
                names = [value.name for value in _renamed_parameters(moment.node, places.pointers)]
                yield point, dict(zip(names, record.heads[moment.context[-1][1]], strict=True))


def check_entry_bindings(plan: MemoryPlan, walk: StateSpace) -> Iterator[Finding]:
    """Yield findings for pointers bound to an undeclared placement, in any state at the start of a body version."""
    begun = dict(_version_starts(walk.timeline, walk.places, plan))
    for visit in walk.visits:
        for name, number in begun.get(visit.point, {}).items():
            if number != OPEN and visit.state.get(("pointer", name)) != number:
                moment = walk.moment_of(visit)
                what = f"is declared as bound to placement {number} at {moment.point}, but may be bound to another"
                yield Finding("false-heads", f"value %{name}", what, names=(name,))

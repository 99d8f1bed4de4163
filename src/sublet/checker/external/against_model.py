"""Verification of a foreign plan against its model: the checker replays the model in the foreign offsets.

The offsets become a `MemoryPlan` with the node order of the model. A tensor without a place gets separate storage, safe
from overwrites; the verdict then covers only the placed tensors. Weights without a place are constants of the program,
and inputs and outputs without a place are memory of the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sublet.base.errors import Finding, PlanError
from sublet.base.tensor import DType, TensorSpec, Unplannable
from sublet.checker import check_bytes
from sublet.checker.buffers import JOINED, REASONED_HOWS
from sublet.checker.external.external_plan import (
    Evidence,
    ForeignPlan,
    ForeignVerdict,
    PlacedTensor,
    RegionVerdict,
    peak_bytes_in_use,
)
from sublet.checker.liveness import Ranges, must_live
from sublet.checker.moves import copies_at
from sublet.checker.sharing_reasons import PlacementSets, SharingReasons, sharing_reasons
from sublet.checker.state_space import PlacementIndex, StateSpace
from sublet.checker.timeline import build_timeline
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ops.verify import verify
from sublet.plan import ARENA, CopiedMove, MemoryPlan, NodeDescription, Peak, Placement, Region, Storage, UnplannedValue
from sublet.plan.file import fingerprint
from sublet.plan.records import bound_storage_name
from sublet.plan.schedule import Schedule, serial_schedule
from sublet.plan.statistics import find_peak

# Derived claims of a foreign plan: live ranges, buffers, byte sums and copies.
#
# A foreign plan declares offsets only. The functions here compute the rest by the checker's own analysis. The completed
# plan can be drawn, and a correct plan then passes the checker like a plan by Sublet.

MAX_POINTS = 1 << 22
"""Limit of program points. Beyond, `build_timeline` raises TooLongError."""


def derive_claims(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with points, live ranges, buffers, peak, byte sums and copies filled in.

    The result renames no loop-carried value and has a single version of each loop body.
    """
    points = build_timeline(graph, schedule, frozenset(), {}, MAX_POINTS)
    walk = StateSpace(points, PlacementIndex(plan))
    constants = {value.name for value in graph.constants}
    lasting = [i for i, place in enumerate(plan.placements) if place.value in constants]
    live = must_live(walk, lasting)
    placements = tuple(_derive_placements(plan, sharing_reasons(walk), live))
    plan = replace(plan, placements=placements, points=tuple(moment.point for moment in points.moments))
    return replace(
        plan,
        peak=find_peak(plan),
        moves=tuple(dict.fromkeys(_copies_by_control_flow(walk))),
        total_bytes=_sum_of_bytes(plan, None),
        view_bytes=_sum_of_bytes(plan, {"view", "part", "slice", "row"}),
        inplace_bytes=_sum_of_bytes(plan, {"inplace", "carry"}),
    )


def _derive_placements(plan: MemoryPlan, sharing: SharingReasons, live: Mapping[int, Ranges]) -> Iterator[Placement]:
    """Yield each placement with live range, buffer, and the reason to share bytes with another value.

    Placements tied by a relation in `sharing`, with a common storage and at least 1 byte each, form a buffer. A single
    value of each buffer has the reason "own": the representative.
    """
    arenas = {storage.name for storage in plan.arenas}
    kin = PlacementSets()
    reasons: dict[int, tuple[str, int]] = {}
    for (how, one, other), _ in sorted(sharing.items(), key=lambda entry: entry[0]):
        places = plan.placements[one], plan.placements[other]
        if one == other or places[0].region.storage != places[1].region.storage or not _have_bytes(*places):
            continue
        kin.merge_sets(one, other)
        if one not in reasons or REASONED_HOWS.index(how) < REASONED_HOWS.index(reasons[one][0]):
            reasons[one] = (how, other)
    members: dict[int, list[int]] = {}
    for i in range(len(plan.placements)):
        members.setdefault(kin.find_set(i), []).append(i)
    first = {group: _representative_of(positions, reasons) for group, positions in members.items()}
    numbers: dict[int, int] = {}
    for i, place in enumerate(plan.placements):
        group = kin.find_set(i)
        in_arena = place.region.storage in arenas and place.region.nbytes > 0
        number = numbers.setdefault(group, len(numbers)) if in_arena else -1
        how, other = ("own", -1) if i == first[group] else reasons.get(i, (JOINED, first[group]))
        shares = "" if other < 0 else plan.placements[other].value
        yield replace(place, live=live.get(i, ()), buffer=number, how=how, shares=shares)


def _have_bytes(*places: Placement) -> bool:
    """Return True if every placement has at least 1 byte."""
    return all(place.region.nbytes for place in places)


def _representative_of(members: list[int], reasons: Mapping[int, tuple[str, int]]) -> int:
    """Return a buffer's representative: the first member without a reason to share bytes, else the first member."""
    return next((i for i in members if i not in reasons), members[0])


def _sum_of_bytes(plan: MemoryPlan, kinds: set[str] | None) -> int:
    """Return the bytes of all placements in arenas, or only of placements with a reason in `kinds`."""
    return sum(place.region.nbytes for place in plan.in_arenas if kinds is None or place.how in kinds)


def _copies_by_control_flow(walk: StateSpace) -> Iterator[CopiedMove]:
    """Yield the copies made by control flow: a foreign plan renames no loop-carried value, so every carry is copied."""
    for visit in walk.visits:
        for destination, sources, nbytes in copies_at(walk, visit):
            yield CopiedMove(walk.moment_of(visit).point.edge, min(sources), destination.name, nbytes)


LEFT_OUT = "left out"
"""The storage kind of a tensor without a place, in the plan to draw."""


def judge_by_replay(model: Model, foreign: ForeignPlan) -> ForeignVerdict:
    """Return the verdict on a plan of a model: the checker replays every node in the order of the model.

    Raises PlanError if no tensor of the plan is in the model, GraphError for an illegal graph.
    """
    graph = model.graph
    verify(graph)
    values = {value.name: value for value in graph.values()}
    if foreign.tensors and not any(tensor.name in values for tensor in foreign.tensors):
        raise PlanError(
            f"the plan of {foreign.tool} belongs to another model: none of its {len(foreign.tensors)} tensors, such as "
            f"{foreign.tensors[0].name!r}, is one of {graph.name!r}"
        )
    schedule = serial_schedule(graph)
    plan = _to_memory_plan(graph, schedule, foreign, values)
    findings = (*foreign.findings, *_misaligned_tensors(foreign, values), *check_bytes(graph, schedule, plan))
    plan = derive_claims(graph, schedule, plan)
    plan = replace(plan, dims=tuple(model.dims.items()), max_trips=tuple(model.max_trips.items()), recipe=model.recipe)
    regions = tuple(_region_verdicts(plan, foreign))
    placed_tensors = {tensor.name for tensor in foreign.tensors}
    return ForeignVerdict(
        tool=foreign.tool,
        evidence=Evidence.REPLAY,
        findings=tuple(dict.fromkeys(findings)),
        judged=tuple(name for name, value in values.items() if name in placed_tensors and value.plannable),
        not_judged=dict(_not_judged(graph, foreign, values)),
        regions=regions,
        plan=_plan_to_draw(plan, regions),
    )


def _misaligned_tensors(foreign: ForeignPlan, values: Mapping[str, Value]) -> Iterator[Finding]:
    """Yield a finding for each tensor with misaligned elements, if the plan declares no alignment.

    The checker itself does not test the alignment of elements.
    """
    for tensor in foreign.tensors:
        spec = values[tensor.name].spec if tensor.name in values else None
        if not isinstance(spec, TensorSpec) or not spec.nbytes:
            continue
        width = _element_alignment(spec.dtype)
        if foreign.alignment is None and tensor.offset % width:
            what = f"lies at offset {tensor.offset}; its elements are {width} bytes wide"
            yield Finding("misaligned", f"value %{tensor.name}", what, f"place the tensor at a multiple of {width}")


def _element_alignment(dtype: DType) -> int:
    """Return the alignment of an element in bytes; a complex number is aligned like its parts."""
    return max(1, dtype.bits // (16 if dtype in (DType.C64, DType.C128) else 8))


def _not_judged(graph: Graph, foreign: ForeignPlan, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor without a verdict, and the reason."""
    # a plan without any place does not say that inputs and outputs are memory of the caller
    callers = {value.name for value in (*graph.weights, *(graph.inputs + graph.outputs if foreign.tensors else ()))}
    placed_names = {tensor.name for tensor in foreign.tensors}
    for name, value in values.items():
        if isinstance(value.spec, Unplannable):
            if name in placed_names or name not in callers:
                yield name, f"unknown size: {value.spec.reason}"
        elif value.nbytes and name not in placed_names and name not in callers:
            yield name, "the plan has no place for the tensor"
    for tensor in foreign.tensors:
        if tensor.name not in values:
            yield tensor.name, "the imported model has no tensor of this name"


def _to_memory_plan(graph: Graph, schedule: Schedule, foreign: ForeignPlan, values: Mapping[str, Value]) -> MemoryPlan:
    """Return the foreign offsets as a MemoryPlan without any further claims: no live ranges, buffers or bounds."""
    tensors = {tensor.name: tensor for tensor in foreign.tensors if tensor.name in values}
    kinds = _kinds_of_caller_memory(graph)
    sizes = {name: max(values[name].nbytes, tensor.nbytes or 0) for name, tensor in tensors.items()}
    storages = [Storage(name, ARENA, foreign.region_bytes(name, sizes)) for name in foreign.region_names]
    placements = []
    producers = {value.name: node.name for node in graph.walk() for value in node.defs}
    for name, value in values.items():
        if not value.plannable:
            continue
        tensor = tensors.get(name)
        if tensor is None:
            separate = _separate_storage(name, kinds.get(name, ""), value.nbytes)
            storages.append(separate)
        region = Region(separate.name, 0, value.nbytes) if tensor is None else _region_of_elements(tensor, value)
        placements.append(Placement(name, str(value.spec), region, (), -1, producer=producers.get(name, "")))
    arenas = [storage for storage in storages if storage.kind == ARENA]
    return MemoryPlan(
        graph=graph.name,
        fingerprint=fingerprint(graph, schedule),
        schedule=schedule,
        alignment=1 if foreign.alignment is None else foreign.alignment,
        strategy=foreign.tool,
        arena_bytes=sum(storage.nbytes for storage in arenas),
        lower_bound_bytes=0,
        bound="peak",
        total_bytes=0,
        view_bytes=0,
        inplace_bytes=0,
        storages=(*arenas, *(storage for storage in storages if storage.kind != ARENA)),
        placements=tuple(placements),
        outside=tuple(_values_outside(graph, kinds)),
        peak=Peak(0, 0, ()),
        points=(),
        updated=tuple(value.name for value in graph.updated_values),
        nodes=NodeDescription.from_graph(graph),
    )


def _kinds_of_caller_memory(graph: Graph) -> dict[str, str]:
    """Return the storage kind of each value in memory of the caller: weight, input or output, in this precedence."""
    kinds = {value.name: "output" for value in graph.outputs}
    kinds |= {value.name: "input" for value in graph.inputs}
    return kinds | {value.name: "weight" for value in graph.weights}


def _separate_storage(name: str, kind: str, nbytes: int) -> Storage:
    """Return storage for a single value: memory of the caller if `kind` is set, else a separate arena "?name"."""
    return Storage(bound_storage_name(name), kind, nbytes) if kind else Storage(f"?{name}", ARENA, nbytes)


def _region_of_elements(tensor: PlacedTensor, value: Value) -> Region:
    """Return the region of a value's elements; bytes reserved beyond the elements are ignored."""
    nbytes = value.nbytes if tensor.nbytes is None else min(tensor.nbytes, value.nbytes)
    return Region(tensor.region, tensor.offset, nbytes)


def _values_outside(graph: Graph, kinds: Mapping[str, str]) -> Iterator[UnplannedValue]:
    """Yield the values without known bytes, as entries outside of the plan."""
    for value in graph.values():
        if isinstance(value.spec, Unplannable):
            yield UnplannedValue.from_spec(value.name, value.spec, value.name in kinds)


def _region_verdicts(plan: MemoryPlan, foreign: ForeignPlan) -> Iterator[RegionVerdict]:
    """Yield the verdict on each memory of the tool, with the most bytes in use at any point as lower bound.

    Nested regions count in the region around them.
    """
    sizes = {storage.name: storage.nbytes for storage in plan.arenas}
    for name in foreign.region_names:
        if name in foreign.nested:
            continue
        begins, end = {}, 0
        for region in (name, *(nested for nested, around in foreign.nested.items() if around == name)):
            begins[region] = end
            end += max([sizes[region], *(p.region.end for p in plan.in_arenas if p.region.storage == region)])
        live_regions = (
            (p.region, begins[p.region.storage], p.live) for p in plan.in_arenas if p.region.storage in begins
        )
        peak_bytes = peak_bytes_in_use((begin + r.offset, begin + r.end, live) for r, begin, live in live_regions)
        yield RegionVerdict(name, sizes[name], peak_bytes)


def _plan_to_draw(plan: MemoryPlan, regions: Sequence[RegionVerdict]) -> MemoryPlan:
    """Return the plan to draw: storage of left-out tensors is marked and belongs to no buffer or byte sum."""
    storages = tuple(replace(s, kind=LEFT_OUT) if s.name.startswith("?") else s for s in plan.storages)
    names = {storage.name for storage in storages if storage.kind == LEFT_OUT}
    places = tuple(replace(p, buffer=-1) if p.region.storage in names else p for p in plan.placements)
    return replace(
        plan,
        storages=storages,
        placements=places,
        arena_bytes=sum(region.nbytes for region in regions),
        lower_bound_bytes=sum(region.lower_bound_bytes for region in regions),
    )

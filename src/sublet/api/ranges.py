"""Executables over ranges of dimensions: one arena for every request, and tiers for small requests."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any, cast

from sublet.analysis.options import Options, Progress, options_of
from sublet.api.binding import CompileRequest, ModelWithKernels, model_to_run, model_with_kernels
from sublet.api.sources import Optimize
from sublet.api.state_names import AUTO_STATE, StatePairs, pairs_by_name, resolve_state
from sublet.base.boxes import RANGE, Box, Range
from sublet.base.errors import PlanError, PlanViolation, RunError, SubletError
from sublet.base.extents import Extent, upper_bound
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import DEPENDS_ON_DATA, Unplannable
from sublet.checker import CheckResult, judge
from sublet.checker.box import check_box
from sublet.integrations.registry import installed_integrations, resolve
from sublet.ir.dataflow import conflict_in, iteration_of
from sublet.ir.graph import CaseOf, Graph, Value, While
from sublet.ir.model import REFUSED_POINTS, Model
from sublet.ops import lookup, measured_dimensions
from sublet.ops.op import shares_of
from sublet.passes.trip_counts import Trips
from sublet.plan import ARENA, MemoryPlan
from sublet.plan.file import fingerprint
from sublet.plan.ranges import RangedPlan, graph_at
from sublet.planning.ranges import plan_over_ranges, ranged_plan
from sublet.runtime.backends import AUTO
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.loop import stacked_outputs
from sublet.runtime.ranged import RangedExecutable
from sublet.runtime.ranged_inputs import require_state
from sublet.runtime.ranged_places import is_base_point
from sublet.runtime.tiers import TieredExecutable

MOST_TIERS = 64
"""Maximum number of tiers. Each tier is planned and proven at the start: beyond, the start takes minutes."""

Tiers = Mapping[str, int | Sequence[int]]
"""The upper end of the tiers, or several ends, by name of the dimension."""


@dataclass(frozen=True)
class PlannedTier:
    """The ranges and the plan of a tier."""

    ranges: tuple[Range, ...]
    ranged: RangedPlan

    @property
    def ends(self) -> dict[str, int]:
        """The upper ends by name of dimension."""
        return {each.name: each.high for each in self.ranges}

    def to_json(self) -> dict[str, Any]:
        """Return the upper ends, the arena and the lower bound as a JSON object; sizes in bytes."""
        plan = self.ranged.worst
        return {"up_to": self.ends, "arena_bytes": plan.arena_bytes, "lower_bound_bytes": plan.lower_bound_bytes}


def parse_tiers(tiers: Tiers, ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """Return the ranges of every tier below the largest, the tier with the fewest elements first.

    The upper ends of several dimensions are combined. The upper end of a range is always a tier. Raises RunError for a
    name without a range, and for ends that are not ascending extents of the range.
    """
    by_name = {each.name: each for each in ranges}
    unknown = sorted(tiers.keys() - by_name.keys())
    if unknown:
        known = known_names(by_name) if by_name else "none"
        raise RunError(f"tiers of {printable(unknown[0])}: no dimension with a range; the ranges are {known}")
    ends: dict[str, list[int]] = {}
    for name, one_or_more in tiers.items():
        whole, given = by_name[name], (one_or_more,) if isinstance(one_or_more, int) else one_or_more
        ends[name] = [whole.extent_of(whole.number_of(each, f"tiers of {name}")) for each in given]
        if ends[name] != sorted(set(ends[name])):
            raise RunError(f"tiers of {name}: {', '.join(map(str, given))} are not ascending")
        if not ends[name] or ends[name][-1] < whole.high:
            ends[name].append(whole.high)
    if prod(map(len, ends.values())) > MOST_TIERS:
        raise RunError(f"tiers: {prod(map(len, ends.values()))} combinations; the maximum is {MOST_TIERS}")
    combined = [dict(zip(ends, choice, strict=True)) for choice in product(*ends.values())]
    combined.sort(key=lambda choice: prod(choice.values()))
    return [tuple(replace(each, high=limits.get(each.name, each.high)) for each in ranges) for limits in combined[:-1]]


def narrowed_model(model: Model, ranges: Sequence[Range]) -> Model:
    """Return the model over narrower ranges of the same dimensions, with the same weights."""
    whole, part = (Box(tuple(each.dimension for each in found)) for found in (model.ranges, ranges))
    change = part.substitution_from(whole)
    dims = {name: cast(int, change(extent)) for name, extent in model.dims.items()}
    left = tuple(each for each in ranges if each.low < each.high)
    return replace(model, graph=graph_at(model.graph, change), dims=dims, ranges=left)


def plan_tiers(
    model: Model, tiers: Tiers | None, largest: RangedPlan, options: Options | None, progress: Progress | None = None
) -> list[PlannedTier]:
    """Return every tier with a smaller arena than the plan of the whole ranges.

    Each plan is proven for every point of its ranges. Raises the errors of `parse_tiers` and `plan_over_ranges`.
    """
    planned: list[PlannedTier] = []
    requested = [each for each in model.ranges if each.name in model.dims]
    measured = sorted(measured_dimensions(model.graph) & (tiers or {}).keys())
    if measured:
        raise RunError(f"tiers of {printable(measured[0])}: each run measures the extent, after its tier is chosen")
    iterations = model.ranges[len(requested) :]
    for parts in parse_tiers(tiers or {}, requested):
        ranges = (*parts, *iterations)
        narrowed = narrowed_model(model, ranges)
        ranged = plan_over_ranges(narrowed, options, progress)
        if ranged.worst.arena_bytes < largest.worst.arena_bytes:
            planned.append(PlannedTier(ranges, ranged))
    return planned


BASE_POINTS = 64
"""Points tried as the base point of the program."""


def has_ranges(dims: Mapping[str, Any] | None) -> bool:
    """True if a dimension has a range instead of a single extent."""
    return any(not isinstance(each, int) for each in (dims or {}).values())


def parse_dims(dims: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Range]]:
    """Return the extents of all dimensions, expressions for ranges, and the ranges by name.

    A dimension given by the name of another dimension has the extent of the other. Raises RunError for anything else.
    """
    ranges: dict[str, Range] = {}
    for name, given in dims.items():
        if not isinstance(name, str):
            raise RunError(f"--dim {name!r}: the name of a dimension is a text")
        match = RANGE.fullmatch(given) if isinstance(given, str) else None
        numbers = tuple(int(each) for each in match.groups() if each) if match else given
        try:
            if isinstance(numbers, Range):
                ranges[name] = replace(numbers, name=name)
            elif isinstance(numbers, tuple) and 2 <= len(numbers) <= 3 and all(type(each) is int for each in numbers):
                ranges[name] = Range(name, *numbers)
        except SubletError as error:
            raise RunError(f"--dim {error}") from None
    extents: dict[str, int] = {}
    for name in dims:
        target, seen = name, [name]
        while isinstance(dims[target], str) and target not in ranges and dims[target] in dims:
            target = dims[target]
            if target in seen:
                raise RunError(f"--dim: {' = '.join([*seen, target])} gives no extent")
            seen.append(target)
        extent = ranges[target].extent if target in ranges else dims[target]
        if not isinstance(extent, int | Extent):
            raise RunError(
                f"--dim {name}={dims[name]}: expected an extent, a range like 1..512 or 64..960:32, "
                "or the name of a dimension with an equal extent"
            )
        extents[name] = cast(int, extent)
    return extents, {name: each for name, each in ranges.items() if each.low < each.high}


TAKE_ONE_ARM = "Fix the input that decides the branch (--const NAME=NUMBER, const={NAME: NUMBER})"


def read_over_ranges(request: CompileRequest, in_place: Collection[str] | None = ()) -> Model:
    """Return the model of a request over the ranges of its dimensions; the recipe names the pairs of the state.

    The inputs of the state in `in_place`, or all for None, are updated by their outputs where a kernel can do so, see
    `with_updates_in_place`, or where a cache can grow in place, see `with_growth_in_place`. Raises the errors of
    `compile`; PlanError for a model with values of unknown size; RunError for a state of unknown names or different
    types.
    """
    extents, ranges = parse_dims(request.dims or {})
    model = model_to_run(replace(request, dims=extents, state=None), over_ranges=True)
    for each in installed_integrations():
        model = resolve(each.grow_in_loops)(model) if each.grow_in_loops else model
    if model.graph.updates:
        raise PlanError("ranges of dimensions: the model has a state; compile for single extents")
    unknown = _unknown_value_in(model.graph)
    if unknown is not None and isinstance(unknown.spec, Unplannable):
        is_result = any(unknown in node.defs for node in model.graph.walk() if isinstance(node, CaseOf))
        fix = f". {TAKE_ONE_ARM}, or pass narrower ranges" if is_result else _range_for(unknown)
        raise PlanError(f"ranges of dimensions: the size of %{unknown.name} is unknown: {unknown.spec.reason}{fix}")
    _require_known_growth(model.graph)
    state = resolve_state(request.state, model.inputs_by_name, model.outputs_by_name, may_grow=True)
    rows = stacked_outputs(model.graph) if model.max_trips else {}
    for name, result in state.items():
        if model.outputs_by_name.get(result) in rows:
            raise RunError(f"state {name}={result}: the number of rows of {result} depends on data")
    require_state(state, model.inputs_by_name, model.outputs_by_name)
    wanted = {name: result for name, result in state.items() if in_place is None or name in in_place}
    updated = with_updates_in_place(replace(model, ranges=(*ranges.values(), *_iteration_ranges(model.graph))), wanted)
    left = {name: result for name, result in wanted.items() if name not in dict(updated.recipe.state)}
    updated, _ = with_growth_in_place(updated, left)
    carried = tuple((name, result) for name, result in state.items() if name not in dict(updated.recipe.state))
    return replace(updated, recipe=replace(updated.recipe, carried=carried))


def _require_known_growth(graph: Graph) -> None:
    """Raise PlanError for a loop that grows by rows of a measured number: a call passes such numbers at its start."""
    literals: list[Any] = [part for value in graph.inputs for part in value.literal or ()]
    parts = [part for part in literals if isinstance(part, Extent)]
    late = {each.name for part in parts for each in part.dimensions} & measured_dimensions(graph)
    if late:
        raise PlanError(
            f"ranges of dimensions: a loop grows by rows whose number depends on data: {min(late)}. "
            "Rows of a fixed number, and a trip count that depends on data, can be planned"
        )


def _iteration_ranges(graph: Graph) -> list[Range]:
    """Return the range of the iteration of each loop with extents that grow."""
    found = map(iteration_of, graph.walk())
    return [Range(each.name, each.low, each.high) for each in found if each is not None]


def _unknown_value_in(graph: Graph) -> Value | None:
    """Return a value of unknown size that a run may compute; None without one.

    An arm of a branch with a shape conflict fails in every run that takes the arm, so its values need no size. A value
    with declared extents is measured outside the plan.
    """
    for value in (*graph.inputs, *(value for node in graph.nodes for value in node.defs)):
        if isinstance(value.spec, Unplannable) and not value.spec.has_bound:
            return value
    bodies = [sub for node in graph.nodes for sub in node.subgraphs if isinstance(node, While) or not conflict_in(sub)]
    return next((found for body in bodies if (found := _unknown_value_in(body)) is not None), None)


def _range_for(value: Value) -> str:
    """Return the advice to declare ranges for the extents of a value of known rank; "" for other values."""
    spec = value.spec
    if not isinstance(spec, Unplannable) or not spec.reason.startswith(DEPENDS_ON_DATA):
        return ""
    name, open_axes = printable(value.name), [i for i, extent in enumerate(spec.dims or ()) if extent is None]
    texts = [f"--dim {name}:{axis}=0..N" for axis in open_axes]
    return f". Declare the largest extent, N: {' '.join(texts)}" if texts else ""


def with_updates_in_place(model: Model, state: Mapping[str, str]) -> Model:
    """Return the model with updates of inputs by the outputs that a kernel can write over the input.

    `state` maps inputs to outputs. An output in place is no output of the graph: the kernel computes it in the memory
    of the input, as GroupQueryAttention appends to its caches. The output may be a view of the result of the kernel.
    The recipe names the pairs.
    """
    inputs, outputs = model.inputs_by_name, model.outputs_by_name
    overwritten: dict[Value | None, set[Value | None]] = {}
    for node in model.graph.nodes:
        if node.subgraphs:
            continue
        for share in shares_of(node, lookup(node.op).inplace):
            overwritten.setdefault(node.outputs[share.output], set()).add(node.inputs[share.input])
        for share in shares_of(node, lookup(node.op).views):
            if share.offset == 0:
                overwritten.setdefault(node.outputs[share.output], set()).update(
                    overwritten.get(node.inputs[share.input], ())
                )
    able = {name: new for name, new in state.items() if inputs[name] in overwritten.get(outputs[new], ())}
    pairs = {name: new for name, new in able.items() if inputs[name] not in model.graph.outputs}
    if not pairs or len(set(pairs.values())) < len(pairs):
        return model
    updates = tuple((inputs[name], outputs[result]) for name, result in pairs.items())
    kept = {name: value for name, value in outputs.items() if name not in pairs.values()}
    graph = replace(model.graph, outputs=tuple(kept.values()), updates=updates)
    recipe = replace(model.recipe, state=tuple(pairs.items()))
    return replace(model, graph=graph, outputs=tuple(kept), recipe=recipe)


def with_growth_in_place(model: Model, state: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """Return the model with caches that grow in place, and the reason for each other input of `state`, by name.

    The pass of an integration knows the operators that read a cache; without one, no cache grows in place.
    """
    reasons = dict.fromkeys(state, "no kernel writes the output over the input")
    for each in installed_integrations():
        if each.grow_in_place and state:
            model, reasons = resolve(each.grow_in_place)(model, state)
    return model, reasons


@dataclass(frozen=True)
class PlannedRanges:
    """A model at the upper bounds of all sizes, its plan over ranges, and the plans of smaller tiers."""

    model: Model
    ranged: RangedPlan
    smaller: Sequence[PlannedTier]

    @property
    def session_bytes(self) -> int:
        """The bytes that a session holds for its state outside the arena, at the largest extents."""
        graph, pairs = self.model.graph, self.model.recipe.state_pairs
        sizes = {value.name: value.nbytes for value in (*graph.inputs, *graph.outputs) if value.plannable}
        return sum(max(sizes.get(name, 0), sizes.get(result, 0)) for name, result in pairs.items())


def plan_ranges(
    request: CompileRequest, options: Options, progress: Progress | None = None, tiers: Tiers | None = None
) -> PlannedRanges:
    """Return the plan of a request over ranges, and the plans of smaller tiers.

    Raises the errors of `read_over_ranges`, `plan_over_ranges` and `plan_tiers`.
    """
    model, ranged = _read_and_plan(request, options, progress)
    smaller = plan_tiers(model, tiers, ranged, options, progress)
    at_bounds = replace(model, graph=graph_at(model.graph, upper_bound), dims=dict(ranged.worst.dims))
    return PlannedRanges(at_bounds, ranged, smaller)


def _read_and_plan(
    request: CompileRequest, options: Options | None, progress: Progress | None = None
) -> tuple[Model, RangedPlan]:
    """Return the model of a request over ranges, and its plan.

    A state in the arena is copied by sessions, so only bound inputs are updated in place; an update that the plan does
    not place over its input stays an output.
    """
    in_place: Collection[str] | None = None if options is not None and options.io == "bound" else ()
    while True:
        model = read_over_ranges(request, in_place)
        ranged = plan_over_ranges(model, options, progress)
        apart = _updates_apart(ranged)
        if not apart:
            return model, ranged
        in_place = {name for name, _ in model.recipe.state if model.inputs_by_name[name] not in apart}


def judge_over_ranges(model: str | Path | Any, plan: MemoryPlan) -> tuple[Model, CheckResult]:
    """Return the model over the ranges of a plan, and the result of the check of the plan for every point.

    Raises PlanError for a plan of another model, and the errors of `read_over_ranges`.
    """
    recipe = plan.recipe
    request = CompileRequest(
        model,
        dims=plan.dims_over_ranges,  # type: ignore[arg-type]
        max_trips=dict(plan.max_trips),
        const=dict(recipe.const),
        state=recipe.state_pairs,
        optimize=recipe.optimize,
    )
    read = read_over_ranges(request, dict(recipe.state))
    largest = graph_at(read.graph, upper_bound)
    if fingerprint(largest, plan.schedule) != plan.fingerprint or read.ranges != plan.ranges:
        raise PlanError(f"the plan of {plan.graph!r} was made for another graph. Plan the model again")
    result = judge(largest, plan.schedule, plan)
    if not result.findings:
        ranged = ranged_plan(plan, read.graph)
        result = replace(result, findings=check_box(ranged.box, ranged.within, ranged.at))
    return read, result


def compile_ranges(
    model: str | Path | Model | Any,
    dims: Mapping[str, Any] | None = None,
    *,
    const: Mapping[str, Any] | None = None,
    state: StatePairs | None = None,
    max_trips: Trips = None,
    tiers: Tiers | None = None,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    optimize: Optimize = AUTO,
    options: Options | None = None,
    plan: MemoryPlan | None = None,
    arena: Any = None,
    weights: Mapping[str, Array] | None = None,
) -> TieredExecutable:
    """Return an executable for every shape within ranges: planned once, proven for every shape, in one arena.

    model      a path or an ONNX ModelProto
    dims       the extents of all open dimensions by name: a range as (low, high), as (low, high, step) or as text like
               "1..512" and "64..960:32"; a number; or the name of another dimension with an equal extent. A range of
               "chosen:0" bounds an extent that depends on data, along axis 0 of the tensor chosen, and a range of
               "count" the element of an integer tensor. With a plan, the dimensions of the plan
    state      inputs that take the content of an output after each call of a session, as `{"past": "present"}`; the two
               need not have equal extents, see `RangedExecutable.session`. "auto" finds the pairs by name, such as past
               and present. With a plan, the state of the plan besides
    max_trips  the maximum trip counts of loops that return rows, where these depend on data, see `read_model`. A call
               returns the rows of its iterations. With a plan, the maxima of the plan
    tiers      upper ends within a range, as `{"seq": (64, 128)}`: a plan for each end besides the plan of the whole
               range. A call runs in the smallest tier that holds its shapes; all tiers share arena, weights and kernels
    const, backend, optimize, arena, weights   see `compile`
    options    the planning options, with one stream and one arena. With io="arena", the default, inputs and outputs are
               copied in and out of the arena; with io="bound", kernels read and write memory of the caller
    plan       an existing plan of the model over ranges, checked again

    The arena has room for the upper bound of every value, and holds at every point. A warning names ranges with points
    that a node refuses. Raises RunError for a wrong range; PlanError for a model that cannot be planned over ranges;
    PlanViolation for a plan not proven for every point; and the errors of `compile`.
    """
    request = CompileRequest(
        model, dims=dims, const=const, state=state, max_trips=max_trips, backend=backend, optimize=optimize,
        options=options, plan=plan, arena=arena, weights=weights,
    )  # fmt: skip
    if plan is None:
        read, ranged = _read_and_plan(request, options)
    else:
        read, result = judge_over_ranges(model, plan)
        if result.findings:
            raise PlanViolation(result.findings)
        ranged = ranged_plan(plan, read.graph)
        options = options or options_of(plan)
        if state == AUTO_STATE:
            state = pairs_by_name(read.inputs_by_name, read.outputs_by_name, may_grow=True)
    for finding in read.warnings:
        if finding.rule == REFUSED_POINTS:
            warnings.warn(str(finding), stacklevel=2)
    in_place, whole_state = dict(read.recipe.state), _with_planned_state(state, read.recipe.state_pairs)
    smaller = plan_tiers(read, tiers, ranged, options)
    ready, plan_there = _with_kernels(read, ranged, backend, weights)
    largest = TieredExecutable(ranged, ready.to_executable(plan_there, arena), whole_state, in_place)
    largest.why_not_in_place = _reasons_apart(read, whole_state, ranged)
    contents = {value.name: content for value, content in ready.contents.items()}
    for tier in smaller:
        if in_place and _updates_apart(tier.ranged):
            continue
        model = narrowed_model(read, tier.ranges)
        ready_tier, plan_there = _with_kernels(model, tier.ranged, ready.backends, contents)
        base = ready_tier.to_executable(plan_there, largest.memory.raw(ARENA))
        largest.add_smaller(tier.ranges, RangedExecutable(tier.ranged, base, {}, in_place))
    return largest


def _reasons_apart(model: Model, state: Mapping[str, str], ranged: RangedPlan) -> dict[str, str]:
    """Return the reason for each input of the state that is not updated in place, by name."""
    apart = {name: result for name, result in state.items() if name not in dict(model.recipe.state)}
    if options_of(ranged.worst).io == "bound":
        reasons = with_growth_in_place(model, apart)[1]
        return {name: reasons.get(name, "the plan needs the old content after the update") for name in apart}
    return dict.fromkeys(apart, "inputs and outputs lie in the arena: pass Options(io='bound')")


def _with_planned_state(state: StatePairs | None, planned: Mapping[str, str]) -> dict[str, str]:
    """Return the state with the pairs of a plan. Raises RunError for a contradiction."""
    declared = dict(state) if isinstance(state, Mapping) else {}
    for name in planned.keys() & declared.keys():
        if declared[name] != planned[name]:
            raise RunError(f"state {name}={declared[name]}: the plan updates {name} by {planned[name]}; plan again")
    return {**planned, **declared}


def _with_kernels(
    model: Model,
    ranged: RangedPlan,
    backend: str | Backend | Sequence[str | Backend],
    weights: Mapping[str, Any] | None,
) -> tuple[ModelWithKernels, MemoryPlan]:
    """Return a model at the base point of a plan with a kernel for every node, and the plan there."""
    graph, plan_there = _at_base_point(ranged)
    ready = model_with_kernels(CompileRequest(replace(model, graph=graph), backend=backend, weights=weights))
    if ready.model.recipe.scratch:
        raise RunError("ranges of dimensions: a kernel needs scratch memory; pass backend='onnxruntime'")
    return ready, plan_there


def _updates_apart(ranged: RangedPlan) -> list[Value]:
    """Return the inputs with an update that the plan does not place over the input."""
    regions = {place.value: place.region for place in ranged.over.placements}
    return [old for old, new in ranged.graph.updates if regions[old.name] != regions[new.name]]


def _at_base_point(ranged: RangedPlan) -> tuple[Graph, MemoryPlan]:
    """Return the graph and the plan at a point where the ops have exactly the facts of the whole box.

    Raises PlanError if no such point is found.
    """
    for point in _candidate_points(ranged.box):
        graph, plan = ranged.at(point)
        if is_base_point(ranged, graph, point):
            return graph, plan
    raise PlanError("ranges of dimensions: the ops have further facts at every point tried; use narrower ranges")


def _candidate_points(box: Box) -> Iterator[dict[str, int]]:
    """Yield points to try: large random numbers first, then any."""
    draw = Random(0)
    for i in range(BASE_POINTS):
        share = 2 if i < BASE_POINTS // 2 else 1
        yield {each.name: draw.randint(each.high - (each.high - each.low) // share, each.high) for each in box.ranges}

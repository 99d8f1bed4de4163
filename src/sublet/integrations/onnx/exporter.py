"""Export of a plan into its ONNX file: offsets in the metadata, nodes in the order of the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import PlanError
from sublet.base.tensor import DType
from sublet.checker.external.against_model import judge_by_replay
from sublet.integrations.onnx.plan_reader import (
    ALIGNMENT,
    ARENA_BYTES,
    FINGERPRINT,
    OFFSET,
    OPTIONS,
    REGION,
    SIZE,
    graphs_of,
    names_of_several_graphs,
    plan_from_onnx,
    typed_values_of,
)
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.model_file import names_read_by, read_model, require_utf8
from sublet.integrations.onnx.reader.reading import with_constants
from sublet.integrations.onnx.reader.types import ELEMENT_NUMBERS
from sublet.ir.recipe import AS_IS, OPEN_DEFAULT
from sublet.passes.trip_counts import bound_trip_counts
from sublet.plan import POINTER, MemoryPlan, Placement, bound_storage_name
from sublet.plan.export import ExportContext
from sublet.plan.schedule import Schedule
from sublet.plan.statistics import require_counted

BEFORE_ALL = -1


def sort_into_plan_order(graph: Any, plan: MemoryPlan) -> None:
    """Sort the nodes of a graph, and of all nested graphs, into the order of the plan's schedule.

    A node missing from the plan (a constant, or an alias of another value) keeps its place after its operands.
    """
    positions: dict[str, int] = {}
    _number_steps(plan.schedule, positions)
    makers = {place.value: positions[place.producer] for place in plan.placements if place.producer in positions}
    for subgraph, _ in graphs_of(graph):
        step_of: dict[str, int] = {}
        order: list[tuple[int, int]] = []
        for i, node in enumerate(subgraph.node):
            steps = [makers[name] for name in node.output if name in makers]
            at = max(steps or (step_of[name] for name in names_read_by(node) if name in step_of), default=BEFORE_ALL)
            step_of.update((name, at) for name in node.output if name)
            order.append((at, i))
        if order != sorted(order):
            nodes = [type(node)() for node in subgraph.node]
            for copy, node in zip(nodes, subgraph.node, strict=True):
                copy.CopyFrom(node)
            del subgraph.node[:]
            subgraph.node.extend(nodes[i] for _, i in sorted(order))


def _number_steps(schedule: Schedule, positions: dict[str, int]) -> None:
    """Number the steps of a schedule in execution order; the steps of nested bodies follow their node."""
    for step in schedule.steps:
        positions[step.node] = len(positions)
        for body in schedule.bodies.get(step.node, ()):
            _number_steps(body, positions)


# Writer of a plan into the metadata of its ONNX model, under the keys of onnxsim; see `onnx_metadata`.
#
# A reader of the metadata runs the nodes in file order. The writer therefore sorts the nodes into the plan's order.
# Apart from the order, the file gains only metadata and a `value_info` entry for each tensor without one. The written
# plan is read back and judged. A tensor without a single place gets no offset and is counted: a value with alternating
# places, a value that moves between iterations, a renamed carry, or a name defined by several graphs of the file.

if TYPE_CHECKING:
    import onnx

PREFIX = "onnxsim."
MAX_LISTED_NAMES = 20
"""Limit of unplanned tensors listed by name in the metadata; all are counted."""


def embed_plan(plan: MemoryPlan, context: ExportContext) -> Mapping[str, str | bytes]:
    """Return the model's file with the plan in its metadata, as {file name: bytes}.

    An input fixed by the plan is an initialiser of the returned model.

    Raises PlanError if the plan is not for the unchanged graph of an ONNX file, or if no node order of the file matches
    the plan's order.
    """
    if context.model is None or context.model.suffix.lower() != ".onnx":
        raise PlanError("an ONNX export writes the plan into the model file: pass the .onnx file of the plan")
    recipe = plan.recipe
    const = dict(recipe.const)
    is_changed = recipe.optimize != AS_IS or recipe.changed or recipe.split or recipe.again or recipe.state
    if is_changed or OPEN_DEFAULT in const.values():
        raise PlanError(
            f"the plan is for the graph {recipe.description}, not for the unchanged graph of {context.model}. Plan the "
            "model without these changes, or export to c, csv or markdown"
        )
    require_counted(plan, "the metadata")
    if not _single_placements(plan):
        raise PlanError(f"no tensor of {context.model} keeps one place in an arena: there is no offset to write")
    model = read_model(context.model)
    require_utf8(model, context.model.name)
    if const:
        model, _ = with_constants(model, const, dict(plan.dims), context.model.name, context.model.parent)
    sort_into_plan_order(model.graph, plan)
    _write_plan_metadata(model, plan)
    _judge_written_plan(model, plan, context.model)
    stem = context.base_name(plan) if context.name else context.model.stem
    return {f"{stem}_planned.onnx": model.SerializeToString(deterministic=True)}


def _judge_written_plan(model: onnx.ModelProto, plan: MemoryPlan, path: Path) -> None:
    """Read the written plan back and judge it. Raises PlanError if the plan is wrong in the node order of the file."""
    read = from_proto(
        model, dict(plan.dims), where=path.name, folder=path.parent, assume=dict(plan.recipe.assumed) or None
    )
    verdict = judge_by_replay(bound_trip_counts(read, dict(plan.max_trips)), plan_from_onnx(model, path.name))
    if verdict.findings:
        raise PlanError(
            f"the plan of {path} cannot be written as one offset a tensor in the node order of the file "
            f"({verdict.findings[0]}): plan it without --order and --streams, or share less"
        )


def _write_plan_metadata(model: onnx.ModelProto, plan: MemoryPlan) -> None:
    """Write offsets, sizes and totals into the metadata of `model`, in place of any earlier plan."""
    places = _single_placements(plan)
    ambiguous = names_of_several_graphs(graph for graph, _ in graphs_of(model.graph))
    unplaced = {place.value for place in plan.placements if place.region.nbytes} - set(places) - _bound_values(plan)
    for graph, path in graphs_of(model.graph):
        _remove_plan_metadata(graph)
        defined = _defined_names(graph)
        typed_names = {value.name for value in typed_values_of(graph)}
        for name in sorted((defined & places.keys()) - typed_names):
            value = graph.value_info.add()
            value.name = name
            _set_tensor_type(value, places[name].spec)
        for value in typed_values_of(graph):
            place = places.get(value.name)
            if place is None or value.name not in defined:
                continue
            if path and value.name in ambiguous:
                unplaced.add(value.name)
                continue
            _add_metadata(value, OFFSET, place.region.offset)
            _add_metadata(value, SIZE, place.region.nbytes)
            if len(plan.arenas) > 1:
                _add_metadata(value, REGION, place.region.storage)
    _remove_plan_metadata(model)
    _add_metadata(model, ARENA_BYTES, plan.arena_bytes)
    _add_metadata(model, "memory_plan_naive_bytes", plan.total_bytes)
    _add_metadata(model, "memory_plan_unplanned_count", len(unplaced))
    if unplaced:
        _add_metadata(model, "memory_plan_unplanned", ",".join(sorted(unplaced)[:MAX_LISTED_NAMES]))
    _add_metadata(model, ALIGNMENT, plan.alignment)
    _add_metadata(model, FINGERPRINT, plan.fingerprint)
    options = {"dims": dict(plan.dims), "max_trips": dict(plan.max_trips), "assume": dict(plan.recipe.assumed)}
    if given := {name: entries for name, entries in options.items() if entries}:
        _add_metadata(model, OPTIONS, json.dumps(given))


def _single_placements(plan: MemoryPlan) -> dict[str, Placement]:
    """Return the placements of values with a single contiguous place in an arena for the whole run."""
    places: dict[str, list[Placement]] = {}
    for place in plan.placements:
        places.setdefault(place.value, []).append(place)
    arenas = {storage.name for storage in plan.arenas}
    return {
        name: first
        for name, (first, *others) in places.items()
        if not others and first.region.storage in arenas and not first.strides and first.how != POINTER
        and first.region.nbytes and first.region.rows == 1
    }  # fmt: skip


def _bound_values(plan: MemoryPlan) -> set[str]:
    """Return the names of values with storage of their own outside of the arenas.

    Views of these values are not among them: a reader of the offsets cannot know that a view takes no bytes.
    """
    return {p.value for p in plan.placements if p.region.storage == bound_storage_name(p.value)}


def _defined_names(graph: Any) -> set[str]:
    """Return the names of node outputs and graph inputs."""
    return {name for node in graph.node for name in node.output} | {value.name for value in graph.input}


def _set_tensor_type(value: Any, spec: str) -> None:
    """Set the element type and the extents of an ONNX value from the plan's `spec`, such as "f32[2,3]"."""
    dtype, _, shape = spec.rstrip("]").partition("[")
    value.type.tensor_type.elem_type = ELEMENT_NUMBERS[DType.parse(dtype)]
    value.type.tensor_type.shape.SetInParent()
    for extent in filter(None, shape.split(",")):
        value.type.tensor_type.shape.dim.add().dim_value = int(extent)


def _remove_plan_metadata(holder: Any) -> None:
    """Remove the metadata entries of an earlier plan from `holder`, and from its values if `holder` is a graph."""
    for element in (holder, *(typed_values_of(holder) if hasattr(holder, "node") else ())):
        kept = [entry for entry in element.metadata_props if not _is_plan_key(entry.key)]
        if len(kept) < len(element.metadata_props):
            entries = [(entry.key, entry.value) for entry in kept]
            del element.metadata_props[:]
            for key, text in entries:
                element.metadata_props.add(key=key, value=text)


def _is_plan_key(key: str) -> bool:
    """Return True if `key` is a metadata key of a plan."""
    name = key.removeprefix(PREFIX)
    return key.startswith(PREFIX) and (name in (OFFSET, SIZE, REGION) or name.startswith("memory_plan_"))


def _add_metadata(holder: Any, key: str, value: object) -> None:
    """Add a metadata entry under the prefix of onnxsim."""
    holder.metadata_props.add(key=PREFIX + key, value=str(value))

"""Reading the model for `sublet.compile` and the commands, with changes as requested or as recorded in a plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from sublet.api.model_files import constant_texts, read_with_options, reading_options, with_state
from sublet.api.state_names import StatePairs
from sublet.base.errors import PlanError, RunError
from sublet.base.optional_imports import is_installed
from sublet.integrations.registry import installed_integrations, integration_of_object, resolve
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, GIVEN, PATCHES_PREFIX, Recipe, with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.passes.recompute.rematerialize import Rematerializations, with_rematerialization
from sublet.passes.sinking import with_late_invariants
from sublet.passes.splitting.split_nodes import Splits, with_splits
from sublet.passes.trip_counts import Trips, bound_trip_counts
from sublet.plan import MemoryPlan
from sublet.plan.file import fingerprint
from sublet.plan.schedule import is_serial, serial_schedule
from sublet.runtime.backends import AUTO

Optimize = Literal["auto", "onnxruntime", "onnxruntime-extended", "onnxruntime-basic", "none"]
"""The rewriting of an ONNX model before planning: a level of ONNX Runtime's optimiser, or none."""

LOG = logging.getLogger(__name__)

SIMPLIFIED = "simplify"


def simplify_model(model: Model) -> Model:
    """Return the simplified model: dead code removed, commands fused, nodes in their original order."""
    recipe = replace(model.recipe, changed=SIMPLIFIED)
    graph = import_module("sublet.passes.pass_pipeline").simplify(model.graph, order=False)
    return replace(model, graph=graph, recipe=recipe)


PASSES: Mapping[str, Callable[[Model], Model]] = {
    "": lambda model: model,
    SIMPLIFIED: simplify_model,
    "less_memory": lambda model: import_module("sublet.training.step").less_memory(model),
}
"""The passes a recipe may name. "less_memory" needs the planner, imported only on use."""


def parse_changed(changed: str) -> tuple[str, str]:
    """Split the `changed` entry of a recipe into the name of the pass and the patches."""
    first, _, patches = changed.partition(PATCHES_PREFIX)
    return first.removesuffix(", "), patches


TEXT_OPSETS = {"": 21, "com.microsoft": 1}
"""The versions of operator sets for "onnx.X" in a graph without an ONNX file."""


def resolve_optimize(optimize: str, first: str, plan: MemoryPlan | None = None) -> str:
    """Return the level of the optimiser requested by `optimize`; `first` is the name of the preferred backend.

    With a plan, return the level of the plan. The result is never "auto". Raises RunError for an unknown level,
    PlanError for a plan made for another level.
    """
    if optimize not in get_args(Optimize):
        raise RunError(f"optimize={optimize!r} must be one of {', '.join(get_args(Optimize))}")
    if plan is not None and optimize not in (AUTO, plan.recipe.optimize):
        raise PlanError(
            f"optimize={optimize!r} contradicts the plan, which is for the graph {plan.recipe.description}. "
            "Drop optimize, or plan again"
        )
    if plan is not None:
        return plan.recipe.optimize
    if optimize == AUTO:
        return first if first in _optimizing_backends() and is_installed(first) else AS_IS
    return optimize


def _optimizing_backends() -> Mapping[str, str]:
    """Return the function for the versions of each optimiser, by the package with the optimiser.

    The package's name is also its strongest level and its backend.
    """
    return {
        each.optimizer_package: each.optimizer_versions for each in installed_integrations() if each.optimizer_package
    }


def resolve_changed(model: Any, simplify: bool | None, plan: MemoryPlan | None = None) -> str:
    """Return the changes to make to the nodes, in the words of a recipe.

    A graph written in Python is simplified by default. With a plan, return the changes recorded in the plan. Raises
    PlanError if `simplify` contradicts the plan.
    """
    if plan is None:
        return SIMPLIFIED if (isinstance(model, WrittenGraph) if simplify is None else simplify) else ""
    planned = parse_changed(plan.recipe.changed)[0]
    if simplify is not None and simplify != (planned == SIMPLIFIED):
        raise PlanError(
            f"simplify={simplify} contradicts the plan, which is for the graph {plan.recipe.description}. "
            "Drop simplify, or plan again"
        )
    return plan.recipe.changed


def read_source(
    model: Any,
    dims: Mapping[str, int] | None = None,
    *,
    const: Mapping[str, Any] | None = None,
    state: StatePairs | None = None,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    changed: str = "",
    assume: Mapping[str, str] | None = None,
    split: Splits = (),
    again: Rematerializations = (),
    over_ranges: bool = False,
) -> Model:
    """Return the model of a path, an ONNX ModelProto, a graph or a `Model`, changed as requested.

    dims       extents of symbolic dimensions by name
    const      constants for inputs, see `read_model`
    state      inputs updated by an output, see `read_model`
    max_trips  the maximum trip counts of loops
    optimize   the level of ONNX Runtime's optimiser
    changed    the passes to apply; a graph or `Model` is only simplified, as the caller has made all other changes
    assume     shapes of ONNX values without inferred shape
    split      the nodes to compute in pieces, unless the model does already
    again      the nodes to rematerialize, unless the model does already
    over_ranges  whether the model is for `compile_ranges`, which plans values that grow in a loop

    Raises ModelError for an unreadable model, RunError for an argument that is not a model, PlanError for unknown
    changes.
    """
    read = _read_as_model(model, dims, optimize, assume or {}, constant_texts(const), max_trips, over_ranges)
    source = bound_trip_counts(read, max_trips)
    source = with_state(source, state or {})
    first, patches = parse_changed(changed)
    if first not in PASSES:
        raise PlanError(f"the plan is for a graph changed by {changed[:80]!r}, unknown to this version of Sublet")
    made_by_caller = isinstance(model, Model | WrittenGraph | Graph)
    if not made_by_caller or (first == SIMPLIFIED and source.recipe.changed == ""):
        source = PASSES[first](source)
    if patches and source.recipe.changed == first:
        source = import_module("sublet.passes.patching").with_patches(source, patches)
    if split and source.recipe.split != tuple(split):
        source = with_splits(source, split)
    if again and source.recipe.again != tuple(again):
        recipe = replace(source.recipe, again=tuple(again))
        source = replace(source, graph=with_rematerialization(source.graph, again), recipe=recipe)
    LOG.info("read the model: %d nodes, %d weights", len(source.graph.nodes), len(source.graph.weights))
    return source if source.opsets else replace(source, opsets=TEXT_OPSETS)


OVER_RANGES = "a plan over ranges of dimensions is read by `sublet check`, `show` and `sublet.compile_ranges(plan=)`"


def model_of_plan(path: str | Path, plan: MemoryPlan) -> Model:
    """Return the model in a file with the graph of a plan, reproduced by the plan's recipe.

    Raises PlanError if the reproduced graph, its dimensions, trip counts, declared types or order differ from the plan.
    """
    if plan.ranges:
        raise PlanError(f"{OVER_RANGES}; single extents need a plan of their own")
    recipe = plan.recipe
    model = read_source(
        path,
        dict(plan.dims),
        const=dict(recipe.const),
        state=dict(recipe.state),
        max_trips=dict(plan.max_trips),
        optimize=recipe.optimize,
        changed=recipe.changed,
        assume=dict(recipe.assumed),
        split=recipe.split,
        again=recipe.again,
    )
    model = replace(model, graph=with_scratch(model.graph, dict(recipe.scratch)))
    if fingerprint(model.graph, plan.schedule) != plan.fingerprint:
        raise PlanError(f"this is not a plan of {path}: {why_graph_differs(model.recipe, recipe)}Plan the model again.")
    if model.recipe.optimize != recipe.optimize or (recipe.optimize == AS_IS and recipe.by):
        raise PlanError(f"the plan claims the graph {recipe.description}, but was made for {model.recipe.description}.")
    if model.recipe.declared != recipe.declared:
        raise PlanError(f"the plan assumes other types than {path} declares. Plan the model again.")
    if (dict(model.dims), dict(model.max_trips)) != (dict(plan.dims), dict(plan.max_trips)):
        raise PlanError(f"the plan was made for other dimensions or trip counts than {path} has. Plan the model again.")
    own_schedule = serial_schedule(with_late_invariants(model.graph))
    if recipe.order == GIVEN and is_serial(plan.schedule) and plan.schedule != own_schedule:
        raise PlanError(f"the plan of {path} claims the model's own order, but has another order")
    return model


def why_graph_differs(reproduced: Recipe, planned: Recipe) -> str:
    """Return the likely reason for a graph different from the planned one, as a sentence with a trailing space."""
    if planned.optimize == AS_IS:
        return "the graph or its order differs. "
    if reproduced.optimize == AS_IS:
        return "ONNX Runtime's optimiser rewrote the model for the plan, but refuses the model here. "
    if reproduced.by != planned.by:
        here = ", ".join(resolve(function)() for function in _optimizing_backends().values())
        return f"the plan is for a graph rewritten by {planned.by}; here {here} makes another graph. "
    return f"the graph {planned.description} differs. "


def first_backend_name(backends: Sequence[Any]) -> str:
    """Return the name of the preferred backend."""
    return next((entry if isinstance(entry, str) else str(entry.name) for entry in backends), "")


def _read_as_model(
    model: Any,
    dims: Mapping[str, int] | None,
    optimize: str,
    assume: Mapping[str, str],
    const: Mapping[str, str],
    max_trips: Trips,
    over_ranges: bool,
) -> Model:
    """Read a path, ModelProto or graph as a `Model`; return a `Model` unchanged. Raises RunError otherwise."""
    in_memory = isinstance(model, Model | WrittenGraph | Graph)
    if const and in_memory and not (isinstance(model, Model) and dict(model.recipe.const) == const):
        raise RunError("const= needs an ONNX path or ModelProto: pass `const` to `read_model`")
    read_with_these = isinstance(model, Model) and dict(model.recipe.assumed) == assume
    if assume and not read_with_these and (optimize != AS_IS or in_memory):
        raise RunError(
            "assume= needs an ONNX path or ModelProto, and optimize='none': an optimiser may remove the values"
        )
    if isinstance(model, Model):
        return model
    if isinstance(model, WrittenGraph):
        return model.model()
    if isinstance(model, Graph):
        return Model(model)
    if isinstance(model, str | Path):
        return read_with_options(model, dims, optimize, assume, const, max_trips, over_ranges)
    integration = integration_of_object(model)
    if integration is not None:
        options = reading_options(integration, const, max_trips, over_ranges)
        read: Model = resolve(integration.read_object)(model, dims, optimize, assume, **options)
        return read
    raise RunError(f"{type(model).__name__} is not a model: pass a path, an ONNX ModelProto, a Model or a Graph")

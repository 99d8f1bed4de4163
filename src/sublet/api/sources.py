"""What `sublet.compile` and the commands are given, as a model: read, rewritten as asked, or as a plan says it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from sublet.base.errors import PlanError, RunError
from sublet.base.extras import installed
from sublet.frontends.model import bounded, read_model
from sublet.frontends.onnx.model import from_proto
from sublet.frontends.onnx.optimized import ALL, depends_on, optimized
from sublet.frontends.trips import Trips
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, GIVEN, PATCHES, Recipe
from sublet.ir.scratch import with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.passes.on_demand import on_demand
from sublet.passes.recompute.clones import Again, recomputed
from sublet.passes.splitting.pieces import Splits, with_splits
from sublet.plan import MemoryPlan
from sublet.plan.file import fingerprint
from sublet.plan.schedule import is_serial, serial
from sublet.runtime.backends.by_name import AUTO

Optimize = Literal["auto", "onnxruntime", "onnxruntime-extended", "onnxruntime-basic", "none"]
"""Who rewrites an ONNX model before it is planned: a level of ONNX Runtime's optimiser, or nobody."""

SIMPLIFIED = "simplify"


def simplified(model: Model) -> Model:
    """The model with nothing needless in it, and commands fused; the order of its nodes is its own."""
    recipe = replace(model.recipe, changed=SIMPLIFIED)
    graph = import_module("sublet.passes.pipeline").simplify(model.graph, order=False)
    return replace(model, graph=graph, recipe=recipe)


PASSES: Mapping[str, Callable[[Model], Model]] = {
    "": lambda model: model,
    SIMPLIFIED: simplified,
    "less_memory": lambda model: import_module("sublet.nn.training").less_memory(model),
}
"""What a recipe may say was done to the nodes. An order of less memory takes planning, which is loaded then."""


def divided(changed: str) -> tuple[str, str]:
    """What a recipe says was done to the nodes: by a pass, and in which patches."""
    first, _, patches = changed.partition(PATCHES)
    return first.removesuffix(", "), patches


TEXT_OPSETS = {"": 21, "com.microsoft": 1}
"""The operator sets that "onnx.X" means in a graph which comes from no ONNX file."""


def level(optimize: str, first: str, plan: MemoryPlan | None = None) -> str:
    """What `optimize` asks for when kernels come from the backend `first` before others: never "auto".

    With a plan, what the plan is for. Raises RunError for a word it cannot be, PlanError when the plan is for another.
    """
    if optimize not in get_args(Optimize):
        raise RunError(f"optimize={optimize!r} must be one of {', '.join(get_args(Optimize))}")
    if plan is not None and optimize not in (AUTO, plan.recipe.optimize):
        raise PlanError(
            f"optimize={optimize!r} does not go with this plan: it is for the graph {plan.recipe.words}. Drop it, or "
            "plan again"
        )
    if plan is not None:
        return plan.recipe.optimize
    if optimize == AUTO:
        return ALL if first == ALL and installed(ALL) else AS_IS
    return optimize


def change(model: Any, simplify: bool | None, plan: MemoryPlan | None = None) -> str:
    """What is done to the nodes of a model, as a recipe says it; a graph written in Python is simplified unasked.

    With a plan, what was done to those that it is for. Raises PlanError when that is not what is asked for.
    """
    if plan is None:
        return SIMPLIFIED if (isinstance(model, WrittenGraph) if simplify is None else simplify) else ""
    planned = divided(plan.recipe.changed)[0]
    if simplify is not None and simplify != (planned == SIMPLIFIED):
        raise PlanError(
            f"simplify={simplify} does not go with this plan: it is for the graph {plan.recipe.words}. Drop it, or "
            "plan again"
        )
    return plan.recipe.changed


def source_of(
    model: Any,
    dims: Mapping[str, int] | None = None,
    *,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    changed: str = "",
    assume: Mapping[str, str] | None = None,
    split: Splits = (),
    again: Again = (),
) -> Model:
    """A file, an ONNX ModelProto, a graph or a `Model` as a model.

    What is read here is rewritten and changed as asked; a graph or `Model` is what the caller made of it, and may be
    simplified. Nodes are `split` and computed `again` unless it does so already.
    """
    source = bounded(_model(model, dims, optimize, assume or {}), max_trips)
    first, patches = divided(changed)
    if first not in PASSES:
        raise PlanError(f"the plan is for a graph changed by {changed[:80]!r}, which this Sublet does not know")
    theirs = isinstance(model, Model | WrittenGraph | Graph)
    if not theirs or (first == SIMPLIFIED and source.recipe.changed == ""):
        source = PASSES[first](source)
    if patches and source.recipe.changed == first:
        source = import_module("sublet.planning.budget.patches").with_patches(source, patches)
    if split and source.recipe.split != tuple(split):
        source = with_splits(source, split)
    if again and source.recipe.again != tuple(again):
        recipe = replace(source.recipe, again=tuple(again))
        source = replace(source, graph=recomputed(source.graph, again), recipe=recipe)
    return source if source.opsets else replace(source, opsets=TEXT_OPSETS)


def planned_model(path: str | Path, plan: MemoryPlan) -> Model:
    """The model in a file with the graph that a plan is for, made again as the plan's recipe says.

    Raises PlanError when what comes out is another graph.
    """
    recipe = plan.recipe
    made = source_of(
        path,
        dict(plan.dims),
        max_trips=dict(plan.max_trips),
        optimize=recipe.optimize,
        changed=recipe.changed,
        assume=dict(recipe.assumed),
        split=recipe.split,
        again=recipe.again,
    )
    made = replace(made, graph=with_scratch(made.graph, dict(recipe.scratch)))
    if fingerprint(made.graph, plan.schedule) != plan.fingerprint:
        raise PlanError(f"this is not a plan of {path}: {why_another(made.recipe, recipe)}Plan the model again.")
    if made.recipe.optimize != recipe.optimize or (recipe.optimize == AS_IS and recipe.by):
        raise PlanError(f"the plan says that it is for the graph {recipe.words}; it is for that {made.recipe.words}.")
    if made.recipe.declared != recipe.declared:
        raise PlanError(
            f"the plan holds on other declared types than those that {path} alone tells. Plan the model again."
        )
    if (dict(made.dims), dict(made.max_trips)) != (dict(plan.dims), dict(plan.max_trips)):
        raise PlanError(f"the plan was made for other dimensions or rounds than {path} has. Plan the model again.")
    own = serial(on_demand(made.graph))
    if recipe.order == GIVEN and is_serial(plan.schedule) and plan.schedule != own:
        raise PlanError(f"this plan of {path} says that it is in the model's own order, and is in another one")
    return made


def why_another(made: Recipe, planned: Recipe) -> str:
    """Why a recipe may have given another graph this time; "" when nothing but the model can be the reason."""
    if planned.optimize == AS_IS:
        return "the graph, or its order, is another one. "
    if made.optimize == AS_IS:
        return "ONNX Runtime's optimiser rewrote the model then, and refuses it here. "
    if made.by != planned.by:
        return f"the plan is for the graph that {planned.by} made of it; here {depends_on()} makes another one. "
    return f"the graph {planned.words} is another one. "


def first_of(backends: Sequence[Any]) -> str:
    """The name of the backend asked first."""
    return next((entry if isinstance(entry, str) else str(entry.name) for entry in backends), "")


def _model(model: Any, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    read_so = isinstance(model, Model) and dict(model.recipe.assumed) == assume
    if assume and not read_so and (optimize != AS_IS or isinstance(model, Model | WrittenGraph | Graph)):
        raise RunError("assume= names values of an ONNX model as it is in its file: read it so, with optimize='none'")
    if isinstance(model, Model):
        return model
    if isinstance(model, WrittenGraph):
        return model.model()
    if isinstance(model, Graph):
        return Model(model)
    if isinstance(model, str | Path):
        return read_model(model, dims, optimize=optimize, assume=assume)
    if hasattr(model, "graph") and hasattr(model, "opset_import"):
        plain = optimize == AS_IS
        return from_proto(model, dims, assume=assume) if plain else optimized(model, dims, level=optimize)
    raise RunError(f"{type(model).__name__} is no model: give a path, an ONNX ModelProto, a Model or a Graph")

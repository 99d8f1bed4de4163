"""From a model to something that runs: planned as asked, unless there is a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options
from sublet.api.binding import Equipped, equipped, to_run
from sublet.api.measuring import measured
from sublet.api.sources import Optimize, change
from sublet.base.errors import CapacityError
from sublet.frontends.trips import Trips
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.nn.graph import Graph as WrittenGraph
from sublet.packing import slow_region
from sublet.plan import MemoryPlan
from sublet.planning.budget.answers import Outcome, most
from sublet.planning.budget.costs import MODELLED
from sublet.planning.budget.patches import in_patches
from sublet.planning.budget.within import Budgets, Ways
from sublet.planning.pipeline import plan_memory
from sublet.planning.placing import Progress
from sublet.runtime.backends.by_name import AUTO
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import WORKSPACE_BYTES


def compile(
    model: str | Path | WrittenGraph | Graph | Model | Any,
    *,
    dims: Mapping[str, int] | None = None,
    max_trips: Trips = None,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    optimize: Optimize = AUTO,
    assume: Mapping[str, str] | None = None,
    options: Options | None = None,
    plan: MemoryPlan | None = None,
    arena: Any = None,
    weights: Mapping[str, Array] | None = None,
    autotune: bool = False,
    workspace: int = WORKSPACE_BYTES,
    simplify: bool | None = None,
    patches: str | None = None,
    budget: int | str | None = None,
    measure: bool = False,
    progress: Progress | None = None,
) -> Executable:
    """An Executable of a model: a file, an ONNX ModelProto, a graph written in Python, a `Model`, a training step.

    `max_trips` declares how many rounds loops make at most, `assume` tells unknown shapes: see `read_model`.
    `backend` names where kernels come from, in order of preference; "auto" takes the fastest installed and
    falls back on the reference. `optimize="onnxruntime"` lets ONNX Runtime's optimiser rewrite an ONNX model
    first ("onnxruntime-extended" and "onnxruntime-basic" are lower levels of it), "none" takes it as it is, and "auto"
    asks that of it when its backend goes first; with a plan it is what the plan is for.
    `plan` is a plan made elsewhere; `arena` is memory to run in. `autotune` times, where several backends
    compute a node, each of them on this machine (the reference only for commands of `sublet.nn`), takes the fastest and
    remembers it in the cache; it may take `workspace` bytes to do so. Backends differ in the last bits. Ops of
    `sublet.command` run with every backend.
    `simplify` first lets the cheap passes run: what nobody reads, what is computed twice and arithmetic that changes
    nothing go, and commands are fused, which may change the last bits of results; the plan says so in its recipe. A
    `sublet.Graph` is simplified unless that is False, anything else only if True; with a plan it is as the plan says.
    `patches` has the front of a network computed patch by patch of the output of a node ("4x4@Add_12"), each from the
    area of the input that it needs; "auto" takes those that need least (docs/patches.md). A plan given says itself.
    `budget` is the most bytes that the arena may have ("400MiB"): values are computed again where the plan needs more
    (docs/budget.md) or, where `options` has a second region with a rate, brought there and back, at a cost that a model
    of operations and bytes predicts, or, with `measure`, what nodes take here.
    Raises CapacityError where that is impossible, or no way was found, and tells which.
    Raises ModelError for a model that cannot be read, RunError when no backend computes a node or a weight is
    missing, PlanError when `plan` was not made for this model, PlanViolation when it is wrong.
    """
    read: dict[str, Any] = {"dims": dims, "max_trips": max_trips, "optimize": optimize, "assume": assume}
    changed = change(model, simplify, plan)
    if patches is not None and plan is None:
        taken = to_run(model, backend=backend, changed=changed, **read)
        model = in_patches(taken, options or Options(), patches).model
        read = {}
    kernels: dict[str, Any] = {"backend": backend, "autotune": autotune, "workspace": workspace}
    ready = equipped(model, weights=weights, plan=plan, changed=changed, **read, **kernels)
    if plan is not None:
        if budget is not None and plan.arena_bytes > most(budget):
            raise CapacityError(f"the plan given needs {plan.arena_bytes:,} bytes: leave plan out, or budget")
        return ready.bound(ready.proven(plan), arena)
    if budget is None:
        return ready.bound(plan_memory(ready.model, options, progress=progress), arena)
    ready, made = _within(ready, most(budget), options or Options(), backend, weights or {}, autotune, measure)
    return ready.bound(made, arena)


def _within(
    ready: Equipped,
    budget: int,
    options: Options,
    backend: str | Backend | Sequence[str | Backend],
    weights: Mapping[str, Array],
    autotune: bool,
    measure: bool,
) -> tuple[Equipped, MemoryPlan]:
    """The model, with values computed again where its plan needs more than the budget, its kernels and its plan.

    Raises CapacityError.
    """
    slow, plain = slow_region(options.regions) is not None, None
    if slow:
        budget = min(budget, options.regions[0].capacity)
    else:
        plain = plan_memory(ready.model, options)
        if plain.arena_bytes <= budget:
            return ready, plain
    made: dict[tuple[object, object], Equipped] = {((), ()): ready}

    def kept(model: Model) -> Equipped:
        key = model.recipe.split, model.recipe.again
        if key not in made:
            made[key] = equipped(model, backend=backend, weights=weights, autotune=autotune)
        return made[key]

    ways = Ways(ready.source, lambda model: kept(model).model)

    seconds, costs = measured(ready.model, backend) if measure else (None, MODELLED)
    answer = Budgets(ready.model, options, seconds, costs, ways, planned=plain).within(budget)
    if answer.outcome is not Outcome.FITS:
        raise CapacityError(answer.words)
    ready = kept(answer.point.model)
    return ready, plan_memory(ready.model, options) if slow else answer.point.plan

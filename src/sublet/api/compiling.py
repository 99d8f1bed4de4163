"""From a model to an executable (`sublet.compile`): plan the model, or use an existing plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options, Progress
from sublet.api.binding import ModelWithKernels, model_to_run, model_with_kernels
from sublet.api.sources import Optimize, resolve_changed
from sublet.base.errors import CapacityError
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.nn.graph import Graph as WrittenGraph
from sublet.packing import slow_region
from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.planning.budget.cost_model import MODELLED_COSTS
from sublet.planning.budget.patches import choose_patches
from sublet.planning.budget.result import SearchOutcome, parse_budget
from sublet.planning.budget.search import BudgetSearch, ModelPreparation
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends.registry import AUTO, backend_names, backends_of
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import WORKSPACE_BYTES, Tuner

# Measured seconds of the nodes of a model on this machine, cached on disk: costs for the search within a budget.

MAX_MEASURED_BYTES = 2 << 30
"""Maximum bytes of operands for timing one node. Larger nodes are not measured."""


def measure_node_seconds(
    model: Model,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    constants: Mapping[Value, Array] | None = None,
    workspace: int = MAX_MEASURED_BYTES,
) -> tuple[dict[str, float], str]:
    """Return the seconds of the root-level nodes by name, and a remark on how many were measured.

    Each node runs with the first backend with a kernel for the node, on operands made up by the tuner, with at most
    `workspace` bytes. Nodes measured before come from the cache.
    """
    backends = backends_of(backend_names(backend), model)
    seconds = Tuner(backends, model.opsets, workspace).seconds(model.graph, constants or {})
    total = len(model.graph.nodes)
    return seconds, f"from {len(seconds)} of {total} nodes measured on this machine, the rest by operations and bytes"


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
    """Return an Executable of a model: planned, checked, and bound to memory.

    model      a path, an ONNX ModelProto, a graph written in Python, a `Model`, or a training step
    dims       extents of symbolic dimensions by name, see `read_model`
    max_trips  the maximum trip counts of loops, see `read_model`
    backend    the sources of kernels, in order of preference; "auto" takes the fastest installed backend, and the
               reference for nodes without a kernel in that backend. Operators of `sublet.command` run with every
               backend. Results of backends differ in the last bits.
    optimize   the rewriting of an ONNX model before planning: "onnxruntime" by ONNX Runtime's optimiser,
               "onnxruntime-extended" and "onnxruntime-basic" by lower levels of the optimiser, "none" for no rewriting;
               "auto" chooses "onnxruntime" if ONNX Runtime is the first backend, "none" otherwise. With a plan, "auto"
               is the level of the plan.
    assume     shapes of ONNX values without inferred shape, see `read_model`
    options    the planning options
    plan       an existing plan of the model
    arena      memory for the arena; newly allocated if omitted
    weights    the content of weights by name; the weights of another executable are shared, not copied
    autotune   time the backends with a kernel for a node on this machine, and use the fastest; the reference takes part
               only for commands of `sublet.nn`. Results are cached on disk.
    workspace  bytes available for timing one node
    simplify   first run the cheap passes: remove dead code, common subexpressions and arithmetic without effect, and
               fuse commands. Fusion may change the last bits of results. The recipe of the plan records the
               simplification. A `sublet.Graph` is simplified unless False, another model only if True; with a plan, as
               the plan says.
    patches    compute the front of a network patch by patch of the output of a node ("4x4@Add_12"), each patch from its
               receptive field in the input; "auto" takes the patches with the smallest arena (docs/patches.md). Ignored
               with a plan: the plan records its own patches.
    budget     the maximum size of the arena, in bytes or as text ("400MiB"). Where the plan needs more, values are
               rematerialized (docs/budget.md); or, if `options` has a second memory region with a transfer rate,
               offloaded and reloaded. A model of operations and bytes predicts the cost.
    measure    predict the cost by the seconds of the nodes on this machine instead
    progress   receives the progress of the packing search

    Raises CapacityError if no plan within the budget exists, if the search found no plan, or if `plan` exceeds the
    budget. Raises ModelError for an unreadable model; RunError for a node without a kernel or a weight without content;
    PlanError for a plan of another model; PlanViolation for a plan refused by the checker.
    """
    read: dict[str, Any] = {"dims": dims, "max_trips": max_trips, "optimize": optimize, "assume": assume}
    changed = resolve_changed(model, simplify, plan)
    if patches is not None and plan is None:
        source = model_to_run(model, backend=backend, changed=changed, **read)
        model = choose_patches(source, options or Options(), patches).model
        read = {}
    kernels: dict[str, Any] = {"backend": backend, "autotune": autotune, "workspace": workspace}
    ready = model_with_kernels(model, weights=weights, plan=plan, changed=changed, **read, **kernels)
    if plan is not None:
        if budget is not None and plan.arena_bytes > parse_budget(budget):
            raise CapacityError(
                f"the plan needs {plan.arena_bytes:,} bytes, more than budget={budget!r}: leave out `plan` or `budget`"
            )
        return ready.to_executable(ready.validated_plan(plan), arena)
    if budget is None:
        return ready.to_executable(plan_memory(ready.model, options, progress=progress), arena)
    ready, within_budget = _plan_within_budget(
        ready, parse_budget(budget), options or Options(), backend, weights or {}, autotune, measure
    )
    return ready.to_executable(within_budget, arena)


def _plan_within_budget(
    ready: ModelWithKernels,
    budget: int,
    options: Options,
    backend: str | Backend | Sequence[str | Backend],
    weights: Mapping[str, Array],
    autotune: bool,
    measure: bool,
) -> tuple[ModelWithKernels, MemoryPlan]:
    """Return the model with kernels, and a plan within the budget; rematerialize values if necessary.

    Raises CapacityError if no plan within `budget` bytes was found.
    """
    slow, plain = slow_region(options.regions) is not None, None
    if slow:
        budget = min(budget, options.regions[0].capacity)
    else:
        plain = plan_memory(ready.model, options)
        if plain.arena_bytes <= budget:
            return ready, plain
    models: dict[tuple[object, object], ModelWithKernels] = {((), ()): ready}

    def choose_kernels_once(model: Model) -> ModelWithKernels:
        key = model.recipe.split, model.recipe.again
        if key not in models:
            models[key] = model_with_kernels(model, backend=backend, weights=weights, autotune=autotune)
        return models[key]

    ways = ModelPreparation(ready.source, lambda model: choose_kernels_once(model).model)

    seconds, costs = measure_node_seconds(ready.model, backend) if measure else (None, MODELLED_COSTS)
    answer = BudgetSearch(ready.model, options, seconds, costs, ways, known_plan=plain).best_within(budget)
    if answer.outcome is not SearchOutcome.FITS:
        raise CapacityError(answer.words)
    ready = choose_kernels_once(answer.program.model)
    return ready, plan_memory(ready.model, options) if slow else answer.program.plan

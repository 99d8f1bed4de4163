"""From a model to an executable (`sublet.compile`): plan the model, or use an existing plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options, Progress
from sublet.api.advising import search_budget
from sublet.api.binding import CompileRequest, ModelWithKernels, model_to_run, model_with_kernels
from sublet.api.sources import Optimize
from sublet.api.state_names import StatePairs
from sublet.base.errors import CapacityError
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.nn.graph import Graph as WrittenGraph
from sublet.packing import slow_region
from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.planning.budget.patches import choose_patches
from sublet.planning.budget.result import SearchOutcome, parse_budget
from sublet.planning.budget.search import ModelPreparation
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends import AUTO
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import WORKSPACE_BYTES


def compile(
    model: str | Path | WrittenGraph | Graph | Model | Any,
    *,
    dims: Mapping[str, int] | None = None,
    const: Mapping[str, Any] | None = None,
    state: StatePairs | None = None,
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
    dims       extents of symbolic dimensions by name, see `read_model`; missing extents are those of the plan
    const      constants for inputs, or "open" for an input with a default in the file, see `read_model`; with a plan,
               the constants of the plan hold
    state      inputs updated by an output, as `{"h": "hn"}`, see `read_model`; `Executable.session` adds states
    max_trips  the maximum trip counts of loops, see `read_model`; with a plan, by default those of the plan
    backend    the sources of kernels, in order of preference; "auto" takes the fastest installed backend, and the
               reference for nodes without a kernel in that backend. Operators of `sublet.command` run with every
               backend. Results of backends differ in the last bits.
    optimize   the rewriting of an ONNX model before planning: "onnxruntime" by ONNX Runtime's optimiser,
               "onnxruntime-extended" and "onnxruntime-basic" by lower levels of the optimiser, "none" for no rewriting;
               "auto" chooses "onnxruntime" if ONNX Runtime is the first backend, "none" otherwise: the rewritten graph
               runs faster, but may have the larger arena. `sublet plan --optimize auto` and `sublet run` take the graph
               with the smaller arena; for the same memory pass the plan of `sublet run --save-plan`, or the level that
               the command reports. With a plan, "auto" is the level of the plan.
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
               receptive field in the input; "auto" takes the patches with the fewest bytes of arena and kernels, or
               none (docs/patches.md). Ignored with a plan: the plan records its own patches.
    budget     the maximum size of the arena, in bytes or as text ("400MiB"). Where the plan needs more, values are
               rematerialized (docs/budget.md); or, if `options` has a second memory region with a transfer rate,
               offloaded and reloaded. A model of operations and bytes predicts the cost.
    measure    predict the cost by the seconds of the nodes on this machine instead
    progress   receives the progress of the packing search

    Raises CapacityError if no plan within the budget exists, if the search found no plan, or if `plan` exceeds the
    budget. Raises ModelError for an unreadable model; RunError for a node without a kernel or a weight without content;
    PlanError for a plan of another model; PlanViolation for a plan refused by the checker.
    """
    request = CompileRequest(
        model, dims=dims, const=const, state=state, max_trips=max_trips, backend=backend, optimize=optimize,
        assume=assume, options=options, plan=plan, arena=arena, weights=weights, autotune=autotune,
        workspace=workspace, simplify=simplify, patches=patches, budget=budget, measure=measure, progress=progress,
    )  # fmt: skip
    return compile_request(request)


def compile_request(request: CompileRequest) -> Executable:
    """Return the executable of a request. Raises the errors of `compile`."""
    ready, plan = _plan_of(request, model_with_kernels(_with_patches(request)))
    return ready.to_executable(plan, request.arena)


def _with_patches(request: CompileRequest) -> CompileRequest:
    """Return the request with the model read, its front in patches if requested; a plan records its own patches."""
    if request.patches is None or request.plan is not None:
        return request
    choice = choose_patches(model_to_run(request), request.options or Options(), request.patches, for_run=True)
    return replace(
        request,
        model=choice.model_with_remark,
        dims=None,
        const=None,
        state=None,
        max_trips=None,
        optimize=AUTO,
        assume=None,
    )


def _plan_of(request: CompileRequest, ready: ModelWithKernels) -> tuple[ModelWithKernels, MemoryPlan]:
    """Return the model, rematerialized if the budget needs it, and its plan: the checked plan of the request, or a new.

    Raises CapacityError for a plan over the budget, and if no plan within the budget was found.
    """
    plan, budget = request.plan, request.budget
    if plan is not None:
        if budget is not None and plan.arena_bytes > parse_budget(budget):
            raise CapacityError(
                f"the plan needs {plan.arena_bytes:,} bytes, more than budget={budget!r}: leave out `plan` or `budget`"
            )
        return ready, ready.validated_plan(plan)
    if budget is not None:
        return _plan_within_budget(request, ready, parse_budget(budget))
    return ready, plan_memory(ready.model, request.options, progress=request.progress)


def _plan_within_budget(
    request: CompileRequest, ready: ModelWithKernels, budget: int
) -> tuple[ModelWithKernels, MemoryPlan]:
    """Return the model with kernels, and a plan within the budget; rematerialize values if necessary.

    Raises CapacityError if no plan within `budget` bytes was found.
    """
    options = request.options or Options()
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
            models[key] = model_with_kernels(
                CompileRequest(model, backend=request.backend, weights=request.weights, autotune=request.autotune)
            )
        return models[key]

    ways = ModelPreparation(ready.source, lambda model: choose_kernels_once(model).model)
    search = search_budget(
        ready.model, options, measure=request.measure, backend=request.backend, preparation=ways, known_plan=plain
    )
    answer = search.best_within(budget)
    if answer.outcome is not SearchOutcome.FITS:
        raise CapacityError(answer.words)
    ready = choose_kernels_once(answer.program.model)
    return ready, plan_memory(ready.model, options) if slow else answer.program.plan

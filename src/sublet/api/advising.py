"""Advice on the arena of a model (`sublet.advise`), for Python and for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.api.state_names import StatePairs
from sublet.base.errors import ProblemError
from sublet.base.optional_imports import is_installed
from sublet.integrations.registry import integration_of_file, integration_of_object
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.passes.recompute.memory_bound import MemoryBound
from sublet.passes.rewriting import is_pure
from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.plan.verdict import Advised
from sublet.planning.advice import MAX_SECONDS, AdviceCandidate, OnCandidate, evaluate_candidates, list_candidates
from sublet.planning.budget.cost_model import MODELLED_COSTS
from sublet.planning.budget.patches import AUTO as PATCHES_AUTO
from sublet.planning.budget.patches import choose_patches, why_no_patches
from sublet.planning.budget.search import BudgetSearch, ModelPreparation, memory_floor
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends import AUTO, backend_names, backends_of
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import Tuner

# Memory budgets: the search for programs of a model that fit, with costs predicted or measured on this machine.

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


def search_budget(
    model: Model,
    options: Options,
    *,
    measure: bool = False,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    preparation: ModelPreparation | None = None,
    known_plan: MemoryPlan | None = None,
) -> BudgetSearch:
    """Return the search for programs of a model within memory budgets.

    measure      predict the cost by the measured seconds of the nodes, see `measure_node_seconds`
    backend      the backends to measure
    preparation  the preparation of changed models for planning
    known_plan   the plan of the unchanged model, if available
    """
    seconds, costs = measure_node_seconds(model, backend) if measure else (None, MODELLED_COSTS)
    return BudgetSearch(model, options, seconds, costs, preparation, known_plan=known_plan)


def can_rematerialize(model: Model) -> bool:
    """Return True if a budget search may compute some node of the model again."""
    return not model.recipe.again and any(is_pure(node) for node in model.graph.walk())


def recomputation_bound(model: Model, options: Options) -> MemoryBound:
    """Return the bytes that any order and any recomputation of the nodes need; splits of nodes may need less."""
    return memory_floor(model.graph, options)


def advise(
    model: Any,
    options: Options | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    const: Mapping[str, Any] | None = None,
    state: StatePairs | None = None,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    seconds: float = MAX_SECONDS,
) -> Advised:
    """Return advice to lower the arena of a model: a list of changes, each measured by planning the changed graph.

    model      a path, an ONNX ModelProto, a graph or a `Model`
    options    the planning options of the present plan, the default options if omitted
    dims       extents of symbolic dimensions by name, see `read_model`
    const      constants for inputs, see `read_model`
    state      inputs updated by an output, see `read_model`
    max_trips  the maximum trip counts of loops, see `read_model`
    optimize   the level of ONNX Runtime's optimiser for reading an ONNX model, or "none"
    seconds    the time limit: no candidate starts after `seconds`

    An interrupt ends the search and keeps the advice found until then. The result lists the advice by the arena of the
    changed graph, the smallest first, and the candidates without a plan, each with a reason.

    Raises ProblemError for options with several memory regions; the errors of `read_model` for an unreadable model; and
    the errors of `plan_memory` if the unchanged model cannot be planned.
    """
    options = options or Options()
    source = read_source(model, dims, const=const, state=state, max_trips=max_trips, optimize=optimize)
    return advise_on(model, source, options, plan_memory(source, options), seconds=seconds)


def advise_on(
    model: Any,
    source: Model,
    options: Options,
    plan: MemoryPlan,
    *,
    seconds: float = MAX_SECONDS,
    trying: OnCandidate | None = None,
) -> Advised:
    """Return advice on `plan`, a plan of `source`; `source` is the model read from `model`.

    Changes of the optimiser level are candidates only for an ONNX model read without assumed shapes, and only if ONNX
    Runtime is installed. `trying` is called with each next candidate and the advice found until then.

    Raises ProblemError for options with several memory regions.
    """
    if options.regions:
        raise ProblemError("advice needs a single arena: leave out the memory regions")
    levels = optimize_levels(model) if not source.recipe.assumed else ()
    reread = partial(_reread, model, source) if levels else None
    candidates = list_candidates(source, options, plan, reread, levels)
    return evaluate_candidates(plan, chain(candidates, _patch_candidates(source, options)), seconds, trying)


def _patch_candidates(model: Model, options: Options) -> Iterator[AdviceCandidate]:
    """Yield the candidate of a front in patches, if the operators of the model have slice maps."""
    if not why_no_patches(model):
        what = "the front in patches, their edges computed twice"
        yield AdviceCandidate("option", what, f"--patches {PATCHES_AUTO}", lambda: _with_best_patches(model, options))


def _with_best_patches(model: Model, options: Options) -> tuple[Model, Options]:
    """Return the model with the patches of the smallest arena, if any save memory, and the options."""
    return choose_patches(model, options, PATCHES_AUTO).model, options


def optimize_levels(model: Any) -> tuple[str, ...]:
    """Return the levels of the vendor's installed optimiser for a path or a model in memory, the strongest last."""
    is_path = isinstance(model, str | Path)
    integration = integration_of_file(Path(model)) if is_path else integration_of_object(model)
    if integration is None or not integration.optimize_levels or not is_installed(integration.optimizer_package):
        return ()
    return integration.optimize_levels


def _reread(model: Any, source: Model, level: str) -> Model:
    """Read the model again at another level of ONNX Runtime's optimiser."""
    const, state = dict(source.recipe.const), dict(source.recipe.state)
    return read_source(model, source.dims, const=const, state=state, max_trips=source.max_trips, optimize=level)

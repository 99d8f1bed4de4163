"""Advice on the arena of a model (`sublet.advise`), for Python and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.base.errors import ProblemError
from sublet.base.optional_imports import is_installed
from sublet.integrations.registry import integration_of_file, integration_of_object
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.plan.advice import Advised
from sublet.planning.advice.candidates import MAX_SECONDS, OnCandidate, evaluate_candidates, list_candidates
from sublet.planning.pipeline import plan_memory


def advise(
    model: Any,
    options: Options | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    seconds: float = MAX_SECONDS,
) -> Advised:
    """Return advice to lower the arena of a model: a list of changes, each measured by planning the changed graph.

    model      a path, an ONNX ModelProto, a graph or a `Model`
    options    the planning options of the present plan, the default options if omitted
    dims       extents of symbolic dimensions by name, see `read_model`
    max_trips  the maximum trip counts of loops, see `read_model`
    optimize   the level of ONNX Runtime's optimiser for reading an ONNX model, or "none"
    seconds    the time limit: no candidate starts after `seconds`

    An interrupt ends the search and keeps the advice found until then. The result lists the advice by the arena of the
    changed graph, the smallest first, and the candidates without a plan, each with a reason.

    Raises ProblemError for options with several memory regions; the errors of `read_model` for an unreadable model; and
    the errors of `plan_memory` if the unchanged model cannot be planned.
    """
    options = options or Options()
    source = read_source(model, dims, max_trips=max_trips, optimize=optimize)
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
    return evaluate_candidates(plan, list_candidates(source, options, plan, reread, levels), seconds, trying)


def optimize_levels(model: Any) -> tuple[str, ...]:
    """Return the levels of the vendor's installed optimiser for a path or a model in memory, the strongest last."""
    is_path = isinstance(model, str | Path)
    integration = integration_of_file(Path(model)) if is_path else integration_of_object(model)
    if integration is None or not integration.optimize_levels or not is_installed(integration.optimizer_package):
        return ()
    return integration.optimize_levels


def _reread(model: Any, source: Model, level: str) -> Model:
    """Read the model again at another level of ONNX Runtime's optimiser."""
    return read_source(model, source.dims, max_trips=source.max_trips, optimize=level)

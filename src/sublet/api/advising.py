"""`sublet.advise`: what would lower the arena of a model, for Python and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options
from sublet.api.sources import source_of
from sublet.base.errors import ProblemError
from sublet.base.extras import installed
from sublet.frontends.model import is_onnx
from sublet.frontends.onnx.optimized import ALL, LEVELS
from sublet.frontends.trips import Trips
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.advised import Advised
from sublet.planning.advice.ideas import ideas
from sublet.planning.advice.tried import SECONDS, Trying, tried
from sublet.planning.pipeline import plan_memory


def advise(
    model: Any,
    options: Options | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    seconds: float = SECONDS,
) -> Advised:
    """What would lower the arena of a file, an ONNX ModelProto, a graph or a `Model`: each change planned.

    `options` say how it is planned now, `dims`, `max_trips` and `optimize` how it is read. After `seconds` no other
    change is begun. An interrupt ends it, and what was found until then is given.
    Raises ProblemError for options with several memory regions, and what `plan_memory` raises.
    """
    options = options or Options()
    source = source_of(model, dims, max_trips=max_trips, optimize=optimize)
    return advise_on(model, source, options, plan_memory(source, options), seconds=seconds)


def advise_on(
    model: Any,
    source: Model,
    options: Options,
    plan: MemoryPlan,
    *,
    seconds: float = SECONDS,
    trying: Trying | None = None,
) -> Advised:
    """Advice on the plan of `source`, which `model` was read as."""
    if options.regions:
        raise ProblemError("advice is about one arena: leave the memory regions out")
    file = is_onnx(Path(model)) if isinstance(model, str | Path) else hasattr(model, "opset_import")
    levels = tuple(LEVELS) if file and installed(ALL) and not source.recipe.assumed else ()
    reread = partial(_reread, model, source) if levels else None
    return tried(plan, ideas(source, options, plan, reread, levels), seconds, trying)


def _reread(model: Any, source: Model, level: str) -> Model:
    return source_of(model, source.dims, max_trips=source.max_trips, optimize=level)

"""From a model to something that runs: read it, choose kernels, plan, prove, bind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.compile import Options, Progress, plan_memory
from sublet.errors import RunError
from sublet.frontends.model import Model, model_of, read_model
from sublet.frontends.onnx.model import from_proto
from sublet.ir.graph import Graph
from sublet.plan import MemoryPlan
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.kernels import choose_kernels, with_scratch
from sublet.runtime.reference import Reference
from sublet.tensor import TensorSpec

BACKENDS: dict[str, Callable[[Model], Backend]] = {
    "reference": lambda model: Reference(model.opsets),
}
"""Makes the backend of a name for a model."""

AUTO = "auto"


def compile(
    model: str | Path | Graph | Model | Any,
    *,
    dims: Mapping[str, int] | None = None,
    backend: str | Sequence[str | Backend] = AUTO,
    options: Options | None = None,
    plan: MemoryPlan | None = None,
    arena: Any = None,
    weights: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
) -> Executable:
    """An Executable of a model: a file, an ONNX ModelProto, a `Model`, or a `Graph` with its `weights`.

    `backend` names where kernels come from, in order of preference; "auto" takes the fastest installed and
    falls back on the reference. `plan` is a plan made elsewhere; `arena` is memory to run in.
    Raises ModelError for a model that cannot be read, RunError when no backend computes a node or a weight is
    missing, PlanError when `plan` was not made for this model.
    """
    source = _model(model, dims)
    backends = _backends(backend, source)
    graph = source.graph
    contents = _weights(source, weights or {})
    arrays = {v: contents[v] for v in graph.weights if isinstance(v.spec, TensorSpec)}
    kernels = choose_kernels(graph, backends, arrays)
    graph = with_scratch(graph, kernels)
    if plan is None:
        plan = plan_memory(graph, options, dims=source.dims, progress=progress)
    executable = Executable(
        graph,
        plan,
        lambda constants: choose_kernels(source.graph, backends, constants),
        contents,
        source.inputs,
        source.outputs,
    )
    if arena is not None:
        executable.bind("arena", arena)
    return executable


def _model(model: Any, dims: Mapping[str, int] | None) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Graph):
        return Model(model)
    if isinstance(model, str | Path):
        return read_model(model, dims)
    if hasattr(model, "graph") and hasattr(model, "opset_import"):
        return model_of(from_proto(model, dims))
    raise RunError(f"{type(model).__name__} is no model: give a path, an ONNX ModelProto, a Model or a Graph")


def _backends(chosen: str | Sequence[str | Backend], model: Model) -> list[Backend]:
    if chosen == AUTO:
        chosen = list(BACKENDS)
    elif isinstance(chosen, str):
        chosen = [chosen]
    unknown = [name for name in chosen if isinstance(name, str) and name not in BACKENDS]
    if unknown:
        raise RunError(f"there is no backend {unknown[0]!r}; there are {AUTO}, {', '.join(BACKENDS)}")
    return [BACKENDS[entry](model) if isinstance(entry, str) else entry for entry in chosen]


def _weights(model: Model, given: Mapping[str, Array]) -> dict[Any, Any]:
    contents: dict[Any, Any] = {}
    for value in model.graph.weights:
        if value.name in given:
            contents[value] = given[value.name]
        elif value.name in model.weights:
            contents[value] = model.weights[value.name].array()
        else:
            raise RunError(f"the weight {value.name!r} has no content: give it in `weights`")
    return contents

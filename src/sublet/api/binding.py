"""From a model and a plan to an executable: read, choose kernels, check the plan, bind. The module plans nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.api.model_files import constant_texts
from sublet.api.sources import OVER_RANGES, first_backend_name, read_source, resolve_changed, resolve_optimize
from sublet.api.state_names import AUTO_STATE, StatePairs
from sublet.base.errors import PlanError, RunError
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import CACHE_LINE_BYTES, NUMPY, TensorSpec
from sublet.checker import require_valid
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.plan.file import fingerprint
from sublet.runtime.backends import AUTO, backend_names, backends_of
from sublet.runtime.caller_memory import aligned_or_copy, content_for
from sublet.runtime.executable import Executable, MakeKernels
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.kernel_choice import Kernels, choose_kernels, scratch_of
from sublet.runtime.moves import byte_copies
from sublet.runtime.tuning import WORKSPACE_BYTES, Tuner
from sublet.runtime.weights import ExecutableWeights
from sublet.runtime.workspace import bytes_in_use, growth_since


def with_plan(
    model: str | Path | WrittenGraph | Graph | Model | Any,
    plan: MemoryPlan,
    *,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    weights: Mapping[str, Array] | None = None,
    arena: Any = None,
) -> Executable:
    """Return an Executable of a model and an existing plan, as `compile` does, without loading the planner.

    model    a path, an ONNX ModelProto, a graph or a `Model`; read with the dimensions and trip counts of the plan
    plan     a plan of the model
    backend  the sources of kernels in order of preference, see `compile`
    weights  the content of weights by name, replacing the content in the model
    arena    memory for the arena of the plan; newly allocated if omitted

    Raises the errors of `compile`: ModelError for an unreadable model, RunError for a node without a kernel or a weight
    without content, PlanError for a plan of another model, and PlanViolation for a plan refused by the checker.
    """
    dims, max_trips = dict(plan.dims), dict(plan.max_trips)
    request = CompileRequest(model, dims=dims, max_trips=max_trips, backend=backend, weights=weights, plan=plan)
    ready = model_with_kernels(request)
    return ready.to_executable(ready.validated_plan(plan), arena)


@dataclass(frozen=True)
class ModelWithKernels:
    """A model with a kernel for every node, and with the scratch memory of the kernels as part of the graph.

    model           the graph for planning, with scratch memory
    source          the model without scratch memory
    kernels         returns the kernels already chosen, and chooses again if weights have moved
    contents        the contents of the weights
    retained_bytes  bytes allocated by backends during the choice and not freed; None if unknown
    backends        the sources of the kernels; passed on, they share their sessions with further models
    weights_owner   weights of another executable, with memory to share and a content that may change at any time
    """

    model: Model
    source: Model
    kernels: MakeKernels
    contents: Mapping[Value, Any]
    retained_bytes: int | None
    backends: Sequence[Backend] = ()
    weights_owner: ExecutableWeights | None = None

    def validated_plan(self, plan: MemoryPlan) -> MemoryPlan:
        """Return the plan after the checker has accepted it.

        Raises PlanError for a plan of another graph or other kernels, PlanViolation for a wrong plan.
        """
        _require_plan_fits(plan, self.model.graph, self.model.recipe.scratch, self.source)
        return plan

    def to_executable(self, plan: MemoryPlan, arena: Any = None) -> Executable:
        """Return an executable in the memory of a checked plan. `arena` is memory for the arena."""
        source = self.source
        executable = Executable(
            self.model.graph,
            plan,
            self.kernels,
            self.contents,
            source.inputs,
            source.outputs,
            self.retained_bytes,
            source.remark,
            source.constants,
            {name: default.array() for name, default in source.defaults.items()},
            source.fixed,
        )
        for name in executable.updated if self.weights_owner is not None else ():
            if self.weights_owner is not None and name in self.weights_owner and name in executable.weights:
                executable.bind(name, self.weights_owner.lend_weight(name))
        if arena is not None:
            executable.bind("arena", arena)
        return executable


def model_with_kernels(request: CompileRequest) -> ModelWithKernels:
    """Read the model of a request, and choose its kernels.

    If the request has a plan, the plan determines the changes of the model. Options, patches and budget of the request
    have no effect.

    Raises ModelError, RunError and PlanError as `compile` does.
    """
    source, weights = model_to_run(request), request.weights
    if (
        isinstance(weights, dict)
        and weights.keys() - _assignable_weight_names(source)
        and _assignable_weight_names(source) - weights.keys()
    ):
        unchanged = model_to_run(replace(request, optimize=AS_IS, plan=None, simplify=False))
        _require_known(
            weights, _assignable_weight_names(source) | _assignable_weight_names(unchanged)
        )  # passes may remove weights: their names stay known
    graph, names = source.graph, backend_names(request.backend)
    backends = backends_of(names, source)
    contents = _weight_contents(source, weights or {})
    lender = weights if isinstance(weights, ExecutableWeights) else None
    changing = frozenset(v for v in graph.weights if lender is not None and v.name in lender)
    arrays = {v: contents[v] for v in graph.constants if isinstance(v.spec, TensorSpec) and v not in changing}
    preferred = _fastest_backends(source, names, arrays, request.workspace) if request.autotune else {}
    for node in graph.walk():
        if not node.subgraphs:
            byte_copies(node)  # fills lazy operator tables, which must not count as backend memory
    assumed = dict((*source.recipe.conditions, *(request.plan.assumed_types if request.plan else ())))
    in_use = bytes_in_use()
    choose = partial(choose_kernels, graph, backends, preferred=preferred, assumed=assumed)
    chosen = choose(arrays)
    kept = growth_since(in_use)
    scratch = scratch_of(chosen)
    recipe = replace(source.recipe, scratch=scratch)
    with_memory = replace(source, graph=with_scratch(graph, dict(scratch)), recipe=recipe)
    return ModelWithKernels(
        with_memory, source, _reuse_first_choice(chosen, arrays, choose, changing), contents, kept, backends, lender
    )


def model_to_run(request: CompileRequest, *, over_ranges: bool = False) -> Model:
    """Return the model run by `compile` for the same arguments, before patches.

    With assumed shapes, "auto" leaves the model as in the file: an optimiser may remove the names of the assumed
    values. A plan determines the constants, the optimiser level, the changes, the splits and the rematerialized nodes.
    `over_ranges` reads values that grow in a loop, see `read_source`.
    Raises PlanError for constants or a state that contradict the plan.
    """
    plan, assume = request.plan, request.assume
    if plan is not None and plan.ranges:
        raise PlanError(OVER_RANGES)
    planned_const = dict(plan.recipe.const) if plan else request.const
    if plan and request.const and constant_texts(request.const) != planned_const:
        raise PlanError(f"const={request.const!r} contradicts the plan: leave out `const`, or plan again")
    planned_state = dict(plan.recipe.state) if plan else request.state
    if plan and request.state not in (None, {}, AUTO_STATE, planned_state):
        raise PlanError(f"state={request.state!r} contradicts the plan: leave out `state`, or plan again")
    dims = {**dict(plan.dims if plan else ()), **(request.dims or {})}
    if plan and any(dims[name] != extent for name, extent in plan.dims):
        raise PlanError(f"dims={request.dims!r} contradicts the plan: leave out `dims`, or plan again")
    changed = resolve_changed(request.model, request.simplify, plan)
    optimize = AS_IS if assume and request.optimize == AUTO else request.optimize
    return read_source(
        request.model,
        dims,
        const=planned_const,
        state=planned_state,
        max_trips=request.max_trips or (dict(plan.max_trips) if plan else None),
        optimize=resolve_optimize(optimize, first_backend_name(backend_names(request.backend)), plan),
        changed=changed,
        assume=dict(plan.recipe.assumed) if plan else assume,
        split=plan.recipe.split if plan else (),
        again=plan.recipe.again if plan else (),
        over_ranges=over_ranges,
    )


def _require_plan_fits(plan: MemoryPlan, graph: Graph, scratch: Sequence[tuple[str, int]], source: Model) -> None:
    """Raise PlanError for a plan of another graph or other kernels, PlanViolation for a wrong plan."""
    if plan.recipe.scratch != scratch:
        planned_bytes, needed_bytes = (
            max((nbytes for _, nbytes in sizes), default=0) for sizes in (plan.recipe.scratch, scratch)
        )
        raise PlanError(
            f"the kernels of {len(scratch)} nodes need scratch memory (largest: {needed_bytes:,} bytes); "
            f"the plan reserves scratch for {len(plan.recipe.scratch)} nodes (largest: {planned_bytes:,} bytes). "
            "Plan with these backends (sublet run --save-plan)"
        )
    if set(source.recipe.declared) - set(plan.recipe.declared):
        raise PlanError("the plan lacks types that the model's file declares. Plan the model again")
    if fingerprint(graph, plan.schedule) != plan.fingerprint:
        raise PlanError(f"the plan of {plan.graph!r} was made for another graph. Plan the model again")
    require_valid(graph, plan.schedule, plan)


def _reuse_first_choice(
    chosen: Kernels, arrays: Mapping[Value, Array], choose: MakeKernels, changing: Collection[Value]
) -> MakeKernels:
    """Return a function with the chosen kernels for the first call, and a new choice for every later call.

    The first call also chooses again if a weight has moved, because chosen kernels may have preprocessed the weight.
    Weights may have been changed in place before a later call. Kernels never see the content of `changing` weights.
    """
    unused = [chosen]

    def kernels(constants: Mapping[Value, Array]) -> Kernels:
        unmoved = all(_address_of(constants[value]) == _address_of(given) for value, given in arrays.items())
        visible = {value: content for value, content in constants.items() if value not in changing}
        return unused.pop() if unused and unmoved else choose(visible)

    return kernels


def _fastest_backends(
    source: Model, names: Sequence[str | Backend], constants: Mapping[Value, Array], workspace: int
) -> dict[str, str]:
    """Return the name of the fastest backend by node. The backends used for timing are dropped, with their sessions."""
    return Tuner(backends_of(names, source), source.opsets, workspace).choices(source.graph, constants)


def _weight_contents(model: Model, given: Mapping[str, Array]) -> dict[Any, Any]:
    """Return the content of every weight. Raises RunError for weights without content.

    In order of preference: the content passed by the caller, the content in the model, the literal of the value.
    """
    contents: dict[Any, Any] = {}
    missing: list[str] = []
    for value in model.graph.weights:
        if value.name in given:
            content = given.lend_weight(value.name) if isinstance(given, ExecutableWeights) else given[value.name]
            contents[value] = content_for(value, content, f"weight {value.name}")
        elif value.name in model.weights:
            contents[value] = _align_to_cache_line(model.weights[value.name].array())
        elif value.literal is not None and isinstance(value.spec, TensorSpec):
            contents[value] = np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
        else:
            missing.append(value.name)
    if missing:
        raise RunError(f"{len(missing)} weight(s) have no content: pass {known_names(missing)} in `weights`")
    return contents


def _assignable_weight_names(model: Model) -> set[str]:
    """Return the names of the weights assignable by the caller."""
    return {v.name for v in model.graph.weights if v.literal is None and v.name not in model.constants}


def _require_known(given: Collection[str], known: set[str]) -> None:
    """Raise RunError for a name without a weight, and suggest similar names.

    `compile` calls the function only if some weight of the model is not in `given`: a caller may pass more weights than
    the model has, as the weights of a training step to an evaluation.
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    left = sorted(known.difference(given))
    like = get_close_matches(unknown[0], left, 3)
    hint = f"did you mean {known_names(like)}?" if like else f"weights without content: {known_names(left)}"
    more = f" (and {len(unknown) - 1} more unknown names)" if len(unknown) > 1 else ""
    raise RunError(f"weights: there is no weight {printable(unknown[0])!r}{more}: {hint}")


def _address_of(content: Any) -> int | None:
    """Return the address of an array; None for other content."""
    return content.ctypes.data if isinstance(content, np.ndarray) else None


def _align_to_cache_line(array: Any) -> Any:
    """Return the array, copied to a multiple of the cache line if at least one line long.

    No vector load of a kernel then crosses a line.
    """
    if not isinstance(array, np.ndarray) or array.nbytes < CACHE_LINE_BYTES or array.dtype.hasobject:
        return array
    return aligned_or_copy(array, CACHE_LINE_BYTES).view(array.dtype).reshape(array.shape)


if TYPE_CHECKING:  # who runs a plan loads no planner
    from sublet.analysis.options import Options, Progress


@dataclass(frozen=True)
class CompileRequest:
    """The arguments of `sublet.compile`, which defines each of them."""

    model: Any
    _: KW_ONLY
    dims: Mapping[str, int] | None = None
    const: Mapping[str, Any] | None = None
    state: StatePairs | None = None
    max_trips: Trips = None
    backend: str | Backend | Sequence[str | Backend] = AUTO
    optimize: str = AUTO
    assume: Mapping[str, str] | None = None
    options: Options | None = None
    plan: MemoryPlan | None = None
    arena: Any = None
    weights: Mapping[str, Array] | None = None
    autotune: bool = False
    workspace: int = WORKSPACE_BYTES
    simplify: bool | None = None
    patches: str | None = None
    budget: int | str | None = None
    measure: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Raise PlanError for a plan of another type, such as the path of a plan file."""
        if self.plan is not None and not isinstance(self.plan, MemoryPlan):
            raise PlanError(f"plan={self.plan!r}: expected a MemoryPlan; read a plan file with `sublet.load`")

"""From a model and a plan to something that runs: read it, choose kernels, prove, bind. Nothing is planned here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sublet.api.sources import first_of, level, source_of
from sublet.base.errors import PlanError, RunError
from sublet.base.numpy_types import NUMPY
from sublet.base.printable import known_names, printable
from sublet.base.tensor import TensorSpec
from sublet.checker import require_valid
from sublet.frontends.trips import Trips
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.ir.scratch import with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.plan import MemoryPlan
from sublet.plan.file import fingerprint
from sublet.runtime.backends.by_name import AUTO, backends_of, names_of
from sublet.runtime.copying import byte_copies
from sublet.runtime.executable import Executable, MakeKernels
from sublet.runtime.given import content_for, in_place
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.kernels import Kernels, choose_kernels, scratch_of
from sublet.runtime.tuning import WORKSPACE_BYTES, Tuner
from sublet.runtime.weights import Weights
from sublet.runtime.workspace import bytes_in_use, growth

WIDE = 64
"""Bytes of a line of the cache. Convolutions are up to 15 % slower over weights that are not aligned to it."""


def with_plan(
    model: str | Path | WrittenGraph | Graph | Model | Any,
    plan: MemoryPlan,
    *,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    weights: Mapping[str, Array] | None = None,
    arena: Any = None,
) -> Executable:
    """An Executable of a model and a plan made elsewhere, as `compile` makes it. No planner is even loaded.

    The model is read with the dimensions and numbers of rounds that the plan was made for. Raises like `compile`.
    """
    dims, max_trips = dict(plan.dims), dict(plan.max_trips)
    ready = equipped(model, dims=dims, max_trips=max_trips, backend=backend, weights=weights, plan=plan)
    return ready.bound(ready.proven(plan), arena)


@dataclass(frozen=True)
class Equipped:
    """A model with kernels for all its nodes, and the scratch memory that they ask for.

    source     the model without that memory
    kernels    gives those that were chosen, and chooses anew where weights have changed
    contents   of the weights
    kept       bytes that backends allocated meanwhile and keep; None when nobody could tell
    lender     whose memory of weights is used, which may hold another content any time
    """

    model: Model
    source: Model
    kernels: MakeKernels
    contents: Mapping[Value, Any]
    kept: int | None
    lender: Weights | None = None

    def proven(self, plan: MemoryPlan) -> MemoryPlan:
        """The plan, made elsewhere. Raises PlanError unless it is of this graph, PlanViolation when it is wrong."""
        _require_right(plan, self.model.graph, self.model.recipe.scratch, self.source)
        return plan

    def bound(self, plan: MemoryPlan, arena: Any = None) -> Executable:
        """Bound to the memory of a plan that is proven; `arena` is memory to run in."""
        source = self.source
        executable = Executable(
            self.model.graph,
            plan,
            self.kernels,
            self.contents,
            source.inputs,
            source.outputs,
            self.kept,
            source.remark,
            source.constants,
        )
        for name in executable.updated if self.lender is not None else ():
            if self.lender is not None and name in self.lender and name in executable.weights:
                executable.bind(name, self.lender.lent(name))
        if arena is not None:
            executable.bind("arena", arena)
        return executable


def equipped(
    model: Any,
    *,
    dims: Mapping[str, int] | None = None,
    max_trips: Trips = None,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    optimize: str = AUTO,
    assume: Mapping[str, str] | None = None,
    weights: Mapping[str, Array] | None = None,
    plan: MemoryPlan | None = None,
    autotune: bool = False,
    workspace: int = WORKSPACE_BYTES,
    changed: str = "",
) -> Equipped:
    """A model as `compile` is given it, with its kernels; `plan` is the one that it will run in, when there is one.

    `changed` is what is done to its nodes, when there is none.
    """
    names = names_of(backend)
    source = to_run(
        model, dims, max_trips=max_trips, backend=backend, optimize=optimize, assume=assume, plan=plan, changed=changed
    )
    if isinstance(weights, dict) and weights.keys() - _names(source) and _names(source) - weights.keys():
        unchanged = to_run(model, dims, max_trips=max_trips, backend=backend, optimize=AS_IS, assume=assume)
        _require_known(weights, _names(source) | _names(unchanged))  # passes leave names out
    graph, told = source.graph, dict((*source.recipe.conditions, *(plan.assumed if plan else ())))
    backends = backends_of(names, source)
    contents = _weights(source, weights or {})
    lender = weights if isinstance(weights, Weights) else None
    changing = frozenset(v for v in graph.weights if lender is not None and v.name in lender)
    arrays = {v: contents[v] for v in graph.constants if isinstance(v.spec, TensorSpec) and v not in changing}
    preferred = _fastest(source, names, arrays, workspace) if autotune else {}
    for node in graph.walk():
        if not node.subgraphs:
            byte_copies(node)  # the tables of operators that this reads are no memory of a backend's
    in_use = bytes_in_use()
    choose = partial(choose_kernels, graph, backends, preferred=preferred, assumed=told)
    chosen = choose(arrays)
    kept = growth(in_use)
    scratch = scratch_of(chosen)
    recipe = replace(source.recipe, scratch=scratch)
    with_memory = replace(source, graph=with_scratch(graph, dict(scratch)), recipe=recipe)
    return Equipped(with_memory, source, _chosen_once(chosen, arrays, choose, changing), contents, kept, lender)


def to_run(
    model: Any,
    dims: Mapping[str, int] | None = None,
    *,
    max_trips: Trips = None,
    backend: str | Backend | Sequence[str | Backend] = AUTO,
    optimize: str = AUTO,
    assume: Mapping[str, str] | None = None,
    plan: MemoryPlan | None = None,
    changed: str = "",
) -> Model:
    """The model that `compile` runs when it is given these: an optimiser keeps no names that shapes are assumed of."""
    wanted = level(AS_IS if assume and optimize == AUTO else optimize, first_of(names_of(backend)), plan)
    changed, assume = (plan.recipe.changed, dict(plan.recipe.assumed)) if plan else (changed, assume)
    split, again = (plan.recipe.split, plan.recipe.again) if plan else ((), ())
    return source_of(
        model, dims, max_trips=max_trips, optimize=wanted, changed=changed, assume=assume, split=split, again=again
    )


def _require_right(plan: MemoryPlan, graph: Graph, asked: Sequence[tuple[str, int]], source: Model) -> None:
    """Raise PlanError unless a plan made elsewhere is for this graph and kernels, PlanViolation when it is wrong."""
    if plan.recipe.scratch != asked:
        had, now = (max((nbytes for _, nbytes in several), default=0) for several in (plan.recipe.scratch, asked))
        raise PlanError(
            f"the kernels of {len(asked)} nodes ask for scratch memory, {now:,} bytes at most; the plan has some "
            f"for {len(plan.recipe.scratch)} nodes, {had:,} bytes at most: plan with these backends "
            "(sublet run --save-plan)"
        )
    if set(source.recipe.declared) - set(plan.recipe.declared):
        raise PlanError("the plan leaves out types that only the model's file declares: plan it again")
    if fingerprint(graph, plan.schedule) != plan.fingerprint:
        raise PlanError(f"the plan of {plan.graph!r} was not made for this graph: plan the model again")
    require_valid(graph, plan.schedule, plan)


def _chosen_once(
    chosen: Kernels, arrays: Mapping[Value, Array], choose: MakeKernels, changing: Collection[Value]
) -> MakeKernels:
    """Gives what was chosen before, if the weights lie where they lay; later they may have been changed in place.

    What those hold that are `changing` kernels are never shown.
    """
    left = [chosen]

    def kernels(constants: Mapping[Value, Array]) -> Kernels:
        there = all(_address(constants[value]) == _address(given) for value, given in arrays.items())
        shown = {value: content for value, content in constants.items() if value not in changing}
        return left.pop() if left and there else choose(shown)

    return kernels


def _fastest(
    source: Model, names: Sequence[str | Backend], constants: Mapping[Value, Array], workspace: int
) -> dict[str, str]:
    """The fastest backend by node. The backends made for it are dropped again, with the sessions they opened."""
    return Tuner(backends_of(names, source), source.opsets, workspace).choices(source.graph, constants)


def _weights(model: Model, given: Mapping[str, Array]) -> dict[Any, Any]:
    contents: dict[Any, Any] = {}
    missing: list[str] = []
    for value in model.graph.weights:
        if value.name in given:
            content = given.lent(value.name) if isinstance(given, Weights) else given[value.name]
            contents[value] = content_for(value, content, f"weight {value.name}")
        elif value.name in model.weights:
            contents[value] = _aligned(model.weights[value.name].array())
        elif value.literal is not None and isinstance(value.spec, TensorSpec):
            contents[value] = np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
        else:
            missing.append(value.name)
    if missing:
        raise RunError(f"{len(missing)} weight(s) have no content: give {known_names(missing)} in `weights`")
    return contents


def _names(model: Model) -> set[str]:
    """Of what may be given for weights."""
    return {v.name for v in model.graph.weights if v.literal is None and v.name not in model.constants}


def _require_known(given: Collection[str], known: set[str]) -> None:
    """Raise RunError for contents of weights that there are not, with names that are like theirs.

    Who gives all that the network has may give more: the weights of a training step to its evaluation.
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    left = sorted(known.difference(given))
    like = get_close_matches(unknown[0], left, 3)
    hint = f"did you mean {known_names(like)}?" if like else f"not given are {known_names(left)}"
    more = f", and {len(unknown) - 1} more that there are not" if len(unknown) > 1 else ""
    raise RunError(f"weights: there is no weight {printable(unknown[0])!r}{more}: {hint}")


def _address(content: Any) -> int | None:
    return content.ctypes.data if isinstance(content, np.ndarray) else None


def _aligned(array: Any) -> Any:
    """The array, moved to where kernels read it fastest: a vector should not lie across two lines of the cache."""
    if not isinstance(array, np.ndarray) or array.nbytes < WIDE or array.dtype.hasobject:
        return array
    return in_place(array, WIDE).view(array.dtype).reshape(array.shape)

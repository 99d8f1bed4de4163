"""A training step as one graph: forward, backward and update, planned and run like any other graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sublet.analysis.options import Options
from sublet.base.errors import CapacityError, GradientError, SpecError
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.dataflow import required_values
from sublet.ir.graph import Graph, Value, While
from sublet.ir.model import Model, as_model
from sublet.ir.recipe import with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.nn.graph import graph_of
from sublet.nn.source_location import at_line, user_line
from sublet.nn.tensor import Tensor, describe
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import (
    PLAIN,
    SQRT,
    TREE,
    Checkpoints,
    active_values,
    backward,
    is_differentiable,
    with_zeros,
)
from sublet.passes.pass_pipeline import run_passes, simplify
from sublet.passes.reordering import with_lower_peak
from sublet.passes.sinking import with_late_updates
from sublet.planning.budget.result import BudgetResult, SearchOutcome, parse_budget
from sublet.planning.budget.search import BudgetSearch, ModelPreparation, as_source
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends import AUTO, backend_names, backends_of
from sublet.runtime.kernel import Array
from sublet.runtime.kernel_choice import choose_kernels, scratch_of
from sublet.training.micro_batches import accumulated_gradients
from sublet.training.optimizers import Optimizer

QUICK_STRATEGY = "best_fit_by_size"
"""The packing strategy for judging orders: fast, and good enough to compare."""


def gradients(
    of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None, *, checkpoint: Checkpoints = None
) -> list[Tensor]:
    """Return the gradients of `of` with respect to each tensor in `wrt`, of the shapes and types of `wrt`.

    The gradients are appended to the graph, and can be differentiated again. `seed` is the gradient of `of` itself, 1
    everywhere by default. A tensor without influence on `of` has a gradient of zeros. Inside a loop or branch, only
    nodes of the loop or branch are differentiated: `of` must not depend on `wrt` through nodes outside.

    `checkpoint` selects the data stored by loops for their gradients, if the number of iterations is a constant: every
    iteration ("plain"); the begin of every k-th iteration, with the iterations between recomputed (an integer k, or
    "sqrt" for about the root of the number of iterations); or a tree of segments in segments ("tree"). The gradients
    are the same. A dict selects by the names of loops.

    Raises GradientError, beginning with the user's line, for a dependence through outer nodes; for a value without
    floating-point elements, or a random value; for a command without a gradient between `wrt` and `of`; and for a seed
    of another shape or type than `of`. Raises SpecError for `checkpoint` with a dynamic graph.
    """
    graph = graph_of(of)
    if not isinstance(graph, WrittenGraph):
        if checkpoint is not None:
            raise SpecError(at_line("`checkpoint` is not supported by a dynamic graph: leave it out"))
        return graph.gradients(of, _tensor_list(wrt), seed)
    target, values = graph.value_of(of), [graph.value_of(tensor) for tensor in _tensor_list(wrt)]
    start = None if seed is None else graph.value_of(seed)
    if start is not None and start.spec != target.spec:
        raise GradientError(at_line(f"the seed {describe(seed)} must have the shape and type of {describe(of)}"))
    emit = graph.emit
    with graph.rollback_on_error():
        emit.source = user_line()
        try:
            _require_local_dependence(graph, target, values)
            start = start or emit.full(1, spec_of(target))
            partial = backward(emit, tuple(emit.nodes), {target: start}, values, checkpoint)
        except GradientError as error:
            raise GradientError(at_line(str(error))) from None
        complete = with_zeros(emit, partial, values)
    return [graph.tensor_of(value) for value in complete]


def _require_local_dependence(graph: WrittenGraph, target: Value, values: Sequence[Value]) -> None:
    """Raise GradientError if `target` depends on `values` through nodes outside of the open loop or branch."""
    inside = graph.emit.nodes
    outer = active_values([node for emit in graph.enclosing_emitters for node in emit.nodes], values).difference(values)
    read = [target, *(value for node in inside for value in required_values(node))]
    via = next((value for value in read if value in outer and target in active_values(inside, [value])), None)
    if via is not None:
        raise GradientError(
            f"%{target.name} depends on `wrt` through %{via.name}, which is computed outside of this loop or branch: "
            f"compute %{via.name} inside, or differentiate with respect to %{via.name}"
        )


def train_step(
    loss: Tensor,
    parameters: Sequence[Tensor],
    optimizer: Optimizer,
    *,
    name: str = "loss",
    checkpoint: Checkpoints = None,
    micro_batches: int | Sequence[int] = 1,
    smaller_statistics: bool = False,
    budget: int | str | None = None,
) -> Model:
    """Return a model of one training step: compute `loss`, a scalar, and let `optimizer` update `parameters` in place.

    The model is for `sublet.compile` or `sublet.plan_memory`; each run returns the outputs of the graph, and the loss
    under `name`. Each gradient is consumed as early as the data flow allows; where the memory stays the same, updates
    run at the end of the step: a run that fails earlier leaves the parameters unchanged.

    checkpoint     the data stored by loops, see `gradients`
    micro_batches  the number of parts of the batch, processed by a loop over views of the inputs; loss and gradients
                   equal those of the whole batch except for rounding. All read inputs with an axis must have the batch
                   as their first axis, and commands must compute sample by sample. Dropout draws from another key in
                   each part. A sequence of numbers gives choices for the budget
    smaller_statistics   allow batch normalisation over micro-batches; otherwise batch normalisation is refused
    budget         the maximum bytes of the arena planned by `sublet.compile` by default, kernels' scratch memory
                   included. Values are recomputed, and loops stored, for the least predicted time (docs/budget.md)

    Raises CapacityError if no step within the budget exists or was found; GradientError for a loss or parameter without
    a gradient; SpecError for bad arguments. The graph is unchanged after an error.
    """
    graph = graph_of(loss)
    if not isinstance(graph, WrittenGraph):
        raise SpecError(
            at_line(
                "train_step needs a static graph; for a dynamic graph call d.minimize(loss, optimizer) in each step"
            )
        )
    chosen = _tensor_list(parameters)
    if loss.shape != ():
        raise GradientError(at_line(f"the loss is {describe(loss)}: expected one number, such as its mean"))
    if not chosen:
        raise GradientError(at_line("there are no parameters to train"))
    if isinstance(optimizer, type) or not hasattr(optimizer, "write"):
        raise SpecError(at_line(f"{optimizer!r} is not an optimiser: pass one like sublet.SGD(0.1)"))

    def write(stored: Checkpoints, parts: int) -> None:
        graph.output(name, loss)
        _require_dependence(graph, loss, chosen)
        if parts > 1:
            gradient_list = accumulated_gradients(graph, loss, chosen, parts, smaller_statistics=smaller_statistics)
        with graph.scope(graph.unused_scope_name("step")):
            gradient_list = gradient_list if parts > 1 else gradients(loss, chosen, checkpoint=stored)
            optimizer.write(graph, chosen, gradient_list)

    batches = _part_counts(micro_batches)
    if budget is None and len(batches) > 1:
        raise SpecError(
            at_line(f"micro_batches={micro_batches!r} lists choices for a budget: pass one number, or `budget`")
        )

    with graph.rollback_on_error():
        if budget is None:
            write(checkpoint, *batches)
            return finish_step(graph)
        return _cheapest_step(graph, write, _step_variants(graph, checkpoint, batches), budget)


def _cheapest_step(
    graph: WrittenGraph,
    write: Callable[[Checkpoints, int], None],
    ways: Mapping[str, tuple[Checkpoints, int]],
    budget: int | str,
) -> Model:
    """Return the cheapest step within the budget, and write the step to the graph."""
    trials = {way: partial(build_and_roll_back, graph, partial(write, *how), finish_step) for way, how in ways.items()}
    way, step = cheapest_fitting_step(trials, budget)
    write(*ways[way])
    return step


def finish_step(source: WrittenGraph | Graph | Model, *, keep_equal: bool = False) -> Model:
    """Return a step as `train_step` does: with less memory, and updates at the end where the memory stays the same.

    `keep_equal` keeps equal nodes apart, see `less_memory`.
    """
    step = less_memory(source, keep_equal=keep_equal)
    return replace(step, graph=with_late_updates(step.graph, _planned_bytes))


def _step_variants(
    graph: WrittenGraph, checkpoint: Checkpoints, batches: Sequence[int]
) -> dict[str, tuple[Checkpoints, int]]:
    """Return the ways to write the step (checkpoints, number of micro-batches) by description, the plainest first."""
    ways: dict[str, tuple[Checkpoints, int]] = {}
    for parts in batches:
        loop_choices = checkpoint is None and parts == 1 and _has_loops(graph)
        batch_words = f"{parts} micro-batches" if parts > 1 else "the whole batch"
        for stored in (PLAIN, SQRT, TREE) if loop_choices else (checkpoint,):
            ways[f"{batch_words}, loops stored {stored}" if loop_choices else batch_words] = stored, parts
    return ways


def _part_counts(given: int | Sequence[int]) -> list[int]:
    """Return the given numbers of micro-batches in ascending order. Raises SpecError unless positive integers."""
    numbers = [given] if isinstance(given, int) else list(given)
    if not numbers or not all(type(number) is int and number >= 1 for number in numbers):
        raise SpecError(at_line(f"micro_batches={given!r} must be an integer >= 1, or a list of such integers"))
    return sorted(set(numbers))


def _tensor_list(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a list of tensors. Raises SpecError for a single tensor."""
    if isinstance(tensors, Tensor):
        raise SpecError(at_line(f"{describe(tensors)} is one tensor: pass a list of tensors"))
    return list(tensors)


def _has_loops(graph: WrittenGraph) -> bool:
    """True if the graph has loops, inside branches too."""
    waiting = list(graph.emit.nodes)
    for node in waiting:
        waiting.extend(inner for sub in node.subgraphs for inner in sub.nodes)
    return any(isinstance(node, While) for node in waiting)


def _require_dependence(graph: WrittenGraph, loss: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise GradientError if the loss depends on none of the parameters."""
    values = [graph.value_of(tensor) for tensor in parameters]
    if is_differentiable(loss.value) and loss.value not in active_values(graph.emit.nodes, values):
        raise GradientError(at_line(f"the loss {describe(loss)} depends on none of the parameters"))


def less_memory(source: WrittenGraph | Graph | Model, *, keep_equal: bool = False) -> Model:
    """Return an equivalent model with less memory: simplified, fused, with late constants, re-slicing, and reordered.

    `train_step` ends with `less_memory`. Use the function for models read from files, and for graphs with own gradients
    and updates; results stay the same. With loops or branches, orders are judged by planning, as estimates know less.
    `keep_equal` keeps nodes of equal op, inputs and attributes apart: one of the nodes computes a value again, so that
    the value needs no memory in between.
    """
    model = as_model(source)
    graph = run_passes(simplify(model.graph, order=False, keep_equal=keep_equal), ["late-constants", "recall"])
    planned = any(node.subgraphs for node in graph.nodes)
    recipe = replace(model.recipe, changed=less_memory.__name__)
    return replace(model, graph=with_lower_peak(graph, _planned_bytes if planned else None), recipe=recipe)


def _planned_bytes(graph: Graph) -> tuple[int, int]:
    """Return the arena of a quick packing, and a lower bound, in bytes."""
    plan = plan_memory(graph, Options(strategy=QUICK_STRATEGY, io="bound"))
    return plan.arena_bytes, plan.lower_bound_bytes


# Selection among several ways to write one training step: the cheapest step within a memory budget.


class _RollBack(Exception):
    """Raised to undo a trial writing."""


def build_and_roll_back(
    graph: WrittenGraph, write: Callable[[], None], build: Callable[[WrittenGraph], Model]
) -> Model:
    """Let `write` write to a graph, return the result of `build` for the written graph, and undo the writing."""
    models: list[Model] = []
    try:
        with graph.rollback_on_error():
            write()
            models.append(build(graph))
            raise _RollBack
    except _RollBack:
        return models[0]


def cheapest_fitting_step(ways: Mapping[str, Callable[[], Model]], budget: int | str) -> tuple[str, Model]:
    """Return the name of the way with the least predicted time within a budget, and its model with recomputed nodes.

    The budget bounds the arena planned by `sublet.compile` by default, with scratch memory of the kernels; the returned
    model itself has no scratch. The first way is the plainest: if its plain plan fits, no other way is tried. Raises
    CapacityError, with the reason, if no way fits: for the way with the smallest arena, of the ways not proven
    impossible if there are any.
    """
    answers: dict[str, BudgetResult] = {}
    sources: dict[str, Model] = {}
    for name, make in ways.items():
        answers[name], sources[name] = _search_budget(make(), parse_budget(budget))
        if answers[name].outcome is SearchOutcome.FITS and not answers[name].program.is_changed:
            break
    fitting = {name: answer.program for name, answer in answers.items() if answer.outcome is SearchOutcome.FITS}
    if fitting:
        name = min(fitting, key=lambda name: (fitting[name].seconds, fitting[name].plan.arena_bytes))
        return name, as_source(sources[name]) if fitting[name].is_changed else sources[name]
    possible = [name for name, answer in answers.items() if answer.outcome is SearchOutcome.NOT_FOUND]
    name = min(possible or answers, key=lambda name: answers[name].program.plan.arena_bytes)
    which = "" if len(ways) == 1 else f" ({name}, the smallest of {len(ways)} variants of the step)"
    raise CapacityError(f"{answers[name].words}{which}")


def _search_budget(source: Model, budget: int) -> tuple[BudgetResult, Model]:
    """Return the result of the budget search, and the selected model without scratch."""
    sources: dict[tuple[object, object], Model] = {}

    def ready(model: Model) -> Model:
        sources[model.recipe.split, model.recipe.again] = model
        return with_kernel_scratch(model)

    answer = BudgetSearch(ready(source), preparation=ModelPreparation(source, ready)).best_within(budget)
    recipe = answer.program.model.recipe
    return answer, sources[recipe.split, recipe.again]


def with_kernel_scratch(model: Model) -> Model:
    """Return the model with the scratch memory requested by the kernels of the installed backends."""
    constants = {
        value: content for value in model.graph.constants if (content := _constant_content(model, value)) is not None
    }
    backends = backends_of(backend_names(AUTO), model)
    scratch = scratch_of(choose_kernels(model.graph, backends, constants, assumed=dict(model.recipe.conditions)))
    recipe = replace(model.recipe, scratch=scratch)
    return replace(model, graph=with_scratch(model.graph, dict(scratch)), recipe=recipe)


def _constant_content(model: Model, value: Value) -> Array | None:
    """Return the elements of a constant; None for a weight without content."""
    if value.name in model.weights:
        return model.weights[value.name].array()
    if value.literal is not None and isinstance(value.spec, TensorSpec):
        return np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
    return None

"""Selection among several ways to write one training step: the cheapest step within a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sublet.base.errors import CapacityError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.ir.scratch import with_scratch
from sublet.nn.graph import Graph as WrittenGraph
from sublet.planning.budget.result import BudgetResult, SearchOutcome, parse_budget
from sublet.planning.budget.search import BudgetSearch, ModelPreparation, as_source
from sublet.runtime.backends.registry import AUTO, backend_names, backends_of
from sublet.runtime.kernel import Array
from sublet.runtime.kernel_choice import choose_kernels, scratch_of


class _RollBack(Exception):
    """Raised to undo a trial writing."""


def build_and_roll_back(graph: WrittenGraph, write: Callable[[], None], build: Callable[[WrittenGraph], Model]) -> Model:
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
    CapacityError, with the reason, for the way with the smallest arena if no way fits.
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
    name = min(answers, key=lambda name: answers[name].program.plan.arena_bytes)
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

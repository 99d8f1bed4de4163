"""Random training steps with loops and branches: planned and in poison they do what they do unplanned.

python -m tests.fuzz --kind steps --seconds 600 --seed 1
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import RunError
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.checker import check_bytes
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.ops.verify import verify
from sublet.packing import STRATEGIES
from sublet.passes.autodiff import gradients
from sublet.passes.pass_pipeline import simplify
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import is_without_fallback
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.differential import compare
from sublet.runtime.executable import Executable
from sublet.runtime.kernel_choice import choose_kernels
from sublet.training.step import less_memory
from tests.passes import differentiable, programs
from tests.support.plan_mutants import mutants
from tests.support.plans import told_anew

UNPLANNED = Options(strategy="no_reuse", share=False)
RATE = 0.125


@dataclass(frozen=True)
class Step:
    """A graph with updates, what it starts from, and what it is fed."""

    graph: Graph
    weights: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @property
    def outputs(self) -> tuple[str, ...]:
        """A value may be several of them."""
        return tuple(map(str, range(len(self.graph.outputs))))

    def compiled(self, options: Options) -> Executable:
        model = Model(self.graph, inputs=tuple(value.name for value in self.graph.inputs), outputs=self.outputs)
        return compile(model, weights=dict(self.weights), options=options, backend="reference")

    def believing(self, graph: Graph, plan: MemoryPlan) -> Executable:
        """Runs a plan whatever it claims, which compiling refuses: what was judged are its bytes."""
        contents = {
            value: self.weights[value.name]
            if value.literal is None
            else np.array(value.literal, NUMPY[spec_of(value).dtype]).reshape(spec_of(value).shape)
            for value in graph.weights
        }
        return Executable(
            graph,
            plan,
            lambda constants: choose_kernels(graph, [ReferenceBackend()], constants),
            contents,
            outputs=self.outputs,
        )


def training_step(rng: random.Random, seed: int) -> Step:
    """A random program, its gradients by some inputs, which become weights, and updates of these by them."""
    graph, feeds = differentiable.program(seed, size=rng.choice((2, 3, 4)), depth=rng.choice((1, 2, 2)))
    trained = [value for value in graph.inputs if value.name in ("x", "y", "w") and rng.random() < 0.7]
    trained = trained or [graph.inputs[0]]
    kept = tuple(value for value in graph.inputs if value not in trained)
    targets = [value for value in graph.outputs if rng.random() < 0.7] or list(graph.outputs)
    given = replace(graph, inputs=kept, weights=(*trained, *graph.weights))
    made, grads = gradients(given, targets, trained)
    emit = Emitter.from_graph(made)
    stepped = [updated(rng, emit, *pair) for pair in zip(trained, grads, strict=True)]
    made = replace(
        made,
        nodes=tuple(emit.nodes),
        outputs=graph.outputs if rng.random() < 0.7 else made.outputs,
        weights=(*made.weights, *emit.literals.added),
        updates=tuple(zip(trained, stepped, strict=True)),
    )
    verify(made)
    if rng.random() < 0.8:
        made = less_memory(Model(made)).graph
    names = {value.name for value in made.inputs}
    weights = {value.name: feeds[value.name] for value in made.weights if value.literal is None}
    return Step(made, weights, {name: content for name, content in feeds.items() if name in names})


def updated(rng: random.Random, emit: Emitter, weight: Value, gradient: Value) -> Value:
    """The weight after the step: by the command of an optimiser, or by commands."""
    if rng.random() < 0.5:
        return emit("nn.sgd", weight, gradient, emit.full(RATE, TensorSpec(DType.F32)))
    return emit("nn.sub", weight, emit("nn.mul", gradient, emit.full(RATE, spec_of(weight))))


def written_program(rng: random.Random, seed: int) -> Step:
    """A random program of loops, branches and updates, as it is written or simplified."""
    graph = programs.program(seed, rng.choice((10, 20, 40)))
    if rng.random() < 0.5:
        graph = simplify(graph)
    numbers = np.random.default_rng(seed)

    def content(value: Value) -> Any:
        spec = spec_of(value)
        whole = numbers.integers(-1, 4, spec.shape) if spec.dtype is DType.I64 else numbers.uniform(-2, 2, spec.shape)
        return np.asarray(whole, NUMPY[spec.dtype])

    weights = {value.name: content(value) for value in graph.weights if value.literal is None}
    return Step(graph, weights, {value.name: content(value) for value in graph.inputs})


def options(rng: random.Random, strategy: str) -> Options:
    """Random ways to plan."""
    return Options(
        strategy=strategy,
        alignment=rng.choice((1, 8, 8, 64)),
        io=rng.choice(("arena", "bound")),
        weights=rng.choice(("arena", "bound")),
        streams=rng.choice((1, 1, 1, 2, 3)),
        in_place_from=rng.choice((0, 0, 8, None)),
    )


def check_step(seed: int, plans: int = 3) -> Iterator[tuple[str, bool]]:
    """One step planned in several ways, run and compared; (kind of mutant, whether it was accepted) for each mutant.

    Raises AssertionError that names the seed.
    """
    rng = random.Random(seed)
    step = (training_step if rng.random() < 0.7 else written_program)(rng, seed)
    unplanned = step.compiled(UNPLANNED)
    for number in range(plans):
        chosen = options(rng, rng.choice((*STRATEGIES, "auto")))
        where = f"seed {seed}, {chosen}"
        try:
            planned = step.compiled(chosen)
        except Exception as error:
            raise AssertionError(f"{where}: {error}") from error
        assert is_without_fallback(planned.plan), f"{where}: the checker could not follow"
        if not runs_right(step, unplanned, planned):
            raise AssertionError(f"{where}: the planned run is wrong")
        if number == 0:
            yield from judged(where, rng, step, unplanned, planned)


def runs_right(step: Step, unplanned: Executable, planned: Executable) -> bool:
    """Whether two runs, one after the other, agree in all bits however they are planned."""
    for _ in range(2 if step.graph.updates else 1):
        if compare(unplanned, planned, step.inputs).differences:
            return False
        planned(step.inputs)
    return True


def judged(
    where: str, rng: random.Random, step: Step, unplanned: Executable, planned: Executable
) -> Iterator[tuple[str, bool]]:
    """Every mutant of a plan that the checker accepts must run, and run right."""
    graph = planned.graph
    for kind, mutant in mutants(rng, planned.plan):
        accepted = not check_bytes(graph, mutant.schedule, mutant)
        if accepted:
            mutant = told_anew(graph, mutant)
            try:
                right = runs_right(step, unplanned, step.believing(graph, mutant))
            except RunError as error:
                raise AssertionError(f"{where}, mutant {kind}: {error}") from error
            assert right, f"{where}: the checker accepts a wrong plan, mutant {kind}"
        yield kind, accepted

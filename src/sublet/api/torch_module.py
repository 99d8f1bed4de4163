"""A network as a module of PyTorch's: tensors go in and come out where they lie, and gradients flow through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.arrays import array_of, torch_over
from sublet.base.errors import RunError, SpecError
from sublet.base.extras import require
from sublet.base.forks import fork_lock
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.nn.graph import Graph as WrittenGraph
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff import differentiable, gradients
from sublet.passes.pipeline import simplify
from sublet.runtime.executable import Executable


def torch_module(graph: WrittenGraph, **how: Any) -> Any:
    """A `torch.nn.Module` that computes a graph; its parameters are those of the graph, and can be trained.

    It is called with the inputs of the graph, in their order or by name, and gives its output, or a tuple of several.
    Contiguous tensors on the CPU are read where they are, others are copied first; what comes out is memory of its own,
    which is kept without a copy. The backward pass is a plan of its own, which computes the forward pass again, so that
    nothing waits in memory between the two. `how` goes to `sublet.compile`.
    Raises SpecError for a graph that updates something, GradientError where something on the way has no gradient.
    """
    torch = require("torch", extra="torch")
    model = graph.model()
    if model.graph.updates:
        names = ", ".join(value.name for value in model.graph.updated[:5])
        raise SpecError(f"the graph updates {names}: PyTorch would not know; leave states and random numbers out")
    trained = [tensor.value for tensor in graph.parameters]
    passes = _Passes(model, trained, how)

    class Run(torch.autograd.Function):  # type: ignore[name-defined, misc]
        """The forward and the backward pass as one function of all tensors."""

        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            ctx.save_for_backward(*tensors)
            made = passes.forward.run([*tensors])
            ctx.mark_non_differentiable(*(t for t in made if not t.is_floating_point()))
            return made

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *seeds: Any) -> Any:
            wanted = [seed for seed, is_seeded in zip(seeds, passes.seeded, strict=True) if is_seeded]
            found = iter(passes.backward.run([*ctx.saved_tensors, *wanted]))
            return tuple(next(found) if has else None for has in passes.differentiated)

    class Module(torch.nn.Module):  # type: ignore[name-defined, misc]
        """The graph as a layer."""

        def __init__(self) -> None:
            super().__init__()
            self.passes = passes
            for value in trained:
                content = torch_over(passes.content(value)).clone()
                self.register_parameter(_attribute(value.name), torch.nn.Parameter(content))

        def forward(self, *given: Any, **named: Any) -> Any:
            tensors = _ordered(model.inputs, given, named)
            made = Run.apply(*tensors, *(getattr(self, _attribute(value.name)) for value in trained))
            return made if len(made) > 1 else made[0]

        def extra_repr(self) -> str:
            return f"{', '.join(model.inputs)} -> {', '.join(model.outputs)}"

    return Module()


def _attribute(name: str) -> str:
    """A name that PyTorch lets a parameter have."""
    return name.replace(".", "_")


def _ordered(names: Sequence[str], given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    both = {**dict(zip(names, given, strict=False)), **named}
    if len(given) > len(names) or len(both) != len(given) + len(named) or set(both) != set(names):
        raise RunError(f"the module takes {', '.join(names)}, each once, in this order or by name")
    return [both[name] for name in names]


class _Passes:
    """The two executables.

    differentiated   for each tensor that goes in, whether it has a gradient
    seeded           for each output, whether it is given one
    """

    def __init__(self, model: Model, trained: Sequence[Value], how: dict[str, Any]) -> None:
        self._model = model
        graph = model.graph
        fixed = tuple(value for value in graph.weights if value not in trained)
        whole = replace(graph, inputs=(*graph.inputs, *trained), weights=fixed)
        wanted = [value for value in whole.inputs if differentiable(value)]
        outputs = [value for value in graph.outputs if differentiable(value)]
        self.differentiated = [value in wanted for value in whole.inputs]
        self.seeded = [value in outputs for value in graph.outputs]
        seeds = [Value(f"seed.{number}", value.spec) for number, value in enumerate(outputs)]
        joint, found = gradients(replace(whole, inputs=(*whole.inputs, *seeds)), outputs, wanted, seeds)
        self.forward = _Pass(whole, model, how)
        self.backward = _Pass(replace(joint, outputs=found), model, how)

    def content(self, value: Value) -> Any:
        """What a parameter holds at first. Raises RunError when the graph does not say."""
        if value.name not in self._model.weights:
            raise RunError(f"the parameter {value.name!r} has no content: give it an initial one")
        return self._model.weights[value.name].array()


class _Pass:
    """An executable whose inputs are bound to tensors, and whose outputs are held."""

    def __init__(self, graph: Graph, model: Model, how: dict[str, Any]) -> None:
        graph = simplify(_with_own_outputs(graph))
        self._inputs = [f"in.{number}" for number in range(len(graph.inputs))]
        self._outputs = [f"out.{number}" for number in range(len(graph.outputs))]
        self._specs = [value.spec for value in graph.inputs]
        names = {value.name for value in graph.weights}
        weights = {name: content for name, content in model.weights.items() if name in names}
        given = Model(graph, weights=weights, inputs=tuple(self._inputs), outputs=tuple(self._outputs))
        options = replace(how.get("options") or Options(), io="bound")
        self.executable: Executable = compile(given, **{**how, "options": options}).outputs_as("torch")
        self._lock = fork_lock()

    def run(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, each in memory of its own."""
        with self._lock:
            for name, spec, tensor in zip(self._inputs, self._specs, tensors, strict=True):
                assert isinstance(spec, TensorSpec)
                self.executable.bind(name, array_of(tensor.detach().contiguous(), name))
            views = self.executable.views()
            return tuple(views.hold(name) for name in self._outputs)


def _with_own_outputs(graph: Graph) -> Graph:
    """The graph, each of whose outputs is computed and no other's."""
    emit = Emitter.of(graph)
    taken = {*graph.inputs, *graph.weights}
    outputs: list[Value] = []
    for value in graph.outputs:
        outputs.append(emit("nn.copy", value) if value in taken else value)
        taken.add(value)
    weights = (*graph.weights, *emit.literals.added)
    return replace(graph, nodes=tuple(emit.nodes), outputs=tuple(outputs), weights=weights)

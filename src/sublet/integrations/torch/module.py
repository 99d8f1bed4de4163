"""PyTorch networks as models (`sublet.from_torch`), and graphs as `torch.nn.Module`.

import sublet
model = sublet.from_torch(module.eval(), (x,))
run = sublet.compile(model)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.arrays import array_of, torch_over
from sublet.base.errors import ModelError, RunError, SpecError
from sublet.base.interrupts import fork_lock
from sublet.base.optional_imports import require
from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.reader.exported_program import error_summary, from_exported, silence_tracing
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.nn.graph import Graph as WrittenGraph
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff import gradients, is_differentiable
from sublet.passes.pass_pipeline import simplify
from sublet.runtime.executable import Executable

__all__ = ["from_torch"]


def from_torch(source: Any, example: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Model:
    """Return a PyTorch network as a model, by `torch.export`.

    The model uses the module's weights in place, without a copy. A run of the model updates the buffers changed by a
    run of the module. `torch.cond`, `while_loop` and `scan` become branches and loops of the model. Views cost no
    memory and no time.

    Args:
        source: an ExportedProgram, or a module to export with the arguments `example` and `kwargs`.
        example: positional arguments, a tuple of tensors with the shapes of every later run.
        kwargs: keyword arguments.

    Raises:
        ModelError: for a network impossible to export or to plan, with the line of the user's program if known.
        MissingExtraError: without PyTorch.
    """
    t = require("torch", extra="torch")
    if isinstance(source, t.export.ExportedProgram):
        return from_exported(source)
    if not isinstance(source, t.nn.Module):
        raise ModelError(f"{type(source).__name__} is no network of PyTorch: give a module, or an ExportedProgram")
    if not isinstance(example, tuple | list):
        raise ModelError("give the arguments of the module as a tuple: from_torch(module, (x,))")
    try:
        with silence_tracing():
            program = t.export.export(source, tuple(example), dict(kwargs or {}))
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"{type(source).__name__}: torch.export refuses it: {error_summary(error)}") from error
    return from_exported(program, type(source).__name__)


# A graph as a `torch.nn.Module`: tensors without copies where possible, and gradients by autograd.


def torch_module(graph: WrittenGraph, **how: Any) -> Any:
    """Return a `torch.nn.Module` computing a graph, with the trainable parameters of the graph.

    The module is called with the inputs of the graph, in order or by name, and returns the output, or a tuple of
    outputs. Contiguous CPU tensors are read in place; other tensors are copied first. Every output has its own memory,
    returned without a copy. The backward pass has a separate plan and recomputes the forward pass, so no activations
    are kept between the passes. `how` are the keyword arguments of `sublet.compile`.

    Raises SpecError for a graph with updates, GradientError for a command without a gradient, RunError for a parameter
    without initial content, and the errors of `sublet.compile`.
    """
    torch = require("torch", extra="torch")
    model = graph.model()
    if model.graph.updates:
        names = ", ".join(value.name for value in model.graph.updated_values[:5])
        raise SpecError(
            f"the graph updates {names}, which a PyTorch module cannot do: leave out states and random numbers"
        )
    trained = [tensor.value for tensor in graph.parameters]
    passes = _Passes(model, trained, how)

    class GraphFunction(torch.autograd.Function):  # type: ignore[name-defined, misc]
        """The forward and the backward pass as one autograd function of all inputs and parameters."""

        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            ctx.save_for_backward(*tensors)
            outputs = passes.forward.run([*tensors])
            ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
            return outputs

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *seeds: Any) -> Any:
            wanted = [seed for seed, is_seeded in zip(seeds, passes.seeded, strict=True) if is_seeded]
            remaining = iter(passes.backward.run([*ctx.saved_tensors, *wanted]))
            return tuple(next(remaining) if has else None for has in passes.differentiated)

    class SubletModule(torch.nn.Module):  # type: ignore[name-defined, misc]
        """The graph as a layer."""

        def __init__(self) -> None:
            super().__init__()
            self.passes = passes
            for value in trained:
                content = torch_over(passes.initial_content(value)).clone()
                self.register_parameter(_attribute_name(value.name), torch.nn.Parameter(content))

        def forward(self, *given: Any, **named: Any) -> Any:
            tensors = _inputs_in_order(model.inputs, given, named)
            outputs = GraphFunction.apply(*tensors, *(getattr(self, _attribute_name(value.name)) for value in trained))
            return outputs if len(outputs) > 1 else outputs[0]

        def extra_repr(self) -> str:
            return f"{', '.join(model.inputs)} -> {', '.join(model.outputs)}"

    return SubletModule()


def _attribute_name(name: str) -> str:
    """Return a parameter name allowed by PyTorch: without dots."""
    return name.replace(".", "_")


def _inputs_in_order(names: Sequence[str], given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """Return the inputs in the order of `names`. Raises RunError unless every input is passed exactly once."""
    by_name = {**dict(zip(names, given, strict=False)), **named}
    if len(given) > len(names) or len(by_name) != len(given) + len(named) or set(by_name) != set(names):
        raise RunError(f"the module takes {', '.join(names)}, each once, in this order or by name")
    return [by_name[name] for name in names]


class _Passes:
    """The executables of the forward and the backward pass.

    differentiated   for each input and parameter: True if it has a gradient
    seeded           for each output: True if the backward pass receives its gradient
    """

    def __init__(self, model: Model, trained: Sequence[Value], how: dict[str, Any]) -> None:
        self._model = model
        graph = model.graph
        fixed = tuple(value for value in graph.weights if value not in trained)
        whole = replace(graph, inputs=(*graph.inputs, *trained), weights=fixed)
        wanted = [value for value in whole.inputs if is_differentiable(value)]
        outputs = [value for value in graph.outputs if is_differentiable(value)]
        self.differentiated = [value in wanted for value in whole.inputs]
        self.seeded = [value in outputs for value in graph.outputs]
        seeds = [Value(f"seed.{number}", value.spec) for number, value in enumerate(outputs)]
        joint, by_input = gradients(replace(whole, inputs=(*whole.inputs, *seeds)), outputs, wanted, seeds)
        self.forward = _BoundPass(whole, model, how)
        self.backward = _BoundPass(replace(joint, outputs=by_input), model, how)

    def initial_content(self, value: Value) -> Any:
        """Return the initial content of a parameter. Raises RunError for a parameter without initial content."""
        if value.name not in self._model.weights:
            raise RunError(f"the parameter {value.name!r} has no content: pass `initial`")
        return self._model.weights[value.name].array()


class _BoundPass:
    """An executable with inputs bound to tensors, and outputs held by the caller."""

    def __init__(self, graph: Graph, model: Model, how: dict[str, Any]) -> None:
        graph = simplify(_with_distinct_outputs(graph))
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
        """Run the pass and return the outputs, each with separate memory."""
        with self._lock:
            for name, spec, tensor in zip(self._inputs, self._specs, tensors, strict=True):
                assert isinstance(spec, TensorSpec)
                self.executable.bind(name, array_of(tensor.detach().contiguous(), name))
            views = self.executable.views()
            return tuple(views.hold(name) for name in self._outputs)


def _with_distinct_outputs(graph: Graph) -> Graph:
    """Return the graph with distinct computed outputs: repeated outputs, inputs and weights are copied."""
    emit = Emitter.from_graph(graph)
    taken = {*graph.inputs, *graph.weights}
    outputs: list[Value] = []
    for value in graph.outputs:
        outputs.append(emit("nn.copy", value) if value in taken else value)
        taken.add(value)
    weights = (*graph.weights, *emit.literals.added)
    return replace(graph, nodes=tuple(emit.nodes), outputs=tuple(outputs), weights=weights)

"""A training step as one graph: forward, backward and update, to be planned and run like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.builder.graph import graph_of
from sublet.builder.lines import at_line
from sublet.builder.tensor import Tensor
from sublet.errors import GradientError
from sublet.frontends.model import Model
from sublet.ir.graph import Graph
from sublet.ops.nn.command import spec_of
from sublet.optimizers import Optimizer
from sublet.passes.autodiff import backward
from sublet.passes.order import ordered
from sublet.passes.pipeline import run_passes, simplify
from sublet.planning import Options, plan_memory

QUICK = "best_fit_by_size"
"""The strategy that orders are judged by."""


def gradients(of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
    """The gradients of a tensor by others of its graph, written after it; their gradients can be asked for again.

    `seed` is the gradient of `of` itself, 1 everywhere when nothing is said. What `of` does not depend on has zeros.
    Raises GradientError, which begins with the user's line: for a value that is no floating-point number, is
    random, or is computed from `wrt` by a command without a gradient.
    """
    graph = graph_of(of)
    target, values = graph.own(of), [graph.own(tensor) for tensor in wrt]
    emit = graph.emit
    emit.source = at_line("").rstrip(": ")
    try:
        start = graph.own(seed) if seed is not None else emit.filled(1, spec_of(target))
        found = backward(emit, tuple(emit.nodes), {target: start}, values)
        made = [
            grad if grad is not None else emit.filled(0, spec_of(value))
            for grad, value in zip(found, values, strict=True)
        ]
    except GradientError as error:
        raise GradientError(at_line(str(error))) from None
    return [graph.tensor(value) for value in made]


def train_step(loss: Tensor, parameters: Sequence[Tensor], optimizer: Optimizer, *, name: str = "loss") -> Model:
    """One step of training: computes `loss`, a scalar, and lets `optimizer` update the parameters in place.

    The result goes to `sublet.compile` or `sublet.plan_memory`; each run gives the outputs of the graph, and the loss
    under `name`. The gradients of parameters are not kept: each is consumed as early as the data allows.
    Raises GradientError for a loss or parameter that has no gradient.
    """
    graph = graph_of(loss)
    if loss.shape != ():
        raise GradientError(at_line(f"the loss is {loss!r}: it must be one number; take its mean"))
    if not parameters:
        raise GradientError(at_line("there are no parameters to train"))
    graph.output(name, loss)
    with graph.scope("step"):
        optimizer.write(graph, parameters, gradients(loss, parameters))
    model = graph.model()
    return replace(model, graph=less_memory(model.graph))


def less_memory(graph: Graph) -> Graph:
    """A differentiated graph with nothing needless in it, that recalls what it can, in an order of less memory.

    Where there are loops or branches, an order is judged by planning, which knows more about them than an estimate.
    """
    graph = run_passes(simplify(graph, order=False), ["late-constants", "recall"])
    return ordered(graph, _planned_bytes if any(node.subgraphs for node in graph.nodes) else None)


def _planned_bytes(graph: Graph) -> int:
    return plan_memory(graph, Options(strategy=QUICK, io="bound")).arena_bytes

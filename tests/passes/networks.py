"""Training steps to order: layers, their gradients, and an optimiser for each weight after all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff import backward

F32 = DType.F32


def training_step(widths: tuple[int, ...], batch: int = 8, *, updates: bool = True) -> Graph:
    """A network of dense layers with tanh between them, its loss, its gradients, and then SGD of every weight."""
    x = Value("x", TensorSpec(F32, (batch, widths[0])))
    weights = [Value(f"w{i}", TensorSpec(F32, pair)) for i, pair in enumerate(pairwise(widths))]
    emit = Emitter.from_graph(Graph("step", (x,), (), (), tuple(weights)))
    h = x
    for weight in weights:
        h = emit("nn.tanh", emit("nn.matmul", h, weight))
    loss = emit("nn.mean", emit("nn.square", h))
    grads = backward(emit, list(emit.nodes), {loss: emit.constant(1.0, loss)}, weights)
    rate = emit.full(0.1, TensorSpec(F32))
    stepped = []
    for weight, grad in zip(weights, grads, strict=True):
        assert grad is not None
        stepped.append(emit("nn.sgd", weight, grad, rate))
    weights_all = (*weights, *emit.literals.added)
    graph = Graph("step", (x,), tuple(emit.nodes), (loss,), weights_all)
    if updates:
        return replace(graph, updates=tuple(zip(weights, stepped, strict=True)))
    return replace(graph, outputs=(loss, *stepped))

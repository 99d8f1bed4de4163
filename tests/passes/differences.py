"""Gradients of whole programs beside finite differences: planned, run in poison, and differentiated again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ops.verify import verify
from sublet.passes.autodiff import gradients
from sublet.runtime.differential import compare
from sublet.runtime.executable import Executable

Arrays = Mapping[str, Any]
UNPLANNED = Options(strategy="no_reuse", share=False)
STEP = 1e-6


def value_of(graph: Graph, name: str) -> Value:
    """The value of that name, of the root graph."""
    values = [*graph.inputs, *graph.weights, *(value for node in graph.nodes for value in node.defs)]
    return next(value for value in values if value.name == name)


def weighted(graph: Graph, of: Sequence[Value], feeds: dict[str, Any], seed: int) -> tuple[Graph, list[Value]]:
    """The graph with an input for the gradient of each of `of`, filled at random in `feeds`."""
    random = np.random.default_rng(seed)
    seeds = []
    for value in of:
        assert isinstance(value.spec, TensorSpec)
        seeds.append(Value(f"seed{seed}.{value.name}", value.spec))
        shape = value.spec.shape
        feeds[seeds[-1].name] = np.asarray(random.uniform(0.5, 1.5, shape), NUMPY[value.spec.dtype]).reshape(shape)
    return replace(graph, inputs=(*graph.inputs, *seeds)), seeds


def differentiated(graph: Graph, of: Sequence[str], wrt: Sequence[str], feeds: dict[str, Any], seed: int) -> Graph:
    """The graph with the gradients, weighted at random, of `of` by `wrt`; `feeds` gets the weights."""
    targets = [value_of(graph, name) for name in of]
    graph, seeds = weighted(graph, targets, feeds, seed)
    graph, _ = gradients(graph, targets, [value_of(graph, name) for name in wrt], seeds)
    verify(graph)
    return graph


def run(graph: Graph, feeds: Arrays, options: Options | None = None, backend: Any = "reference") -> list[Any]:
    """The outputs in order; planned, unplanned and in poison they are the same bits."""
    plain, planned = compiled(graph, feeds, UNPLANNED, backend), compiled(graph, feeds, options, backend)
    return compared(graph, plain, planned, feeds)


def compared(graph: Graph, plain: Executable, planned: Executable, feeds: Arrays) -> list[Any]:
    found = compare(plain, planned, _inputs(graph, feeds))
    assert found.equal, found.differences
    return list(found.outputs.values())


def compiled(graph: Graph, feeds: Arrays, options: Options | None = None, backend: Any = "reference") -> Executable:
    """Ready to run, its outputs named by their number."""
    weights = {value.name: feeds[value.name] for value in graph.weights if value.literal is None}
    inputs, outputs = (value.name for value in graph.inputs), map(str, range(len(graph.outputs)))
    model = Model(graph, inputs=tuple(inputs), outputs=tuple(outputs))
    return compile(model, weights=weights, options=options, backend=backend)


def _inputs(graph: Graph, feeds: Arrays) -> dict[str, Any]:
    return {value.name: feeds[value.name] for value in graph.inputs}


def check(
    graph: Graph,
    of: Sequence[str],
    wrt: Sequence[str],
    *several: Arrays,
    orders: int = 2,
    options: Options | None = None,
    tolerance: float = 1e-6,
) -> Graph:
    """The gradients of `of` by the inputs `wrt`, and the gradients of these, are what finite differences say.

    All that is fed in turn runs in the same executables. Returns the graph with the first gradients.
    """
    every, names = [dict(feeds) for feeds in several], list(of)
    graphs = [replace(graph, outputs=tuple(dict.fromkeys([*graph.outputs, *(value_of(graph, name) for name in of)])))]
    plain = compiled(graphs[0], every[0], UNPLANNED)
    for order in range(orders):
        before, count = graphs[-1], len(graphs[-1].outputs)
        seeds: dict[str, Any] = {}
        after = differentiated(before, names, wrt, seeds, order)
        every = [{**feeds, **seeds} for feeds in every]
        graphs.append(after)
        losses, plain = plain, compiled(after, every[0], UNPLANNED)
        planned = compiled(after, every[0], options)
        for feeds in every:
            found = compared(after, plain, planned, feeds)[count:]
            _agree(before, losses, names, wrt, feeds, found, order, tolerance)
        names = [value.name for value in dict.fromkeys(after.outputs[count:]) if value.literal is None]
    return graphs[1]


def _agree(
    graph: Graph,
    made: Executable,
    of: Sequence[str],
    wrt: Sequence[str],
    feeds: dict[str, Any],
    found: Sequence[Any],
    order: int,
    tolerance: float,
) -> None:
    positions = [[value.name for value in graph.outputs].index(name) for name in of]
    random = np.random.default_rng(7)

    def loss(moved: Arrays) -> float:
        outputs = made(_inputs(graph, moved))
        values = [outputs[str(position)] for position in positions]
        return float(sum((value * feeds[f"seed{order}.{name}"]).sum() for value, name in zip(values, of, strict=True)))

    for name, gradient in zip(wrt, found, strict=True):
        direction = random.uniform(-1, 1, np.shape(feeds[name]))
        ends = [loss({**feeds, name: feeds[name] + sign * STEP * direction}) for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * STEP)
        agree = {"rtol": tolerance * 10, "atol": tolerance, "err_msg": f"{name}, order {order + 1}, of {feeds}"}
        np.testing.assert_allclose((gradient * direction).sum(), difference, **agree)

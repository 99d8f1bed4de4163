"""Compares the first outputs of a command, and their gradients, with functions of PyTorch's, in f64.

Commands that save something for their gradient have more outputs than PyTorch's function; those have no gradient here,
as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sublet.extras import require
from sublet.ir.emitter import Emitter
from sublet.ir.graph import Graph, Value
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Example
from sublet.passes.autodiff import backward, differentiable
from sublet.runtime.nn_reference import NnReference
from sublet.runtime.torch_backend import Torch
from tests.nn.examples import Array, case_of
from tests.nn.test_registry import computed


def agrees(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Callable[..., Any]) -> None:
    """What `function` gives of the same tensors (None for an omitted one) is what the command's first outputs are."""
    torch = require("torch", extra="torch")
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    (node,) = case.graph.nodes
    tensors = {key: torch.from_numpy(array.copy()) for key, array in case.arrays.items()}
    wrt = [value for value in case.graph.inputs if differentiable(value)]
    for value in wrt:
        tensors[value.name].requires_grad_()
    found = function(*(None if v is None else tensors[v.name] for v in node.inputs))
    results = dict(zip(node.defs, found if isinstance(found, tuple) else (found,), strict=False))
    arrays, random = dict(case.arrays), np.random.default_rng(1)
    seeds = {output: Value(f"seed.{output.name}", output.spec) for output in results}
    for output, seed in seeds.items():
        arrays[seed.name] = random.uniform(0.5, 1.5, results[output].shape)
    emit = Emitter.of(case.graph)
    grads = dict(zip(wrt, backward(emit, case.graph.nodes, seeds, wrt), strict=True))
    own = [n for n in emit.nodes if n.op.startswith(node.op)]
    assert len(own) >= 2
    assert all(Torch().kernel(n, {}) for n in own), "the reference would compute it"
    torch.autograd.backward(list(results.values()), [torch.from_numpy(arrays[seeds[v].name]) for v in results])
    weights = (*case.graph.weights, *emit.literals.added)
    graph = Graph("compared", (*case.graph.inputs, *seeds.values()), tuple(emit.nodes), (), weights)
    for backend in (Torch(), NnReference()):
        places = computed(graph, {key: array.copy() for key, array in arrays.items()}, backend)
        for output, result in results.items():
            _close(places[output.name], result.detach().numpy())
        for value, grad in grads.items():
            expected = tensors[value.name].grad
            if grad is not None or expected is not None:
                assert grad is not None
                _close(places[grad.name], expected.numpy())


def _close(actual: Array, expected: Array) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * max(1.0, float(np.abs(expected).max())))

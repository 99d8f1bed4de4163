"""Compares a command and its gradient with a function of PyTorch's and its derivative; and what a command refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sublet.base.errors import SpecError
from sublet.base.optional_imports import require
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.passes.autodiff import backward, is_differentiable
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.examples import Array, Example, case_of, spec_of_text
from tests.nn.test_registry import computed


def agrees(
    name: str,
    inputs: tuple[str, ...],
    attrs: dict[str, Any],
    function: Callable[..., Any],
    tolerance: float = 1e-9,
    absolute: float | None = None,
    fast: bool = True,
) -> None:
    """Assert that the command's first outputs are what `function` gives of the same tensors, and so the derivatives.

    `function` is given None for an omitted input. What a command saves for its gradient comes after what PyTorch's
    function gives, and has no gradient here, as in training. Differences are relative to the largest element, or to
    each where `absolute` says what does not count. `fast` asserts that kernels on ATen take command and gradient.
    """
    torch = require("torch", extra="torch")
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    (node,) = case.graph.nodes
    tensors = {key: torch.from_numpy(array.copy()) for key, array in case.arrays.items()}
    wrt = [value for value in case.graph.inputs if is_differentiable(value)] if COMMANDS[name].gradient else []
    for value in wrt:
        tensors[value.name].requires_grad_()
    found = function(*(None if v is None else tensors[v.name] for v in node.inputs))
    results = dict(zip(node.defs, found if isinstance(found, tuple | list) else (found,), strict=False))
    arrays, random = dict(case.arrays), np.random.default_rng(1)
    seeds = {
        output: Value(f"seed.{output.name}", output.spec) for output in results if is_differentiable(output) and wrt
    }
    for output, seed in seeds.items():
        arrays[seed.name] = random.uniform(0.5, 1.5, results[output].shape).astype(case.arrays[wrt[0].name].dtype)
    emit = Emitter.from_graph(case.graph)
    grads = dict(zip(wrt, backward(emit, case.graph.nodes, seeds, wrt), strict=True)) if seeds else {}
    if seeds:
        torch.autograd.backward([results[v] for v in seeds], [torch.from_numpy(arrays[s.name]) for s in seeds.values()])
    own = [n for n in emit.nodes if n.op.startswith(node.op)]
    assert not fast or all(TorchBackend().kernel(n, {}) for n in own), "the reference would compute it"
    weights = (*case.graph.weights, *emit.literals.added)
    graph = Graph("compared", (*case.graph.inputs, *seeds.values()), tuple(emit.nodes), (), weights)
    for backend in (TorchBackend(), ReferenceBackend()):
        places = computed(graph, {key: array.copy() for key, array in arrays.items()}, backend)
        for output, result in results.items():
            _close(places[output.name], result.detach().numpy(), tolerance, absolute)
        for value, grad in grads.items():
            expected = tensors[value.name].grad
            if grad is not None or expected is not None:
                assert grad is not None, f"no gradient of {value}"
                _close(places[grad.name], expected.numpy(), tolerance, absolute)


def _close(actual: Array, expected: Array, tolerance: float, absolute: float | None) -> None:
    assert actual.shape == expected.shape
    if absolute is None:
        largest = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)
    else:
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=absolute)


def refused(op: str, shapes: Sequence[str], attrs: dict[str, Any], message: str) -> None:
    """Assert that the command does not take such inputs, and says why. "_" is an omitted input."""
    inputs = [None if text == "_" else Value(f"x{i}", spec_of_text(text)) for i, text in enumerate(shapes)]
    emit = Emitter.from_graph(Graph("wrong", tuple(v for v in inputs if v is not None), (), ()))
    with pytest.raises(SpecError, match=message):
        emit.all_outputs(f"nn.{op}", *inputs, **attrs)


def shown(value: object) -> str:
    """A parameter in the name of a test, which must be the same in every process."""
    return "by" if callable(value) else str(value)[:40]

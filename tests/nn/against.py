"""Compares a command and its gradient with a function of PyTorch's and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sublet.extras import require
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Example
from sublet.runtime.nn_reference import NnReference
from sublet.runtime.torch_backend import Torch
from tests.nn.examples import Array, case_of
from tests.nn.test_registry import computed, differentiated


def agrees(
    name: str,
    inputs: tuple[str, ...],
    attrs: dict[str, Any],
    function: Callable[..., Any],
    tolerance: float = 1e-9,
) -> None:
    """Assert that the kernels and the reference compute what `function` does, and its derivatives, relative to the
    largest element."""
    torch = require("torch", extra="torch")
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    graph, arrays, wrt, grads = differentiated(case)
    given = {f"x{i}": torch.from_numpy(arrays[f"x{i}"].copy()) for i, text in enumerate(inputs) if text != "_"}
    for value in wrt:
        given[value.name].requires_grad_(True)
    found = function(*given.values())
    results = found if isinstance(found, tuple | list) else [found]
    pairs = list(zip(case.graph.outputs, results, strict=True))
    if wrt:
        torch.autograd.backward(results, [torch.from_numpy(arrays[f"seed.{output.name}"]) for output, _ in pairs])
    for backend in (Torch(), NnReference()):
        places = computed(graph, {key: array.copy() for key, array in arrays.items()}, backend)
        for output, result in pairs:
            _close(places[output.name], result.detach().numpy(), tolerance)
        for value, grad in zip(wrt, grads, strict=True):
            _close(places[grad.name], given[value.name].grad.numpy(), tolerance)


def _close(actual: Array, expected: Array, tolerance: float) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
    )

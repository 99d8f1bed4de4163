"""Helpers of the cases of `dynamo`, and of tests that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import sublet

Compile = Callable[..., Any]


def case(function: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
    """Marks a case: given `torch.compile` or nothing to compile with, it gives what has to be equal."""
    function.is_case = True  # type: ignore[attr-defined]
    return function


def leaf(*shape: int) -> Any:
    """A tensor that gradients are asked for."""
    return torch.randn(*shape).requires_grad_()


def gradients(value: Any, *inputs: Any, **options: Any) -> Any:
    """Those of the sum of its squares."""
    return torch.autograd.grad(value.square().sum(), inputs, **options)


def raised(function: Callable[..., Any], *args: Any) -> str:
    """The type of the error that a call raises, "" for none."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return ""


def weights_after_steps(module: Any, loss: Any, given: Any, labels: Any, *, run: Any = None) -> list[Any]:
    """Return the parameters of a module after three steps of SGD.

    Args:
        module: the module; changed in place.
        loss: a function of the module's result and the labels.
        given: the argument of the module; a tuple for several arguments.
        labels: the labels.
        run: the module compiled; None for steps of `sublet.torch.train_step`.
    """
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = sublet.torch.train_step(module, loss, optimizer) if run is None else None
    torch.manual_seed(1)
    for _ in range(3):
        if step is not None:
            step(given, labels)
            continue
        optimizer.zero_grad()
        loss(run(*given) if isinstance(given, tuple) else run(given), labels).backward()
        optimizer.step()
    return [each.detach() for each in module.parameters()]

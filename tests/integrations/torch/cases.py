"""What cases of `dynamo` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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

"""PyTorch's tracing without bytes, bounded: a file of a few bytes may ask for 10^18 steps or results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.extras import require

MOST_CALLS = 1 << 16
"""Operators that PyTorch runs while it takes a program apart. At this limit it has taken up to 35 s and 2 GB. An LSTM
of two layers and 1,000 steps takes 16,000."""

MOST_RESULTS = 1 << 16
"""Tensors that one operator may return."""

DIVIDING = {"aten::split.Tensor", "aten::unsafe_split.Tensor", "aten::split_copy.Tensor"}
UNBINDING = {"aten::unbind.int", "aten::unbind_copy.int"}


def bounded_fake_mode(where: str) -> Any:
    """Return a mode of PyTorch's in which tensors have no bytes, and which ends when a program asks for too much.

    Operators without a rule of shapes are refused there: PyTorch runs their kernels on zeros of the full size instead.

    Raises:
        ModelError: in the mode, beyond `MOST_CALLS` operators or `MOST_RESULTS` results of one.
    """
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    shapes = require("torch.fx.experimental.symbolic_shapes", extra="torch").ShapeEnv()
    mode = fake_tensor.FakeTensorMode(allow_fallback_kernels=False, shape_env=shapes)
    run, calls = mode.dispatch, 0

    def dispatch(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise ModelError(f"{where}: takes more than {MOST_CALLS} operators once composite ones are taken apart")
        if results_of(func, args) > MOST_RESULTS:
            raise ModelError(f"{where}: {func} returns more than {MOST_RESULTS} tensors")
        return run(func, types, args, kwargs)

    mode.dispatch = dispatch
    return mode


def results_of(func: Any, args: Sequence[Any]) -> int:
    """Return how many tensors an operator returns that divides a tensor along an axis; 0 for any other operator."""
    name = func.name() if hasattr(func, "name") else ""
    if name not in DIVIDING | UNBINDING or not args:
        return 0
    axis = args[2 if name in DIVIDING else 1] if len(args) > (2 if name in DIVIDING else 1) else 0
    extent = args[0].shape[axis] if -args[0].dim() <= axis < args[0].dim() else 0
    rows = args[1] if name in DIVIDING else 1
    return int(extent) // max(int(rows), 1)

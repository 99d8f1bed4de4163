"""PyTorch's tracing without bytes, bounded in work: a file of a few bytes may request 10^18 steps or results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require

MAX_TRACED_CALLS = 1 << 16
"""Maximum operators run by PyTorch while composite operators are decomposed.

At the limit PyTorch has taken up to 35 s and 2 GB. An LSTM of two layers and 1,000 steps takes 16,000 operators.
"""

MAX_RESULTS = 1 << 16
"""Maximum tensors returned by one operator."""

SPLIT_OPERATORS = {"aten::split.Tensor", "aten::unsafe_split.Tensor", "aten::split_copy.Tensor"}
UNBIND_OPERATORS = {"aten::unbind.int", "aten::unbind_copy.int"}


def bounded_fake_mode(where: str) -> Any:
    """Return a fake tensor mode of PyTorch with an end to programs of too much work.

    The mode refuses operators without a shape rule: PyTorch would run their kernels on zeros of the full size.

    Raises:
        ModelError: inside the mode, beyond `MAX_TRACED_CALLS` operators or `MAX_RESULTS` results of one operator.
    """
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    shapes = require("torch.fx.experimental.symbolic_shapes", extra="torch").ShapeEnv()
    mode = fake_tensor.FakeTensorMode(allow_fallback_kernels=False, shape_env=shapes)
    run, calls = mode.dispatch, 0

    def dispatch(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        nonlocal calls
        calls += 1
        if calls > MAX_TRACED_CALLS:
            raise ModelError(
                f"{where}: takes more than {MAX_TRACED_CALLS} operators once composite ones are taken apart"
            )
        if count_results(func, args) > MAX_RESULTS:
            raise ModelError(f"{where}: {func} returns more than {MAX_RESULTS} tensors")
        return run(func, types, args, kwargs)

    mode.dispatch = dispatch
    return mode


def count_results(func: Any, args: Sequence[Any]) -> int:
    """Return the number of results of an operator splitting a tensor along an axis; 0 for any other operator."""
    name = func.name() if hasattr(func, "name") else ""
    if name not in SPLIT_OPERATORS | UNBIND_OPERATORS or not args:
        return 0
    axis = args[2 if name in SPLIT_OPERATORS else 1] if len(args) > (2 if name in SPLIT_OPERATORS else 1) else 0
    extent = args[0].shape[axis] if -args[0].dim() <= axis < args[0].dim() else 0
    rows = args[1] if name in SPLIT_OPERATORS else 1
    return int(extent) // max(int(rows), 1)

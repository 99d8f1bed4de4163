"""`sublet.from_torch`: a PyTorch network as a model.

import sublet model = sublet.from_torch(module.eval(), (x,)) run = sublet.compile(model)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.frontends.torch.exported_program import error_summary, from_exported, silence_tracing
from sublet.ir.model import Model

__all__ = ["from_torch"]


def from_torch(source: Any, example: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Model:
    """Return a PyTorch network as a model, by `torch.export`.

    The model uses the module's weights in place, without a copy. A run of the model updates the buffers changed by a
    run of the module. `torch.cond`, `while_loop` and `scan` become branches and loops of the model. Views cost no
    memory and no time.

    Args:
        source: an ExportedProgram, or a module to export with the arguments `example` and `kwargs`.
        example: positional arguments, a tuple of tensors with the shapes of every later run.
        kwargs: keyword arguments.

    Raises:
        ModelError: for a network impossible to export or to plan, with the line of the user's program if known.
        MissingExtraError: without PyTorch.
    """
    t = require("torch", extra="torch")
    if isinstance(source, t.export.ExportedProgram):
        return from_exported(source)
    if not isinstance(source, t.nn.Module):
        raise ModelError(f"{type(source).__name__} is no network of PyTorch: give a module, or an ExportedProgram")
    if not isinstance(example, tuple | list):
        raise ModelError("give the arguments of the module as a tuple: from_torch(module, (x,))")
    try:
        with silence_tracing():
            program = t.export.export(source, tuple(example), dict(kwargs or {}))
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"{type(source).__name__}: torch.export refuses it: {error_summary(error)}") from error
    return from_exported(program, type(source).__name__)

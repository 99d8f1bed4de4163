"""`sublet.torch`: networks of PyTorch.

import sublet
model = sublet.from_torch(module.eval(), (x,))
run = sublet.compile(model)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.extras import require
from sublet.frontends.torch.exported import first_line, from_exported, quietly
from sublet.ir.model import Model

__all__ = ["from_torch"]


def from_torch(source: Any, example: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Model:
    """A network of PyTorch as a model, by `torch.export`.

    source    an ExportedProgram, or a module, which is exported with the arguments `example` and `kwargs`: tensors of
              the shapes that it will run with
    The module's weights are the model's, in their memory; buffers that a run changes are updated by every run, and
    `torch.cond`, `while_loop` and `scan` are branches and loops of the model. Views cost nothing.

    Raises ModelError for what cannot be planned, with the line of the user's program, MissingExtraError
    without PyTorch.
    """
    t = require("torch", extra="torch")
    if isinstance(source, t.export.ExportedProgram):
        return from_exported(source)
    if not isinstance(source, t.nn.Module):
        raise ModelError(f"{type(source).__name__} is no network of PyTorch: give a module, or an ExportedProgram")
    if not isinstance(example, tuple | list):
        raise ModelError("give the arguments of the module as a tuple: from_torch(module, (x,))")
    try:
        with quietly():
            program = t.export.export(source, tuple(example), dict(kwargs or {}))
    except Exception as error:  # whatever tracing a program of somebody else's meets
        raise ModelError(f"{type(source).__name__}: torch.export refuses it: {first_line(error)}") from error
    return from_exported(program, type(source).__name__)

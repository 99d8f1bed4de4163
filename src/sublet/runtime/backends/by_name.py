"""The backends by the names that users call them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from sublet.base.errors import RunError
from sublet.base.extras import installed, require
from sublet.ir.model import Model
from sublet.runtime.backends.commands import Commands, uses_commands
from sublet.runtime.backends.numpy import Numpy
from sublet.runtime.backends.onnxruntime.backend import OnnxRuntime
from sublet.runtime.backends.reference import Reference
from sublet.runtime.backends.torch.backend import Torch
from sublet.runtime.kernel import Backend

AUTO: Literal["auto"] = "auto"

BACKENDS: dict[str, Callable[[Model], Backend]] = {
    "onnxruntime": lambda model: OnnxRuntime(model.opsets),
    "torch": lambda model: Torch(),
    "numpy": lambda model: Numpy(),
    "reference": lambda model: Reference(model.opsets),
}
"""Makes the backend of a name for a model; the fastest first."""

NEEDS = {"onnxruntime": "onnxruntime", "torch": "torch"}
"""The package that a backend needs."""


def names_of(chosen: str | Backend | Sequence[str | Backend]) -> list[str | Backend]:
    """Names and backends in order of preference; "auto" stands for all that are installed.

    Raises RunError for a name that no backend has, MissingExtraError for one that is not installed.
    """
    if chosen == AUTO:
        return [name for name in BACKENDS if name not in NEEDS or installed(NEEDS[name])]
    names = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
    for name in names:
        if isinstance(name, str) and name not in BACKENDS:
            raise RunError(f"there is no backend {name!r}; there are {AUTO}, {', '.join(BACKENDS)}")
    for name in names:
        if isinstance(name, str) and name in NEEDS:
            require(NEEDS[name], extra=NEEDS[name])
    return names


def backends_of(names: Sequence[str | Backend], model: Model) -> list[Backend]:
    """The backends for a model, before all that of commands of the user's own, if it has any."""
    made = [BACKENDS[entry](model) if isinstance(entry, str) else entry for entry in names]
    return [Commands(), *made] if uses_commands(model.graph) else made

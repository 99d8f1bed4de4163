"""The registry of backends by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from sublet.base.errors import RunError
from sublet.base.optional_imports import is_installed, require
from sublet.ir.model import Model
from sublet.runtime.backends.custom_commands import CustomCommands, uses_commands
from sublet.runtime.backends.numpy import Numpy
from sublet.runtime.backends.onnxruntime.backend import OnnxRuntime
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.backends.torch.backend import TorchBackend
from sublet.runtime.kernel import Backend

AUTO: Literal["auto"] = "auto"

BACKENDS: dict[str, Callable[[Model], Backend]] = {
    "onnxruntime": lambda model: OnnxRuntime(model.opsets),
    "torch": lambda model: TorchBackend(),
    "numpy": lambda model: Numpy(),
    "reference": lambda model: ReferenceBackend(model.opsets),
}
"""Constructors of backends for a model, by name; the fastest backend first."""

NEEDS = {"onnxruntime": "onnxruntime", "torch": "torch"}
"""The package required by a backend."""


def backend_names(chosen: str | Backend | Sequence[str | Backend]) -> list[str | Backend]:
    """Return names and backends in order of preference; "auto" expands to all installed backends.

    Raises RunError for an unknown name, MissingExtraError for a backend that is not installed.
    """
    if chosen == AUTO:
        return [name for name in BACKENDS if name not in NEEDS or is_installed(NEEDS[name])]
    names = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
    for name in names:
        if isinstance(name, str) and name not in BACKENDS:
            raise RunError(f"there is no backend {name!r}; known: {AUTO}, {', '.join(BACKENDS)}")
    for name in names:
        if isinstance(name, str) and name in NEEDS:
            require(NEEDS[name], extra=NEEDS[name])
    return names


def backends_of(names: Sequence[str | Backend], model: Model) -> list[Backend]:
    """Return the backends for a model, preceded by the backend of custom commands if the model has any."""
    backends = [BACKENDS[entry](model) if isinstance(entry, str) else entry for entry in names]
    return [CustomCommands(), *backends] if uses_commands(model.graph) else backends

"""Backends, the sources of kernels: the registry by name, the reference backend, and custom commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal

from sublet.base.errors import RunError
from sublet.base.optional_imports import is_installed, require
from sublet.integrations.registry import installed_integrations, resolve
from sublet.ir.model import Model
from sublet.runtime.backends.custom_commands import CustomCommands, uses_commands
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend

AUTO: Literal["auto"] = "auto"


@lru_cache(maxsize=1)
def backend_factories() -> dict[str, Callable[[Model], Backend]]:
    """Return the functions that make a backend for a model, by name: those of the integrations, then the reference."""
    found = {
        name: partial(_make_backend, function)
        for each in installed_integrations()
        for name, function in each.backends.items()
    }
    return {**found, "reference": lambda model: ReferenceBackend(model.opsets)}


@lru_cache(maxsize=1)
def _needed_packages() -> dict[str, str]:
    """Return the package that a backend needs, by the name of the backend."""
    return {name: package for each in installed_integrations() for name, package in each.packages.items()}


def _make_backend(function: str, model: Model) -> Backend:
    """Return the backend made for the model by the function named "module:function"."""
    backend: Backend = resolve(function)(model)
    return backend


def backend_names(chosen: str | Backend | Sequence[str | Backend]) -> list[str | Backend]:
    """Return names and backends in order of preference; "auto" expands to all installed backends.

    Raises RunError for an unknown name, MissingExtraError for a backend that is not installed.
    """
    factories, needed = backend_factories(), _needed_packages()
    if chosen == AUTO:
        return [name for name in factories if name not in needed or is_installed(needed[name])]
    names = [chosen] if isinstance(chosen, str) or not isinstance(chosen, Sequence) else list(chosen)
    for name in names:
        if isinstance(name, str) and name not in factories:
            raise RunError(f"there is no backend {name!r}; known: {AUTO}, {', '.join(factories)}")
    for name in names:
        if isinstance(name, str) and name in needed:
            require(needed[name], extra=needed[name])
    return names


def backends_of(names: Sequence[str | Backend], model: Model) -> list[Backend]:
    """Return the backends for a model, preceded by the backend of custom commands if the model has any."""
    backends = [backend_factories()[entry](model) if isinstance(entry, str) else entry for entry in names]
    return [CustomCommands(), *backends] if uses_commands(model.graph) else backends

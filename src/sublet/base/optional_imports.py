"""Optional dependencies: imported on demand, with an error that names the extra to install."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

from sublet.base.errors import MissingExtraError

PACKAGES = {"exact": "ortools", "png": "matplotlib"}
"""The package that an extra brings, where the two have different names."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or raise MissingExtraError naming the extra that installs the module.

    The error names the package of the extra, not a dependency of the package (`google.protobuf` with onnx).
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = PACKAGES.get(extra, extra)
        raise MissingExtraError(f"this needs the package {package!r}: pip install 'sublet[{extra}]'") from error


def imported_module(module: str) -> ModuleType | None:
    """Return the top-level `module` if the process has imported the module completely; None otherwise.

    `sys.modules` shows a module while another thread still executes the module's body. This function waits for that
    thread by the lock of the import system.
    """
    loaded = sys.modules.get(module)
    if loaded is None or not getattr(getattr(loaded, "__spec__", None), "_initializing", False):
        return loaded
    try:
        return import_module(module)
    except ImportError:  # the import failed in the other thread
        return None


def is_installed(module: str) -> bool:
    """True if the top-level `module` can be imported."""
    return find_spec(module) is not None


def version_of(package: str) -> str:
    """Return the version of a package; "" when the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

"""Optional dependencies: imported where they are needed, with an error that names the extra."""

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
    """Import `module`, or raise MissingExtraError naming the extra that installs it.

    The package is named that the extra is about, not one that comes with it (`google.protobuf` with onnx).
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = PACKAGES.get(extra, extra)
        raise MissingExtraError(f"this needs the package {package!r}: pip install 'sublet[{extra}]'") from error


def imported(module: str) -> ModuleType | None:
    """Return the top-level `module` if the process has imported it, completely; None otherwise.

    `sys.modules` shows a module while another thread still executes the module's body. This function waits for that
    thread by the lock of the import system.
    """
    found = sys.modules.get(module)
    if found is None or not getattr(getattr(found, "__spec__", None), "_initializing", False):
        return found
    try:
        return import_module(module)
    except ImportError:  # the import failed in the other thread
        return None


def installed(module: str) -> bool:
    """Whether the top-level `module` can be imported."""
    return find_spec(module) is not None


def version_of(package: str) -> str:
    """The version of a package; "" when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

"""The names that the package offers: attributes, and modules that can be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sublet
from sublet.integrations.registry import installed_integrations

MODULES = [*sublet.MODULES, *(each.name for each in installed_integrations() if each.api)]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_offered_as_an_attribute_can_be_imported(name: str) -> None:
    """By the statement alone, in a new process; attribute and imported module are one."""
    code = (
        f"import sublet.{name} as module, sublet, sys\nassert module is sublet.{name} is sys.modules['sublet.{name}']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_other_module_can_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'sublet\.nothing'"):
        __import__("sublet.nothing")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sublet.nothing


def test_every_public_name_is_there() -> None:
    assert all(getattr(sublet, name) is not None for name in sublet.__all__)

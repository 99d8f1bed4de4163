"""torchvision's networks, also where its compiled operators do not load.

They do not beside a PyTorch that is built for processors alone: those of the wheel are linked to CUDA. No network here
takes them, but torchvision registers shapes for them by name as it is imported; so the names are declared.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

import torch

MISSING = re.compile(r"operator torchvision::(\w+) does not exist")

_declared: list[Any] = []


def torchvision(module: str) -> Any:
    """A module of torchvision's."""
    while True:
        try:
            return import_module(f"torchvision.{module}")
        except RuntimeError as error:
            found = MISSING.search(str(error))
            if found is None:
                raise
            _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
            _declared[-1].define(f"{found[1]}(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]

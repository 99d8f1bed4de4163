"""The device of a traced program. Sublet plans only programs on a single device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sublet.base.errors import ModelError
from sublet.integrations.torch.reader.fx_conversion import source_line
from sublet.integrations.torch.reader.traced_tensor import torch

CPU = "cpu"
KNOWN_DEVICES = (CPU, "cuda", "meta")
"""Device types with arenas. On `meta`, tensors have no bytes: a program is planned, but not run."""

NUMBER_OPERATORS = ("aten.full.default", "aten.scalar_tensor.default")
"""Operators making a number for use with tensors of any device: the number is made on the device of the tensors."""


def device_of(*modules: Any) -> str:
    """Return the device of all tensors of some traced programs, "cpu" or "cuda:0".

    Numbers without axes made on the CPU by the program may be on any device; arguments may not.

    Raises ModelError for tensors on several devices, and for an unsupported device.
    """
    places: dict[str, str] = {}
    for module in modules:
        for graph in module.modules():
            for node in getattr(getattr(graph, "graph", None), "nodes", ()):
                for tensor in _tensors_of(graph, node):
                    places.setdefault(str(tensor.device), source_line(node))
    if len(places) > 1:
        (one, _), (other, place), *_ = places.items()
        raise ModelError(f"{place}: a tensor on {other} in a graph on {one}: only graphs on one device are planned")
    device = next(iter(places), CPU)
    if device.partition(":")[0] not in KNOWN_DEVICES:
        raise ModelError(f"a graph on {device}: there are arenas on {', '.join(KNOWN_DEVICES)}")
    return device


def require_cpu(device: str, what: str, *others: str) -> None:
    """Raise ModelError for a device outside of the CPU and `others`; `what` names the refused feature."""
    if device not in (CPU, *others):
        raise ModelError(
            f"{what} runs on the CPU, and here are tensors on {device}: move module and arguments there (.cpu()), or "
            'take torch.compile(backend="sublet"), which runs where the tensors are'
        )


def _tensors_of(module: Any, node: Any) -> Iterator[Any]:
    """Yield the tensors of a node, except numbers allowed on any device."""
    t = torch()
    if node.op == "get_attr":
        tensors = module
        for part in node.target.split("."):
            tensors = getattr(tensors, part, None)
    else:
        tensors = node.meta.get("val")
    for each in tensors if isinstance(tensors, list | tuple) else (tensors,):
        if isinstance(each, t.Tensor) and not (str(node.target) in NUMBER_OPERATORS and _is_inner_number(each, node)):
            yield each


def _is_inner_number(tensor: Any, node: Any) -> bool:
    """True if a tensor is a number on the CPU, and not a result of the program."""
    return tensor.device.type == CPU and tensor.dim() == 0 and all(user.op != "output" for user in node.users)

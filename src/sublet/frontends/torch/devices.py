"""Which device a traced program runs on. Only programs on one are planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.tensors import torch
from sublet.frontends.torch.traced import where

CPU = "cpu"
KNOWN = (CPU, "cuda", "meta")
"""Kinds of devices that there are arenas on. On `meta` tensors have no bytes: there a plan is all there is."""

NUMBERS = ("aten.full.default", "aten.scalar_tensor.default")
"""What makes a number that tensors of every device are computed with: it is made where these are."""


def device_of(*modules: Any) -> str:
    """The device that all tensors of some traced programs lie on, "cpu" or "cuda:0".

    A number without axes that a program makes itself on the CPU may be anywhere; one that it is given may not. Raises
    ModelError for tensors on several devices, and for a device that there are no arenas on.
    """
    found: dict[str, str] = {}
    for module in modules:
        for graph in module.modules():
            for node in getattr(getattr(graph, "graph", None), "nodes", ()):
                for tensor in _made_by(graph, node):
                    found.setdefault(str(tensor.device), where(node))
    if len(found) > 1:
        (one, _), (other, place), *_ = found.items()
        raise ModelError(f"{place}: a tensor on {other} in a graph on {one}: only graphs on one device are planned")
    device = next(iter(found), CPU)
    if device.partition(":")[0] not in KNOWN:
        raise ModelError(f"a graph on {device}: there are arenas on {', '.join(KNOWN)}")
    return device


def require_cpu(device: str, what: str, *others: str) -> None:
    """Raise ModelError for another device than the CPU, or `others`, where `what` does not run."""
    if device not in (CPU, *others):
        raise ModelError(
            f"{what} runs on the CPU, and here are tensors on {device}: move module and arguments there (.cpu()), or "
            'take torch.compile(backend="sublet"), which runs where the tensors are'
        )


def _made_by(module: Any, node: Any) -> Iterator[Any]:
    """The tensors that a node gives, but for numbers that may be anywhere."""
    t = torch()
    if node.op == "get_attr":
        made = module
        for part in node.target.split("."):
            made = getattr(made, part, None)
    else:
        made = node.meta.get("val")
    for each in made if isinstance(made, list | tuple) else (made,):
        if isinstance(each, t.Tensor) and not (str(node.target) in NUMBERS and _stays_inside(each, node)):
            yield each


def _stays_inside(tensor: Any, node: Any) -> bool:
    """Whether a tensor is a number on the CPU, and no result of the program."""
    return tensor.device.type == CPU and tensor.dim() == 0 and all(user.op != "output" for user in node.users)

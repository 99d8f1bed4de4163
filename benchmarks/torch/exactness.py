"""How far what a compiled network gives is from the same in f64, beside how far PyTorch's own is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.torch.networks import Judged, Network

ALLOWED = 2.0
"""So many times eager's own error a tensor may be off; what is added in another order is off elsewhere."""

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Error:
    """The largest quotient of our error and eager's over all tensors, with the tensor's name."""

    worst: float
    where: str

    @property
    def is_rounding(self) -> bool:
        return self.worst <= ALLOWED


def errors(found: Tensors, eager: Tensors, exact: Tensors) -> Error:
    """Both against f64, tensor by tensor. No tensor of eager's counts as more exact than the half of them are."""
    assert found.keys() == eager.keys() == exact.keys(), sorted(found.keys() ^ exact.keys())
    norms = {name: float(each.double().norm()) for name, each in exact.items()}
    off = {name: (_distance(found[name], each), _distance(eager[name], each)) for name, each in exact.items()}
    usual = median(eager_off / norms[name] for name, (_, eager_off) in off.items() if norms[name])
    quotients = {
        name: ours / max(eagers, usual * norms[name], 1e-30) if ours == ours else float("inf")
        for name, (ours, eagers) in off.items()
    }
    where = max(quotients, key=lambda name: quotients[name])
    return Error(quotients[where], where)


def _distance(one: Any, exact: Any) -> float:
    return float((one.double() - exact.double()).norm())


def inference(module: Any, inputs: tuple[Any, ...]) -> Tensors:
    with torch.no_grad():
        return {"logits": module(*inputs)}


def step(judged: Any, call: Callable[..., Any], labels: Any, inputs: tuple[Any, ...]) -> Tensors:
    """The loss and all gradients."""
    for parameter in judged.parameters():
        parameter.grad = None
    loss = call(labels, *inputs)
    loss.backward()
    gradients = {name: each.grad for name, each in judged.named_parameters() if each.grad is not None}
    buffers = {name: each.clone() for name, each in judged.named_buffers() if each.dtype.is_floating_point}
    return {"loss": loss.detach(), **gradients, **buffers}


def compare(network: Network, compiled: Callable[[Any], Any]) -> tuple[Error, Error]:
    """The errors of inference, and of a training step."""
    module, inputs, labels = network.make(), network.inputs(), network.labels()
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    found = []
    for mode in ("inference", "step"):
        sides = []
        for side in ("ours", "eager", "exact"):
            other = copy.deepcopy(module)
            given = wide if side == "exact" else inputs
            if side == "exact":
                other = other.double()
            if mode == "inference":
                other.eval()
                sides.append(inference(compiled(other) if side == "ours" else other, given))
            else:
                judged = Judged(other.train())
                sides.append(step(judged, compiled(judged) if side == "ours" else judged, labels, given))
            del other
        found.append(errors(*sides))
    return found[0], found[1]

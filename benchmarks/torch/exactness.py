"""How far what a compiled network gives is from the same in f64, beside how far PyTorch's own is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Any

import torch

from benchmarks.torch.network import Judged, Network

ALLOWED = 2.0
"""So many times eager's own error a tensor may be off; what is added in another order is off elsewhere."""
DRAWS = 4
TINY = 1e-30

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Error:
    """The largest quotient of our error and eager's over all tensors, with the tensor's name."""

    worst: float
    where: str

    @property
    def is_rounding(self) -> bool:
        return self.worst <= ALLOWED


def quotients(found: Tensors, eager: Tensors, exact: Tensors) -> dict[str, float]:
    """Our distance from f64 over eager's, tensor by tensor; none of eager's counts as closer than half of them are."""
    assert found.keys() == eager.keys() == exact.keys(), sorted(found.keys() ^ exact.keys())
    norms = {name: float(each.norm()) for name, each in exact.items()}
    off = {name: (_distance(found[name], each), _distance(eager[name], each)) for name, each in exact.items()}
    usual = median(eagers / norms[name] for name, (_, eagers) in off.items() if norms[name])
    return {
        name: ours / max(eagers, usual * norms[name], TINY) if isfinite(ours) else inf
        for name, (ours, eagers) in off.items()
    }


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


def compare(network: Network, compiled: Callable[[Any], Any], draws: int = DRAWS) -> tuple[Error, Error]:
    """The errors of inference and of a training step.

    Where a number is off by its rounding at the kink of a ReLU, or where a maximum changes its place, gradients jump:
    so other weights and inputs are drawn where a tensor is off, and what counts of each is its closest draw.
    """
    closest: list[dict[str, float]] = [{}, {}]
    for _ in range(draws):
        for best, found in zip(closest, _quotients(network, compiled), strict=True):
            best.update({name: min(each, best.get(name, inf)) for name, each in found.items()})
        errors = [_worst(best) for best in closest]
        if all(error.is_rounding for error in errors):
            break
    return errors[0], errors[1]


def _worst(found: Mapping[str, float]) -> Error:
    where = max(found, key=lambda name: found[name])
    return Error(found[where], where)


def _quotients(network: Network, compiled: Callable[[Any], Any]) -> tuple[dict[str, float], dict[str, float]]:
    module, inputs, labels = network.make(), network.inputs(), network.labels()
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    infer, train = [], []
    for side in ("ours", "eager", "exact"):
        given = wide if side == "exact" else inputs
        other = copy.deepcopy(module).to(torch.float64 if side == "exact" else torch.float32).eval()
        call = compiled(other) if side == "ours" else other
        infer += [inference(call, given) for _ in range(1 + (side == "ours"))][-1:]  # the first call binds kernels
        judged = Judged(other.train(), network.loss)
        call = compiled(judged) if side == "ours" else judged
        if side == "ours":  # the first step binds kernels, and all later steps are alike
            before = copy.deepcopy(judged.state_dict())
            step(judged, call, labels, given)
            judged.load_state_dict(before)
        train.append(step(judged, call, labels, given))
    torch._dynamo.reset()
    return quotients(*infer), quotients(*train)

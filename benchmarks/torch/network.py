"""The record of a benchmarked network, and modules around one: with a loss, or with the logits alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

F = nn.functional


@dataclass(frozen=True)
class Network:
    """A network with random weights.

    `make()` returns the module, `inputs()` its arguments, `labels()` the targets of `loss`.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    labels: Callable[[], Any]
    loss: Callable[[Any, Any], Any] | None = None
    """The loss of the module's result and the labels; without it the cross-entropy of logits."""


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of logits [batch, ..., classes], or of [batch, classes, height, width]."""
    return F.cross_entropy(logits.flatten(0, logits.dim() - 2) if logits.dim() < 4 else logits, labels)


class Judged(nn.Module):
    """A network with the loss of its results."""

    def __init__(self, network: nn.Module, loss: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.network, self.loss = network, loss or cross_entropy

    def forward(self, labels: Any, *inputs: Any) -> Any:
        return self.loss(self.network(*inputs), labels)


class Logits(nn.Module):
    """A network of transformers', of which only the logits are asked for."""

    def __init__(self, network: nn.Module, names: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.network, self.names, self.options = network, names, options

    def forward(self, *inputs: Any) -> Any:
        return self.network(**dict(zip(self.names, inputs, strict=True)), **self.options).logits

"""Optimisers: for each parameter one command that updates it, and what it remembers, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sublet import nn
from sublet.base.tensor import DType
from sublet.nn.graph import Graph
from sublet.nn.schedules import Schedule
from sublet.nn.tensor import Tensor
from sublet.nn.writer import Eager

Rate = float | Tensor | Schedule
"""A learning rate: a number, a scalar f32 tensor of the graph, as an input or a state, or a function of the step."""


class Optimizer(Protocol):
    """Writes the commands that update parameters."""

    def write(self, graph: Graph | Eager, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Let `graph` update each of the parameters by its gradient at the end of a run."""


def _rate(graph: Graph | Eager, rate: Rate, parameters: Sequence[Tensor], step: Tensor | None = None) -> Tensor:
    """The rate of this step; `step` is its number from 1 on, where it is counted already."""
    if callable(rate):
        step = _counted(graph, parameters) if step is None else step
        rate = rate((step - 1).astype("f32"))
    return rate if isinstance(rate, Tensor) else graph.constant(rate, "f32")


def _remembered(graph: Graph | Eager, parameter: Tensor, what: str) -> Tensor:
    """State of the spec of a parameter, zero before the first step."""
    return graph.state(f"{parameter.name}.{what}", parameter.shape, parameter.dtype)


def _counted(graph: Graph | Eager, parameters: Sequence[Tensor]) -> Tensor:
    """The number of this step, from 1 on; each group of parameters counts for itself."""
    before = graph.state(f"{parameters[0].name}.step", (), DType.I64)
    step = before + 1
    graph.update(before, step)
    return step


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, as torch.optim.SGD computes it."""

    lr: Rate
    momentum: float = 0.0
    dampening: float = 0.0
    decay: float = 0.0
    nesterov: bool = False

    def write(self, graph: Graph | Eager, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """One command a parameter; with momentum, one state of its size."""
        rate = _rate(graph, self.lr, parameters)
        attrs = {"dampening": self.dampening, "decay": self.decay, "nesterov": self.nesterov}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = [_remembered(graph, parameter, "momentum")] if self.momentum else []
            made = graph.apply("nn.sgd", parameter, gradient, rate, *state, momentum=self.momentum, **attrs)
            for target, source in zip([parameter, *state], made, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), as torch.optim.Adam computes it: `decay` is added to the gradient."""

    lr: Rate
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0

    op = "nn.adam"

    def write(self, graph: Graph | Eager, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """One command a parameter, two states of its size."""
        step = _counted(graph, parameters)
        rate = _rate(graph, self.lr, parameters, step)
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "decay": self.decay}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = [_remembered(graph, parameter, what) for what in ("mean", "variance")]
            made = graph.apply(self.op, parameter, gradient, rate, *state, step, **attrs)
            for target, source in zip([parameter, *state], made, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decay: float = 0.01

    op = "nn.adamw"


@dataclass(frozen=True)
class LAMB(Adam):
    """Layer-wise adaptive moments (You et al., 2020)."""

    epsilon: float = 1e-6

    op = "nn.lamb"


@dataclass(frozen=True)
class RMSProp:
    """RMSProp, as torch.optim.RMSprop computes it without momentum."""

    lr: Rate
    alpha: float = 0.99
    epsilon: float = 1e-8
    decay: float = 0.0

    def write(self, graph: Graph | Eager, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """One command a parameter, one state of its size."""
        rate = _rate(graph, self.lr, parameters)
        attrs = {"alpha": self.alpha, "epsilon": self.epsilon, "decay": self.decay}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = _remembered(graph, parameter, "variance")
            made = graph.apply("nn.rmsprop", parameter, gradient, rate, state, **attrs)
            for target, source in zip([parameter, state], made, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class Clipped:
    """Gives `optimizer` gradients scaled down, all alike, so that the norm of them all is at most `norm`.

    As torch.nn.utils.clip_grad_norm_ does (Pascanu et al., 2013). No gradient is consumed before all are complete.
    """

    optimizer: Optimizer
    norm: float

    def write(self, graph: Graph | Eager, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """The norm, the scaled gradients, and what the optimiser makes of them."""
        total = nn.sqrt(sum(nn.square(gradient.astype("f32")).sum() for gradient in gradients))
        scale = nn.minimum(self.norm / (total + 1e-6), 1.0)
        scaled = [gradient * scale.astype(gradient.dtype) for gradient in gradients]
        self.optimizer.write(graph, parameters, scaled)

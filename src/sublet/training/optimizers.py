"""Optimisers: for each parameter one command that updates the parameter and its states in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sublet import nn
from sublet.base.tensor import DType
from sublet.nn.graph import EagerGraph, Graph
from sublet.nn.tensor import Tensor
from sublet.training.schedules import Schedule

Rate = float | Tensor | Schedule
"""A learning rate: a number, a scalar f32 tensor of the graph (an input or a state), or a function of the step."""


class Optimizer(Protocol):
    """A writer of commands for updates of parameters."""

    def write(self, graph: Graph | EagerGraph, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Let `graph` update each parameter by the gradient at the same position, at the end of a run."""


def _rate_of_step(
    graph: Graph | EagerGraph, rate: Rate, parameters: Sequence[Tensor], step: Tensor | None = None
) -> Tensor:
    """Return the learning rate as a tensor; `step` is the number of the step from 1, if already counted."""
    if callable(rate):
        step = _count_step(graph, parameters) if step is None else step
        rate = rate((step - 1).astype("f32"))
    return rate if isinstance(rate, Tensor) else graph.constant(rate, "f32")


def _parameter_state(graph: Graph | EagerGraph, parameter: Tensor, what: str) -> Tensor:
    """Return a state of the shape and type of a parameter, zero before the first step."""
    return graph.state(f"{parameter.name}.{what}", parameter.shape, parameter.dtype)


def _count_step(graph: Graph | EagerGraph, parameters: Sequence[Tensor]) -> Tensor:
    """Return the number of the step, from 1; each group of parameters has a separate counter."""
    before = graph.state(f"{parameters[0].name}.step", (), DType.I64)
    step = before + 1
    graph.update(before, step)
    return step


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, computed as by torch.optim.SGD.

    lr         learning rate: a number, a scalar f32 tensor, or a schedule
    momentum   factor of the previous update direction; 0 for plain descent
    dampening  the gradient enters the momentum times 1 - dampening
    decay      weight decay, added to the gradient
    nesterov   Nesterov momentum; needs a momentum greater than 0 and no dampening (else SpecError)
    """

    lr: Rate
    momentum: float = 0.0
    dampening: float = 0.0
    decay: float = 0.0
    nesterov: bool = False

    def write(self, graph: Graph | EagerGraph, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Write one command a parameter; with momentum, also one state of the parameter's size."""
        rate = _rate_of_step(graph, self.lr, parameters)
        attrs = {"dampening": self.dampening, "decay": self.decay, "nesterov": self.nesterov}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = [_parameter_state(graph, parameter, "momentum")] if self.momentum else []
            results = graph.apply("nn.sgd", parameter, gradient, rate, *state, momentum=self.momentum, **attrs)
            for target, source in zip([parameter, *state], results, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), computed as by torch.optim.Adam; `decay` times the weight is added to the gradient.

    lr             learning rate: a number, a scalar f32 tensor, or a schedule
    beta1, beta2   decay rates of the running means of the gradient and of its square
    epsilon        added to the denominator
    decay          weight decay
    """

    lr: Rate
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0

    op = "nn.adam"

    def write(self, graph: Graph | EagerGraph, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Write one command a parameter, with two states of the parameter's size."""
        step = _count_step(graph, parameters)
        rate = _rate_of_step(graph, self.lr, parameters, step)
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon, "decay": self.decay}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = [_parameter_state(graph, parameter, what) for what in ("mean", "variance")]
            results = graph.apply(self.op, parameter, gradient, rate, *state, step, **attrs)
            for target, source in zip([parameter, *state], results, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): the decay is added to the update."""

    decay: float = 0.01

    op = "nn.adamw"


@dataclass(frozen=True)
class LAMB(Adam):
    """Layer-wise adaptive moments (You et al., 2020); fields as for `Adam`."""

    epsilon: float = 1e-6

    op = "nn.lamb"


@dataclass(frozen=True)
class RMSProp:
    """RMSProp without momentum, computed as by torch.optim.RMSprop.

    lr        learning rate: a number, a scalar f32 tensor, or a schedule
    alpha     decay rate of the running mean of the squared gradient
    epsilon   added to the denominator
    decay     weight decay, added to the gradient
    """

    lr: Rate
    alpha: float = 0.99
    epsilon: float = 1e-8
    decay: float = 0.0

    def write(self, graph: Graph | EagerGraph, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Write one command a parameter, with one state of the parameter's size."""
        rate = _rate_of_step(graph, self.lr, parameters)
        attrs = {"alpha": self.alpha, "epsilon": self.epsilon, "decay": self.decay}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = _parameter_state(graph, parameter, "variance")
            results = graph.apply("nn.rmsprop", parameter, gradient, rate, state, **attrs)
            for target, source in zip([parameter, state], results, strict=True):
                graph.update(target, source)


@dataclass(frozen=True)
class Clipped:
    """Gradient clipping by global norm: all gradients are scaled by one factor to a total norm of at most `norm`.

    Computed as by torch.nn.utils.clip_grad_norm_ (Pascanu et al., 2013), before `optimizer`. No gradient is consumed
    before all gradients are complete.
    """

    optimizer: Optimizer
    norm: float

    def write(self, graph: Graph | EagerGraph, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Write the norm, the scaled gradients, and the commands of the optimiser."""
        total = nn.sqrt(sum(nn.square(gradient.astype("f32")).sum() for gradient in gradients))
        scale = nn.minimum(self.norm / (total + 1e-6), 1.0)
        scaled = [gradient * scale.astype(gradient.dtype) for gradient in gradients]
        self.optimizer.write(graph, parameters, scaled)

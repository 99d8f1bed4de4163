"""Recurrent cells, from a step to the next. Gates stand in PyTorch's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from sublet.nn.graph import Graph
from sublet.nn.modules.initial import uniform
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor
from sublet.nn.writer import Eager

State = tuple[Tensor, ...]
"""What a cell hands from one step to the next: h, and with an LSTM c."""


@dataclass(frozen=True, eq=False)
class Cell(Module):
    """One step. `hidden_bias=False` leaves the second bias out, as one is enough for all but a GRU."""

    units: int
    bias: bool = True
    hidden_bias: bool = True
    name: str | None = field(default=None, kw_only=True)

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    fused: ClassVar[str] = ""

    def weights(self, graph: Graph | Eager, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Of x and of h, and their biases."""
        rows, draw = self.gates * self.units, uniform(1 / sqrt(self.units))
        w = graph.parameter("input_weight", (rows, x.shape[-1]), x.dtype, draw)
        u = graph.parameter("hidden_weight", (rows, self.units), x.dtype, draw)
        b = graph.parameter("bias", (rows,), x.dtype, draw) if self.bias else None
        c = graph.parameter("hidden_bias", (rows,), x.dtype, draw) if self.bias and self.hidden_bias else None
        return w, u, b, c

    def products(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Of x[B, I] and h[B, units] with their weights: both [B, gates * units]."""
        graph = self.graph_of(x, "B I")
        w, u, b, c = self.weights(graph, x)
        return graph.apply("nn.linear", x, w, b)[0], graph.apply("nn.linear", h, u, c)[0]

    def zero(self, graph: Graph | Eager, x: Tensor) -> State:
        """The state before the first step over x[..., B, I]."""
        zero = graph.constant(np.zeros((x.shape[-2], self.units)), x.dtype)
        return (zero,) * self.states

    def step(self, x: Tensor, state: State) -> State:
        """The state after a step."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: Any = None) -> Any:
        given = self.zero(self.graph_of(x, "B I"), x) if state is None else state_of(state)
        return given_as(self.step(x, given))


def state_of(given: Any) -> State:
    """A state as a tuple; it is given as one tensor where it is one."""
    return (given,) if isinstance(given, Tensor) else tuple(given)


def given_as(state: State) -> Any:
    """A state as it is given to the user: one tensor where it is one."""
    return state if len(state) > 1 else state[0]


def tanh(x: Tensor) -> Tensor:
    """The activation of an RNN unless another is said."""
    return x.graph.apply("nn.tanh", x)[0]


@dataclass(frozen=True, eq=False)
class RNNCell(Cell):
    """h' = activation(x @ w.T + b + h @ u.T + c): (x[B, I], h[B, units]) -> h' (Elman, 1990)."""

    activation: Callable[[Tensor], Tensor] = tanh

    gates = 1

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.products(x, state[0])
        return (self.activation(by_x + by_h),)


@dataclass(frozen=True, eq=False)
class LSTMCell(Cell):
    """A step of an LSTM (Hochreiter and Schmidhuber, 1997): (x[B, I], (h, c)) -> (h', c'), all [B, units]."""

    gates, states, fused = 4, 2, "nn.lstm"

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.products(x, state[0])
        return x.graph.apply("nn.lstm_cell", by_x + by_h, state[1])[:2]


@dataclass(frozen=True, eq=False)
class GRUCell(Cell):
    """A step of a GRU (Cho et al., 2014) as PyTorch computes it: (x[B, I], h[B, units]) -> h'."""

    gates, fused = 3, "nn.gru"

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.products(x, state[0])
        return x.graph.apply("nn.gru_cell", by_x, by_h, state[0])[:1]

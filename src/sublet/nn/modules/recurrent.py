"""Recurrent cells: one step of a recurrent network. Gates are in PyTorch's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from sublet.nn.graph import Graph
from sublet.nn.graph_protocol import EagerGraph
from sublet.nn.modules.distributions import uniform
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor

State = tuple[Tensor, ...]
"""The state between two steps: (h,), or (h, c) for an LSTM."""


@dataclass(frozen=True, eq=False)
class RecurrentCell(Module):
    """A recurrent cell.

    units         width of the hidden state
    bias          add biases to the products
    hidden_bias   add a second bias, to the product of the hidden state; only a GRU needs two biases
    name          name of the scope
    gates         number of gates
    states        number of state tensors: 2 for an LSTM (h, c), else 1
    fused         name of the fused command for sequences; "" if none
    """

    units: int
    bias: bool = True
    hidden_bias: bool = True
    name: str | None = field(default=None, kw_only=True)

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    fused: ClassVar[str] = ""

    def declare_weights(
        self, graph: Graph | EagerGraph, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return the weights of x [gates * units, I] and of h [gates * units, units], and the two biases or None."""
        rows, draw = self.gates * self.units, uniform(1 / sqrt(self.units))
        w = graph.parameter("input_weight", (rows, x.shape[-1]), x.dtype, draw)
        u = graph.parameter("hidden_weight", (rows, self.units), x.dtype, draw)
        b = graph.parameter("bias", (rows,), x.dtype, draw) if self.bias else None
        c = graph.parameter("hidden_bias", (rows,), x.dtype, draw) if self.bias and self.hidden_bias else None
        return w, u, b, c

    def gate_products(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of x[B, I] and h[B, units] with the weights, with biases: both [B, gates * units]."""
        graph = self.graph_of(x, "B I")
        w, u, b, c = self.declare_weights(graph, x)
        return graph.apply("nn.linear", x, w, b)[0], graph.apply("nn.linear", h, u, c)[0]

    def zero_state(self, graph: Graph | EagerGraph, x: Tensor) -> State:
        """Return the zero state for x[..., B, I]."""
        zero = graph.constant(np.zeros((x.shape[-2], self.units)), x.dtype)
        return (zero,) * self.states

    def step(self, x: Tensor, state: State) -> State:
        """Return the state after a step from `state` with input x[B, I]."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: Any = None) -> Any:
        """Return the state after a step from `state`, by default zero: h[B, units], or (h, c) for an LSTM.

        Raises SpecError unless x has the axes [B, I].
        """
        given = self.zero_state(self.graph_of(x, "B I"), x) if state is None else as_state(state)
        return as_user_state(self.step(x, given))


def as_state(given: Any) -> State:
    """Return a state given by the user as a tuple of tensors; a single tensor becomes a tuple of one."""
    return (given,) if isinstance(given, Tensor) else tuple(given)


def as_user_state(state: State) -> Any:
    """Return a state for the user: the tensor itself if the state has one tensor, else a tuple."""
    return state if len(state) > 1 else state[0]


def tanh(x: Tensor) -> Tensor:
    """Return tanh(x), the default activation of an RNN."""
    return x.graph.apply("nn.tanh", x)[0]


@dataclass(frozen=True, eq=False)
class RNNCell(RecurrentCell):
    """An Elman cell: h' = activation(x @ w.T + b + h @ u.T + c), (x[B, I], h[B, units]) -> h' (Elman, 1990)."""

    activation: Callable[[Tensor], Tensor] = tanh

    gates = 1

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.gate_products(x, state[0])
        return (self.activation(by_x + by_h),)


@dataclass(frozen=True, eq=False)
class LSTMCell(RecurrentCell):
    """An LSTM cell (Hochreiter and Schmidhuber, 1997): (x[B, I], (h, c)) -> (h', c'), all states [B, units]."""

    gates, states, fused = 4, 2, "nn.lstm"

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.gate_products(x, state[0])
        return x.graph.apply("nn.lstm_cell", by_x + by_h, state[1])[:2]


@dataclass(frozen=True, eq=False)
class GRUCell(RecurrentCell):
    """A GRU cell (Cho et al., 2014) as computed by PyTorch: (x[B, I], h[B, units]) -> h'."""

    gates, fused = 3, "nn.gru"

    def step(self, x: Tensor, state: State) -> State:
        by_x, by_h = self.gate_products(x, state[0])
        return x.graph.apply("nn.gru_cell", by_x, by_h, state[0])[:1]

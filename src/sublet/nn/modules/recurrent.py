"""Recurrent cells: one step of a recurrent network. Gates are in PyTorch's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from sublet.base.errors import SpecError
from sublet.nn.graph import EagerGraph, Graph
from sublet.nn.modules.module import Module, uniform
from sublet.nn.modules.normalization import Dropout
from sublet.nn.source_location import at_line
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


# Stacks of recurrent cells over sequences.
#
# A sequence runs through a loop of the graph (`While`), one iteration a step; or through one fused command, with the
# gates of all steps kept. A gradient needs all gates anyway: the command is better in training, the loop in evaluation.


@dataclass(frozen=True, eq=False)
class Recurrent(Module):
    """Layers of cells over xs[T, B, I]: returns ys[T, B, units] and the list of final states.

    In both directions (`bidirectional`) ys is [T, B, 2 * units]. Initial and final states are lists: for each layer,
    and inside for each direction, h[B, units], or (h, c) for an LSTM.

    units, bias, hidden_bias   as for the cells
    layers          number of layers; each layer reads the rows of the layer before
    bidirectional   run each layer in both directions
    dropout         rate of dropout between layers
    fused           True for one fused command a sequence, False for a loop; by default the command in training and on a
                    dynamic graph, else the loop. An RNN has no fused command and always runs as a loop
    """

    units: int
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    hidden_bias: bool = True
    dropout: float = 0.0
    fused: bool | None = None
    name: str | None = field(default=None, kw_only=True)

    cell_type: ClassVar[type[RecurrentCell]]

    def make_cell(self, name: str) -> RecurrentCell:
        """Return the cell of one layer and direction, named `name`."""
        return self.cell_type(self.units, self.bias, self.hidden_bias, name=name)

    def forward(self, xs: Tensor, initial: Sequence[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """Return ys[T, B, units] (2 * units if bidirectional) and the final states of all layers and directions.

        `initial` lists the initial states in the order of the final states; zeros by default. Raises SpecError for a
        wrong number of initial states, and unless xs has the axes [T, B, I].
        """
        graph = self.graph_of(xs, "T B I")
        directions = ("", "_reverse")[: 1 + self.bidirectional]
        given = [None] * self.layers * len(directions) if initial is None else list(initial)
        if len(given) != self.layers * len(directions):
            what = f"{len(given)} initial states for {self.layers} layers in {len(directions)} directions"
            raise SpecError(at_line(f"{type(self).__name__}: {what}"))
        ys, states = xs, []
        for layer in range(self.layers):
            if layer and self.dropout:
                ys = Dropout(self.dropout, name=f"dropout{layer}")(ys)
            outputs = []
            for direction in directions:
                out, state = self._run_layer(
                    self.make_cell(f"l{layer}{direction}"), ys, given.pop(0), backwards=bool(direction)
                )
                outputs.append(out)
                states.append(as_user_state(state))
            ys = outputs[0] if len(outputs) == 1 else graph.apply("nn.concat", *outputs, axis=2)[0]
        return ys, states

    def _run_layer(self, cell: RecurrentCell, xs: Tensor, initial: Any, *, backwards: bool) -> tuple[Tensor, State]:
        """Return all h[T, B, units] and the final state of one layer in one direction."""
        graph = self.graph_of(xs, "T B I")
        state = cell.zero_state(graph, xs) if initial is None else as_state(initial)
        with graph.module(cell):
            uses_gates = graph.training or not isinstance(graph, Graph)
            if cell.fused and (uses_gates if self.fused is None else self.fused):
                return _run_fused(cell, xs, state, backwards)
            return _run_as_loop(cell, xs, state, backwards)


def _run_as_loop(cell: RecurrentCell, xs: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
    """Return all h and the final state, computed by a loop of the graph."""
    graph = cell.graph_of(xs, "T B I")
    names = ("h", "c")[: cell.states]
    with graph.while_(dict(zip(names, state, strict=True)), over={"x": xs}, backwards=backwards) as loop:
        next_state = cell.step(loop["x"], tuple(loop[name] for name in names))
        loop.next(**dict(zip(names, next_state, strict=True)))
        rows = {f"{name}s": one for name, one in zip(names, next_state, strict=True)}
        loop.stack(
            **(rows if graph.training else {"hs": next_state[0]})
        )  # the backward loop reads the rows without copies
    return loop["hs"], tuple(loop[name] for name in names)


def _run_fused(cell: RecurrentCell, xs: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
    """Return all h and the final state, computed by the fused command."""
    graph = cell.graph_of(xs, "T B I")

    def reverse_if_backwards(rows: Tensor) -> Tensor:
        return graph.apply("nn.flip", rows, axes=(0,))[0] if backwards else rows

    ys, *finals = graph.apply(cell.fused, reverse_if_backwards(xs), *state, *cell.declare_weights(graph, xs))
    return reverse_if_backwards(ys), tuple(finals[: cell.states])


@dataclass(frozen=True, eq=False)
class RNN(Recurrent):
    """An Elman network over a sequence, see `Recurrent`; `activation` is tanh by default."""

    activation: Callable[[Tensor], Tensor] = tanh
    cell_type = RNNCell

    def make_cell(self, name: str) -> RecurrentCell:
        return RNNCell(self.units, self.bias, self.hidden_bias, self.activation, name=name)


@dataclass(frozen=True, eq=False)
class LSTM(Recurrent):
    """An LSTM over a sequence (Hochreiter and Schmidhuber, 1997), see `Recurrent`."""

    cell_type = LSTMCell


@dataclass(frozen=True, eq=False)
class GRU(Recurrent):
    """A GRU over a sequence (Cho et al., 2014), see `Recurrent`."""

    cell_type = GRUCell

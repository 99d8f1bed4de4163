"""Stacks of recurrent cells over sequences.

A sequence goes through a loop of the graph (`While`), a round a step; or through one fused command, which keeps the
gates of all steps. A gradient needs these anyway, so the command pays in training, and in evaluation the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sublet.base.errors import SpecError
from sublet.nn.graph import Graph
from sublet.nn.lines import at_line
from sublet.nn.modules.dropout import Dropout
from sublet.nn.modules.module import Module
from sublet.nn.modules.recurrent import Cell, GRUCell, LSTMCell, RNNCell, State, given_as, state_of, tanh
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Recurrent(Module):
    """Layers of cells over xs[T, B, I]: gives ys[T, B, units], twice as wide in both directions, and the last states.

    States, also `initial` ones, are a list: for each layer, and in it for each direction, h[B, units], or (h, c) with
    an LSTM. `fused=True` computes a sequence by one command, `fused=False` by a loop, unless said by the command in
    training and on a dynamic graph. `dropout` drops between layers.
    """

    units: int
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    hidden_bias: bool = True
    dropout: float = 0.0
    fused: bool | None = None
    name: str | None = field(default=None, kw_only=True)

    kind_of_cell: ClassVar[type[Cell]]

    def cell(self, name: str) -> Cell:
        """The cell of one layer and direction."""
        return self.kind_of_cell(self.units, self.bias, self.hidden_bias, name=name)

    def forward(self, xs: Tensor, initial: Sequence[Any] | None = None) -> tuple[Tensor, list[Any]]:
        graph = self.graph_of(xs, "T B I")
        ways = ("", "_reverse")[: 1 + self.bidirectional]
        given = [None] * self.layers * len(ways) if initial is None else list(initial)
        if len(given) != self.layers * len(ways):
            what = f"{len(given)} initial states for {self.layers} layers in {len(ways)} directions"
            raise SpecError(at_line(f"{type(self).__name__}: {what}"))
        ys, states = xs, []
        for layer in range(self.layers):
            if layer and self.dropout:
                ys = Dropout(self.dropout, name=f"dropout{layer}")(ys)
            made = []
            for way in ways:
                out, state = self._through(self.cell(f"l{layer}{way}"), ys, given.pop(0), backwards=bool(way))
                made.append(out)
                states.append(given_as(state))
            ys = made[0] if len(made) == 1 else graph.apply("nn.concat", *made, axis=2)[0]
        return ys, states

    def _through(self, cell: Cell, xs: Tensor, initial: Any, *, backwards: bool) -> tuple[Tensor, State]:
        """One layer in one direction: all h, and the last state."""
        graph = self.graph_of(xs, "T B I")
        state = cell.zero(graph, xs) if initial is None else state_of(initial)
        with graph.module(cell):
            pays = graph.training or not isinstance(graph, Graph)
            if cell.fused and (pays if self.fused is None else self.fused):
                return _fused(cell, xs, state, backwards)
            return _looped(cell, xs, state, backwards)


def _looped(cell: Cell, xs: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
    graph = cell.graph_of(xs, "T B I")
    names = ("h", "c")[: cell.states]
    with graph.while_(dict(zip(names, state, strict=True)), over={"x": xs}, backwards=backwards) as loop:
        after = cell.step(loop["x"], tuple(loop[name] for name in names))
        loop.next(**dict(zip(names, after, strict=True)))
        rows = {f"{name}s": one for name, one in zip(names, after, strict=True)}
        loop.stack(**(rows if graph.training else {"hs": after[0]}))  # what a backward loop reads needs no copy then
    return loop["hs"], tuple(loop[name] for name in names)


def _fused(cell: Cell, xs: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
    graph = cell.graph_of(xs, "T B I")

    def turned(rows: Tensor) -> Tensor:
        return graph.apply("nn.flip", rows, axes=(0,))[0] if backwards else rows

    ys, *made = graph.apply(cell.fused, turned(xs), *state, *cell.weights(graph, xs))
    return turned(ys), tuple(made[: cell.states])


@dataclass(frozen=True, eq=False)
class RNN(Recurrent):
    """An Elman network over a sequence, see `Recurrent`; `activation` is another function than tanh."""

    activation: Callable[[Tensor], Tensor] = tanh
    kind_of_cell = RNNCell

    def cell(self, name: str) -> Cell:
        return RNNCell(self.units, self.bias, self.hidden_bias, self.activation, name=name)


@dataclass(frozen=True, eq=False)
class LSTM(Recurrent):
    """An LSTM over a sequence (Hochreiter and Schmidhuber, 1997), see `Recurrent`."""

    kind_of_cell = LSTMCell


@dataclass(frozen=True, eq=False)
class GRU(Recurrent):
    """A GRU over a sequence (Cho et al., 2014), see `Recurrent`."""

    kind_of_cell = GRUCell

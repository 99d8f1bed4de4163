"""Dense layers and embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.nn.initial_values import Draw
from sublet.nn.modules.distributions import normal, uniform_by_fan_in
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Dense(Module):
    """A dense layer: x[..., I] @ weight[units, I].T + bias[units] -> [..., units].

    units     width of the output
    bias      add a bias
    initial   function drawing the initial weight; uniform in +-1/sqrt(I) by default
    name      name of the scope
    """

    units: int
    bias: bool = True
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer applied to x[..., I], of shape [..., units]. Raises SpecError for a scalar."""
        graph = self.graph_of(x, "... I")
        draw = uniform_by_fan_in(x.shape[-1:])
        w = graph.parameter("weight", (self.units, x.shape[-1]), x.dtype, self.initial or draw)
        b = graph.parameter("bias", (self.units,), x.dtype, draw) if self.bias else None
        return graph.apply("nn.linear", x, w, b)[0]


@dataclass(frozen=True, eq=False)
class Embedding(Module):
    """A table of rows: row i of weight[rows, width] for every index i, indices[...] -> [..., width].

    rows, width   shape of the table
    dtype         type of the elements
    initial       function drawing the initial table; the standard normal distribution by default
    name          name of the scope
    """

    rows: int
    width: int
    dtype: str = "f32"
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows at the indices, of shape [..., width]. Raises SpecError unless the indices are integers."""
        graph = self.graph_of(indices, "...")
        w = graph.parameter("weight", (self.rows, self.width), self.dtype, self.initial or normal(1))
        return graph.apply("nn.embedding", w, indices)[0]

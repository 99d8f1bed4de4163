"""Dense layers and embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.nn.content import Draw
from sublet.nn.modules.initial import by_fan_in, normal
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Dense(Module):
    """x[..., I] @ weight[units, I].T + bias[units] -> [..., units]."""

    units: int
    bias: bool = True
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor) -> Tensor:
        graph = self.graph_of(x, "... I")
        draw = by_fan_in(x.shape[-1:])
        w = graph.parameter("weight", (self.units, x.shape[-1]), x.dtype, self.initial or draw)
        b = graph.parameter("bias", (self.units,), x.dtype, draw) if self.bias else None
        return graph.apply("nn.linear", x, w, b)[0]


@dataclass(frozen=True, eq=False)
class Embedding(Module):
    """Row i of weight[rows, width] for every index i: indices[...] -> [..., width]."""

    rows: int
    width: int
    dtype: str = "f32"
    initial: Draw | None = None
    name: str | None = field(default=None, kw_only=True)

    def forward(self, indices: Tensor) -> Tensor:
        graph = self.graph_of(indices, "...")
        w = graph.parameter("weight", (self.rows, self.width), self.dtype, self.initial or normal(1))
        return graph.apply("nn.embedding", w, indices)[0]

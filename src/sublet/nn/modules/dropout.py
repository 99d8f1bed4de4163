"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Dropout(Module):
    """Zeros for a share of the elements in training, others in each run and at each place; the rest is scaled up.

    `key` is the graph's own unless said. In a loop that drops the same elements in each round (Gal and Ghahramani,
    2016); with `key=g.key() + loop.counter` other ones.
    """

    rate: float
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        graph = self.graph_of(x, "...")
        if not graph.training:
            return x
        stream = crc32(f"{graph.prefix}{graph.repeated or ''}".encode())  # the same whatever else is drawn
        return graph.apply("nn.dropout", x, graph.key() if key is None else key, rate=self.rate, stream=stream)[0]

"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Dropout(Module):
    """Dropout: in training, a share `rate` of the elements becomes zero, and the rest is scaled up by 1 / (1 - rate).

    The choice differs by run and by position in the network. `key` is the graph's own by default; in a loop, the
    default key drops the same elements in each iteration (Gal and Ghahramani, 2016), and `key=g.key() + loop.counter`
    different elements.
    """

    rate: float
    name: str | None = field(default=None, kw_only=True)

    def forward(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return x with dropout in training, and x itself in evaluation."""
        graph = self.graph_of(x, "...")
        if not graph.training:
            return x
        stream = crc32(f"{graph.prefix}{graph.prior_calls or ''}".encode())  # independent of other draws in the graph
        return graph.apply("nn.dropout", x, graph.key() if key is None else key, rate=self.rate, stream=stream)[0]

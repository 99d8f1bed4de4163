"""What a module is: a record of configuration, called on tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sublet.base.errors import SpecError
from sublet.nn.graph import Graph
from sublet.nn.lines import at_line
from sublet.nn.tensor import Tensor, told
from sublet.nn.writer import Eager, graph_of


class Module:
    """A layer or network: it is made once, holds no arrays, and is called on tensors of any graph.

        class Block(Module):
            def __init__(self, channels):
                self.conv, self.norm = Conv(channels, 3, bias=False), BatchNorm()

            def forward(self, x):
                return nn.relu(self.norm(self.conv(x)))

    What it computes is written in `forward`. Its parameters belong to the graph it is called on, by the names of the
    modules around and of the attributes they are held by: "block/conv/weight". Called again on the same graph, it
    shares them. `name` names it otherwise; "" gives it no part in the names of what is inside.
    """

    name: str | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module makes of tensors."""
        raise SpecError(at_line(f"{type(self).__name__} computes nothing: write its `forward`"))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Write or compute what the module makes of tensors, in a scope of its own."""
        with graph_of(_first(inputs, named)).module(self):
            return self.forward(*inputs, **named)

    @property
    def kind(self) -> str:
        """What it is called by where it was given no name: that of its class, as "batch_norm"."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__).lower()

    def children(self) -> Iterator[tuple[str, object]]:
        """The modules it is made of, by the names of its attributes: "conv", or "blocks/0" in a list or dict."""
        for name, held in vars(self).items():
            if isinstance(held, list | tuple):
                yield from ((f"{name}/{i}", one) for i, one in enumerate(held))
            elif isinstance(held, dict):
                yield from ((f"{name}/{key}", one) for key, one in held.items())
            else:
                yield name, held

    def graph_of(self, x: Tensor, axes: str) -> Graph | Eager:
        """The graph of x. Raises SpecError unless x has these axes, as "N C ...", where "..." is any number."""
        names = axes.split()
        graph = graph_of(x)
        if not (x.ndim >= len(names) - 1 if "..." in names else x.ndim == len(names)):
            raise SpecError(at_line(f"{type(self).__name__}: {told(x)} must have the axes [{', '.join(names)}]"))
        return graph


def _first(inputs: Iterable[Any], named: dict[str, Any]) -> Any:
    """The first of the inputs that is a tensor, else the first."""
    given = [*inputs, *named.values()]
    flat = [one for each in given for one in (each if isinstance(each, list | tuple) else (each,))]
    return next((one for one in flat if isinstance(one, Tensor)), given[0] if given else None)

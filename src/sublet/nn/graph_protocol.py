"""The graphs written to by layers and optimisers: symbolic graphs, and dynamic graphs computing at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import DType
from sublet.nn.control import ControlFlowWriter
from sublet.nn.graph import Graph
from sublet.nn.scope_names import NamedModule
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Operand, Tensor


class EagerGraph(ControlFlowWriter, Protocol):
    """The interface of a graph computing at once, for layers, optimisers and gradients (`sublet.DynamicGraph`)."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """Return the outputs of a command."""

    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """Return the parameter of a name, created at the first request."""

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """Return the state of a name, created at the first request."""

    def key(self, seed: int = 0) -> Tensor:
        """Return a key of random numbers, different in each call."""

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a number or an array as a tensor."""

    def update(self, target: Tensor, source: Tensor) -> None:
        """Assign the content of `source` to a parameter or state."""

    def after(self, target: Tensor) -> Tensor:
        """Return the content of a parameter or state after all updates so far."""

    def module(self, module: NamedModule) -> AbstractContextManager[None]:
        """Enter the scope of a module inside `with`."""

    @property
    def prior_calls(self) -> int:
        """The number of earlier calls of the running module, where needed to draw different random numbers."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Begin names made inside `with` by `name/`."""

    def unused_scope_name(self, name: str) -> str:
        """Return a name for a new scope."""

    @property
    def prefix(self) -> str:
        """The prefix of new names."""

    def gradients(self, of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
        """Return the gradients of `of` with respect to each tensor in `wrt`."""


def graph_of(tensor: Tensor) -> Graph | EagerGraph:
    """Return the graph of a tensor. Raises SpecError for other than a tensor."""
    if not isinstance(tensor, Tensor):
        hint = ": pass one item of the tuple, as nn.softmax_cross_entropy(...)[0]" if isinstance(tensor, tuple) else ""
        hint = ": convert the array with d.tensor or g.constant" if isinstance(tensor, np.ndarray) else hint
        raise SpecError(at_line(f"{type(tensor).__name__} is not a Tensor{hint}"))
    graph: Any = tensor.graph
    return graph  # type: ignore[no-any-return]

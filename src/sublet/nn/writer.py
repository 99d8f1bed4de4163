"""What layers and optimisers write to: a graph that is being written, or one that computes at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sublet.base.errors import SpecError
from sublet.base.tensor import DType
from sublet.nn.controlled import Controlled
from sublet.nn.graph import Graph
from sublet.nn.lines import at_line
from sublet.nn.naming import Named
from sublet.nn.tensor import Operand, Tensor


class Eager(Controlled, Protocol):
    """A graph that computes at once, as layers, optimisers and gradients see it (`sublet.DynamicGraph`)."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a command."""

    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """The parameter of a name, made when it is asked for first."""

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """The state of a name, made when it is asked for first."""

    def key(self, seed: int = 0) -> Tensor:
        """A key of random numbers."""

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """A number or an array."""

    def update(self, target: Tensor, source: Tensor) -> None:
        """Let a parameter or state take another content."""

    def after(self, target: Tensor) -> Tensor:
        """What a parameter or state holds from now on."""

    def module(self, module: Named) -> AbstractContextManager[None]:
        """Around what a module computes."""

    @property
    def repeated(self) -> int:
        """How often the module that is called was called before, where that tells random numbers apart."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Names made inside begin with `name/`."""

    def unused(self, name: str) -> str:
        """A name for a scope that has not been open yet."""

    @property
    def prefix(self) -> str:
        """What names begin with here."""

    def gradients(self, of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
        """The gradients of a tensor by others."""


def graph_of(tensor: Tensor) -> Graph | Eager:
    """The graph that a tensor belongs to. Raises SpecError for anything else."""
    if not isinstance(tensor, Tensor):
        what = "a tuple of tensors: take one of them, as nn.softmax_cross_entropy(...)[0]"
        raise SpecError(at_line(f"{what if isinstance(tensor, tuple) else type(tensor).__name__ + ' is no Tensor'}"))
    graph: Any = tensor.graph
    return graph  # type: ignore[no-any-return]

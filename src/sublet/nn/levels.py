"""The levels of a graph that is being written: the root, and inside it bodies of loops and arms of branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType
from sublet.ir.graph import Value
from sublet.nn.lines import at_line, user_line
from sublet.nn.tensor import Operand, Tensor, Writer, told
from sublet.ops.emitter import Emitter


@dataclass(eq=False)
class Level:
    """A graph or sub-graph that nodes are appended to. `what` names it in messages."""

    emit: Emitter
    what: str


class Levels:
    """The levels that are open, from the root down, and where every value was made."""

    def __init__(self, graph: Writer, root: Emitter) -> None:
        self._graph = graph
        self.open = [Level(root, "the graph")]
        self.homes: dict[str, Level] = {}

    @property
    def here(self) -> Level:
        return self.open[-1]

    @property
    def emit(self) -> Emitter:
        """Appends nodes at the innermost open level."""
        return self.here.emit

    def require_root(self, what: str) -> None:
        """Raise SpecError, saying that `what` is done outside of loops and branches, unless it is."""
        if len(self.open) > 1:
            raise SpecError(at_line(f"{what} outside of loops and branches, not in {self.here.what}"))

    def tensor(self, value: Value, level: Level | None = None) -> Tensor:
        """The tensor of a value that is made now, at the innermost level unless told."""
        self.homes[value.name] = level or self.here
        return Tensor(self._graph, value)

    def read(self, tensor: Tensor) -> Value:
        """The value of a tensor. Raises SpecError when it is of another graph or of a level that is closed."""
        if not isinstance(tensor, Tensor):
            hint = ": g.constant makes one" if isinstance(tensor, bool | int | float | np.ndarray | np.generic) else ""
            raise SpecError(at_line(f"{type(tensor).__name__} is no Tensor{hint}"))
        if tensor.graph is not self._graph:
            raise SpecError(at_line(f"{told(tensor)} belongs to another graph"))
        home = self.homes.get(tensor.value.name)
        if home is None:
            raise SpecError(
                at_line(f"{told(tensor)} was taken back, because the scope it was made in ended by an error")
            )
        if home not in self.open:
            what = f"{told(tensor)} was made in {home.what} and is not known outside of it"
            raise SpecError(at_line(f"{what}: take what the loop or branch gives instead"))
        return tensor.value

    def write(
        self,
        op: str,
        inputs: Sequence[Operand],
        attrs: Mapping[str, Any],
        operand: Callable[[Operand, DType | None], Value | None],
    ) -> Sequence[Value]:
        """The outputs of a new node at the innermost level. `operand` gives the value of an input, of which a number
        takes the type of the first tensor.

        Raises SpecError, which begins with the user's line, when the command does not take such inputs.
        """
        emit = self.emit
        kinds = [given.dtype for given in inputs if isinstance(given, Tensor)]
        like = next((kind for kind in kinds if kind is not DType.BOOL), None)
        values = [operand(given, like) for given in inputs]
        emit.source = user_line()
        try:
            return emit.several(op, *values, **attrs)
        except SubletError as error:
            named = "" if str(error).startswith(op) else f"{op}: "
            raise SpecError(at_line(f"{named}{error}")) from None

    def results(self, values: Sequence[Value]) -> list[Tensor]:
        """The tensors of what a loop or branch gives that was just written."""
        return [self.tensor(value) for value in values]

    def push(self, what: str) -> Level:
        """Open a level below the innermost."""
        self.open.append(Level(self.here.emit.inside(), what))
        return self.here

    def pop(self) -> Level:
        """Close the innermost level."""
        return self.open.pop()

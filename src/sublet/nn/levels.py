"""The levels of a graph that is being written: the root, and inside it bodies of loops and arms of branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.errors import SpecError
from sublet.ir.graph import Value
from sublet.nn.lines import at_line
from sublet.nn.tensor import Tensor, Writer
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
            raise SpecError(at_line(f"{tensor!r} belongs to another graph"))
        home = self.homes.get(tensor.value.name)
        if home is None:
            raise SpecError(at_line(f"{tensor!r} was taken back, because the scope it was made in ended by an error"))
        if home not in self.open:
            what = f"{tensor!r} was made in {home.what} and is not known outside of it"
            raise SpecError(at_line(f"{what}: take what the loop or branch gives instead"))
        return tensor.value

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

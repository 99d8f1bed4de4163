"""The nested levels of a graph under construction: the root, bodies of loops, and arms of branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType
from sublet.ir.graph import Value
from sublet.nn.source_location import at_line, user_line
from sublet.nn.tensor import Operand, Tensor, TensorWriter, describe
from sublet.ops.emitter import Emitter


@dataclass(eq=False)
class GraphLevel:
    """A graph or sub-graph under construction. `what` is the name in messages."""

    emit: Emitter
    description: str


class LevelStack:
    """The stack of open levels, from the root down, with the level of every value."""

    def __init__(self, graph: TensorWriter, root: Emitter) -> None:
        self._graph = graph
        self.open_levels = [GraphLevel(root, "the graph")]
        self.level_of_value: dict[str, GraphLevel] = {}

    @property
    def innermost(self) -> GraphLevel:
        """The innermost open level."""
        return self.open_levels[-1]

    @property
    def emit(self) -> Emitter:
        """The emitter appending nodes at the innermost open level."""
        return self.innermost.emit

    def require_root(self, what: str) -> None:
        """Raise SpecError inside a loop or branch: `what` must be done outside."""
        if len(self.open_levels) > 1:
            raise SpecError(at_line(f"{what} only outside of loops and branches, not in {self.innermost.description}"))

    def new_tensor(self, value: Value, level: GraphLevel | None = None) -> Tensor:
        """Return a tensor for a new value of a level, by default the innermost."""
        self.level_of_value[value.name] = level or self.innermost
        return Tensor(self._graph, value)

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value of a tensor; an array becomes a constant.

        Raises SpecError for a tensor of another graph, and for a tensor of a closed level.
        """
        if isinstance(tensor, np.ndarray):
            return self.value_of(self._graph.constant(tensor))
        if not isinstance(tensor, Tensor):
            hint = ": convert it with g.constant" if isinstance(tensor, bool | int | float | list | np.generic) else ""
            raise SpecError(at_line(f"{type(tensor).__name__} is not a Tensor{hint}"))
        if tensor.graph is not self._graph:
            raise SpecError(at_line(f"{describe(tensor)} belongs to another graph"))
        level = self.level_of_value.get(tensor.value.name)
        if level is None:
            raise SpecError(
                at_line(f"{describe(tensor)} was removed from the graph, because its scope ended with an error")
            )
        if level not in self.open_levels:
            what = f"{describe(tensor)} belongs to {level.description} and cannot be used outside"
            raise SpecError(at_line(f"{what}: use a result of the loop or branch instead"))
        return tensor.value

    def append_node(
        self,
        op: str,
        inputs: Sequence[Operand],
        attrs: Mapping[str, Any],
        operand: Callable[[Operand, DType | None], Value | None],
    ) -> Sequence[Value]:
        """Append a node at the innermost level and return the outputs.

        `operand` converts an input to a value; a number takes the type of the first tensor with a type other than bool.
        Raises SpecError, beginning with the user's line, for inputs not accepted by the command.
        """
        emit = self.emit
        kinds = [given.dtype for given in inputs if isinstance(given, Tensor)]
        number_type = next((kind for kind in kinds if kind is not DType.BOOL), None)
        values = [operand(given, number_type) for given in inputs]
        emit.source = user_line()
        try:
            return emit.all_outputs(op, *values, **attrs)
        except SubletError as error:
            prefix = "" if str(error).startswith(op) else f"{op}: "
            raise SpecError(at_line(f"{prefix}{error}")) from None

    def result_tensors(self, values: Sequence[Value]) -> list[Tensor]:
        """Return the tensors of the results of a finished loop or branch."""
        return [self.new_tensor(value) for value in values]

    def push(self, what: str) -> GraphLevel:
        """Open a level inside the innermost level."""
        self.open_levels.append(GraphLevel(self.innermost.emit.for_subgraph(), what))
        return self.innermost

    def pop(self) -> GraphLevel:
        """Close the innermost level."""
        return self.open_levels.pop()

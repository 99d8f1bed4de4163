"""Loops and branches of a dynamic graph: first written without computing, then computed as a single command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.control_flow_commands import PROGRAM_ATTR, WrittenControlFlow
from sublet.dynamic.eager_executor import EagerExecutor, number_type
from sublet.dynamic.tensor import BlockTensor, CommandExecutor, EagerTensor, TensorOwner, unknown_outside_error
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.ir.graph import Value
from sublet.nn.graph import as_array
from sublet.nn.level_stack import GraphLevel, LevelStack
from sublet.nn.tensor import Tensor
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.rules import FLOATS


class BlockGraph(TensorOwner, Protocol):
    """The interface of a dynamic graph for its loops and branches."""

    calling: Any
    _eager: EagerExecutor


class DeferredBlock(LevelStack):
    """The stack of a loop or branch under construction, including all loops and branches inside.

    While a block is open, `graph.calling` is the block: commands are appended to the body, and not computed.

    outer    the value of `graph.calling` before the block
    """

    def __init__(self, graph: BlockGraph) -> None:
        graph._eager.require_open()
        names = NameGenerator()
        super().__init__(graph, Emitter(names, LiteralPool(names)))
        self._owner = graph
        self._captured: dict[int, tuple[EagerTensor, Value]] = {}
        self.outer: Any = graph.calling
        self._recording = graph._eager.recording

    # Interface of the level stack

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value of a tensor. A tensor from outside becomes an operand of the block.

        Raises SpecError for a tensor of another graph, and for a tensor of a closed level.
        """
        if isinstance(tensor, EagerTensor) and tensor.graph is self._owner:
            captured = self._captured.get(id(tensor))
            if captured is None:
                value = Value(self.open_levels[0].emit.names.fresh("given"), tensor._kind.spec)
                captured = self._captured[id(tensor)] = tensor, value
            return captured[1]
        if isinstance(tensor, BlockTensor) and tensor.graph is self._owner:
            if tensor.level not in self.open_levels:
                raise unknown_outside_error(tensor)
            return tensor.value
        return super().value_of(tensor)

    def new_tensor(self, value: Value, level: GraphLevel | None = None) -> Tensor:
        """Return a tensor for a new value of a level, by default the innermost."""
        return BlockTensor(self._owner, value, level or self.innermost)

    def push(self, what: str) -> GraphLevel:
        """Open a level. The outermost level reserves the graph for the thread and redirects commands to the block."""
        if len(self.open_levels) == 1:
            self._owner.exclusive_access.enter()
            self.outer, self._owner.calling = self._owner.calling, self
        return super().push(what)

    def pop(self) -> GraphLevel:
        """Close the innermost level. After the outermost level commands go to the previous target again."""
        level = super().pop()
        if len(self.open_levels) == 1:
            self._owner.calling = self.outer
            self._owner.exclusive_access.leave()
        return level

    def result_tensors(self, values: Sequence[Value]) -> list[Tensor]:
        """Return the results of a finished loop or branch.

        The outermost loop or branch is applied as a single command: computed at once, or deferred in a replay.
        """
        if len(self.open_levels) > 1:
            return super().result_tensors(self._stop_unrecorded_gradients(values))
        written = WrittenControlFlow(self.emit.nodes[-1])
        tensors = {value: tensor for tensor, value in self._captured.values()}
        computing: CommandExecutor = self.outer or self._owner._eager
        given = [tensors[value] for value in written.operands]
        return list(computing.apply(written.node.op, given, {PROGRAM_ATTR: written}))

    # Interface as the target of commands, `graph.calling`

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Append a command at the innermost level and return the outputs."""
        return tuple(
            self.new_tensor(value)
            for value in self._stop_unrecorded_gradients(self.append_node(op, inputs, attrs, self._operand_value))
        )

    def _stop_unrecorded_gradients(self, values: Sequence[Value]) -> Sequence[Value]:
        """Return the values; for a command written inside `no_grad` without gradients, by a stop-gradient command."""
        if self._owner._eager.recording or not self._recording:
            return values
        return [self.emit(STOP_GRADIENT, value) if spec_of(value).dtype in FLOATS else value for value in values]

    def _operand_value(self, given: Any, like: DType | None) -> Value | None:
        """Return the value of an operand: a number is a constant of the body, an array a tensor from outside."""
        if given is None:
            return None
        if isinstance(given, Tensor):
            return self.value_of(given)
        if not isinstance(given, bool | int | float | np.generic):
            return self.value_of(self._owner._eager.tensor_from_array(given))
        kind = number_type(given, like)
        return self.emit.literals.constant_of((as_array(given, kind).item(),), TensorSpec(kind, ()))

    def materialize(self, tensor: EagerTensor) -> TensorStorage:
        """Return the storage of a tensor from outside, computed first if deferred."""
        with self.outside_block():
            return self._owner.materialize(tensor)

    @contextmanager
    def outside_block(self) -> Iterator[None]:
        """Apply the commands inside `with` outside of the loop or branch, before it."""
        self._owner.calling = self.outer
        try:
            yield
        finally:
            self._owner.calling = self

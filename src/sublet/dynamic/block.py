"""Loops and branches of a dynamic graph: while one is written nothing is computed, and then it is one command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.eager import Eager, number_type
from sublet.dynamic.programs import WRITTEN, Written
from sublet.dynamic.storage import Storage
from sublet.dynamic.tensor import Computing, EagerTensor, Inner, Owner, not_known
from sublet.ir.graph import Value
from sublet.nn.graph import as_array
from sublet.nn.levels import Level, Levels
from sublet.nn.tensor import Tensor
from sublet.ops.emitter import Emitter, Literals, Names
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.shapes import FLOATS


class Writing(Owner, Protocol):
    """A graph, as its loops and branches see it."""

    calling: Any
    _eager: Eager


class Block(Levels):
    """A loop or branch that is being written, with those in it: what a graph is `calling` meanwhile.

    outer    what the graph was calling before
    """

    def __init__(self, graph: Writing) -> None:
        graph._eager.require_open()
        names = Names()
        super().__init__(graph, Emitter(names, Literals(names)))
        self._owner = graph
        self._captured: dict[int, tuple[EagerTensor, Value]] = {}
        self.outer: Any = graph.calling
        self._recording = graph._eager.recording

    # As the levels of what is written

    def read(self, tensor: Tensor) -> Value:
        """The value of a tensor: of one that is there, that which stands for it inside."""
        if isinstance(tensor, EagerTensor) and tensor.graph is self._owner:
            found = self._captured.get(id(tensor))
            if found is None:
                value = Value(self.open[0].emit.names.fresh("given"), tensor._kind.spec)
                found = self._captured[id(tensor)] = tensor, value
            return found[1]
        if isinstance(tensor, Inner) and tensor.graph is self._owner:
            if tensor.level not in self.open:
                raise not_known(tensor)
            return tensor.value
        return super().read(tensor)

    def tensor(self, value: Value, level: Level | None = None) -> Tensor:
        return Inner(self._owner, value, level or self.here)

    def push(self, what: str) -> Level:
        if len(self.open) == 1:
            self._owner.presence.enter()
            self.outer, self._owner.calling = self._owner.calling, self
        return super().push(what)

    def pop(self) -> Level:
        level = super().pop()
        if len(self.open) == 1:
            self._owner.calling = self.outer
            self._owner.presence.leave()
        return level

    def results(self, values: Sequence[Value]) -> list[Tensor]:
        """What a loop or branch that is over gives: the outermost is computed, or put off."""
        if len(self.open) > 1:
            return super().results(self._recorded(values))
        written = Written(self.emit.nodes[-1])
        tensors = {value: tensor for tensor, value in self._captured.values()}
        computing: Computing = self.outer or self._owner._eager
        given = [tensors[value] for value in written.operands]
        return list(computing.apply(written.node.op, given, {WRITTEN: written}))

    # As what the graph is calling

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """The outputs of a command, written at the innermost level."""
        return tuple(self.tensor(value) for value in self._recorded(self.write(op, inputs, attrs, self._operand)))

    def _recorded(self, values: Sequence[Value]) -> Sequence[Value]:
        """Values of the body; where nothing is recorded in it, as no gradient goes through them."""
        if self._owner._eager.recording or not self._recording:
            return values
        return [self.emit(STOP_GRADIENT, value) if spec_of(value).dtype in FLOATS else value for value in values]

    def _operand(self, given: Any, like: DType | None) -> Value | None:
        if given is None:
            return None
        if isinstance(given, Tensor):
            return self.read(given)
        if not isinstance(given, bool | int | float | np.generic):
            return self.read(self._owner._eager.made(given))
        kind = number_type(given, like)
        return self.emit.literals.of((as_array(given, kind).item(),), TensorSpec(kind, ()))

    def looked_at(self, tensor: EagerTensor) -> Storage:
        """What a tensor from outside holds."""
        with self.aside():
            return self._owner.observed(tensor)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done inside is done outside of the loop or branch, before it."""
        self._owner.calling = self.outer
        try:
            yield
        finally:
            self._owner.calling = self

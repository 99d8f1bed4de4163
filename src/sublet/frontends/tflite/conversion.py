"""What a conversion knows of a program: names, weights, state, and which value each tensor stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.tflite.program import Operator, Program, Tensor
from sublet.frontends.tflite.weights import Stored
from sublet.ir.graph import Graph, Node, Value

PREFIX = "tflite."
NODES_PER_OPERATOR, FIXED = 50, 1000
"""How many nodes there may be, subgraphs that are called several times counted as often."""

MOST_LITERAL = 64
"""Elements of a constant that facts may depend on: axes, shapes, begins."""

MOST_DEPTH = 90
COUNT, TRUE = TensorSpec(DType.I64), TensorSpec(DType.BOOL)

Key = tuple[str, ...]
"""What outlasts a run: a resource, by its names, or a variable tensor, by its position."""

State = dict[Key, Value]
"""What each of them holds now."""


@dataclass
class Conversion:
    """The program, and what has been made of it so far.

    weights    constants and what outlasts a run, by their values
    initial    what outlasts a run, as it is before the run
    tensors    the values of the tensors of the first subgraph, which are in no other place at any time
    outlasting   the values that lie where a run leaves them to the next one
    """

    program: Program
    keys: Mapping[tuple[int, int], Key]
    specs: Mapping[Key, TensorSpec]
    weights: dict[Value, Stored | None] = field(default_factory=dict)
    initial: State = field(default_factory=dict)
    tensors: dict[int, Value] = field(default_factory=dict)
    outlasting: dict[Value, Key] = field(default_factory=dict)
    nodes: int = 0
    _constants: dict[tuple[int, int], Value] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    @cached_property
    def most(self) -> int:
        """The most nodes that this program may have."""
        return FIXED + NODES_PER_OPERATOR * sum(len(subgraph.operators) for subgraph in self.program.subgraphs)

    def error(self, graph: int, what: str, position: int | None = None) -> ModelError:
        """The error that says where something is wrong."""
        at = "" if position is None else f", operator {position}"
        return ModelError(f"{self.program.where}: subgraph {graph}{at}: {what}")

    def fresh(self, name: str) -> str:
        """A name that nothing has yet."""
        base, made = name or "tensor", name or "tensor"
        while made in self._taken:
            self._counts[base] = self._counts.get(base, 1) + 1
            made = f"{base}#{self._counts[base]}"
        self._taken.add(made)
        return made

    def made(self, graph: int, index: int) -> Value:
        """A new value for a tensor that is given or computed."""
        tensor = self.program.subgraphs[graph].tensors[index]
        value = Value(self.fresh(tensor.name or f"tensor{index}"), tensor.spec)
        if graph == 0:
            self.tensors.setdefault(index, value)
        return value

    def constant(self, graph: int, index: int) -> Value | None:
        """The value of a constant tensor, the same one each time; None for a tensor that is none."""
        value = self._constants.get((graph, index))
        tensor = self.program.subgraphs[graph].tensors[index]
        if value is not None:
            return value
        content = self.program.content(tensor)
        empty = isinstance(tensor.spec, TensorSpec) and tensor.spec.nbytes == 0
        if content is None and not empty:
            return None
        stored = self._stored(graph, index, tensor, content)
        value = Value(self.fresh(tensor.name or f"tensor{index}"), tensor.spec, _literal(stored))
        self.weights[value] = stored
        self._constants[graph, index] = value
        return value

    def _stored(self, graph: int, index: int, tensor: Tensor, content: memoryview | None) -> Stored | None:
        if content is None or tensor.packed or not isinstance(tensor.spec, TensorSpec) or self.program.packed:
            return None
        if len(content) != tensor.spec.nbytes:
            what = f"the constant {tensor.name[:80]!r} (tensor {index}) is {tensor.spec}, {tensor.spec.nbytes} bytes"
            raise self.error(graph, f"{what}, and its buffer has {len(content)}")
        return Stored(tensor.spec, content)

    def flag(self, name: str, literal: tuple[bool, ...] | None) -> Value:
        """A constant, or a state, of one bool."""
        value = Value(self.fresh(name), TRUE, literal)
        self.weights[value] = None if literal is None else Stored(TRUE, memoryview(bytes(literal)))
        return value

    def state(self, key: Key, now: State) -> Value:
        """What something that outlasts a run holds now."""
        if key not in self.initial:
            value = Value(self.fresh(key[-1] or "variable"), self.specs[key])
            self.weights[value] = None
            self.initial[key] = value
            self.outlasting[value] = key
        return now.setdefault(key, self.initial[key])

    def remembered(self, key: Key) -> Value:
        """A new value for what something that outlasts a run will hold."""
        value = Value(self.fresh(f"{key[-1] or 'variable'}.next"), self.specs[key])
        self.outlasting[value] = key
        return value

    def node(self, graph: int, position: int, operator: Operator, node: Node) -> Node:
        """A node with its name and where it comes from. Raises ModelError when they get too many."""
        self.nodes += 1
        if self.nodes > self.most:
            raise self.error(graph, f"more than {self.most} operators, subgraphs counted as often as they are called")
        outputs = [self.program.subgraphs[graph].tensors[i] for i in operator.outputs if i >= 0]
        quantised = next((tensor.quantised for tensor in outputs if tensor.quantised), "")
        where = f"subgraph {graph}, operator {position}" if graph else f"operator {position}"
        source = f"{where}: {quantised}" if quantised else where
        return replace(node, name=self.fresh(f"{operator.name}.{position}"), source=source)

    def finished(self, inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value], now: State) -> Graph:
        """The graph of the first subgraph."""
        pairs = [(value, now.get(key, value)) for key, value in self.initial.items()]
        name = self.program.subgraphs[0].name or self.program.where.rpartition(".")[0] or "graph"
        updates = tuple((target, source) for target, source in pairs if target is not source)
        return Graph(name, tuple(inputs), tuple(nodes), tuple(outputs), tuple(self.weights), updates)


def _literal(stored: Stored | None) -> tuple[int | float | bool, ...] | None:
    if stored is None or stored.spec.size > MOST_LITERAL:
        return None
    if stored.spec.dtype not in (DType.I32, DType.I64, DType.BOOL):
        return None
    return tuple(np.ravel(stored.array()).tolist())

"""State of the conversion of a .tflite program: names, weights, persistent variables, and the value of each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.arrays import array_over, is_packed, unpack
from sublet.base.errors import ModelError
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.tflite.program import Operator, TFLiteProgram, TFLiteTensor
from sublet.ir.graph import Graph, Node, Value

# Constants of a .tflite file, converted to arrays on read.


@dataclass(frozen=True, slots=True)
class FileConstant:
    """A constant stored in the file."""

    spec: TensorSpec
    content: memoryview

    def array(self) -> NDArray[Any]:
        """Return the elements; sub-byte elements are unpacked to a byte each."""
        raw = np.frombuffer(self.content, np.uint8)
        return unpack(raw, self.spec) if is_packed(self.spec) else array_over(raw, self.spec)


PREFIX = "tflite."
NODES_PER_OPERATOR, FIXED_NODES = 50, 1000
"""The maximum number of nodes: 50 per operator plus 1000. Repeatedly called subgraphs are inlined repeatedly."""

MAX_LITERAL_ELEMENTS = 64
"""The largest constant kept as a literal, in elements: axes, shapes and begins of slices are smaller."""

MAX_DEPTH = 90
COUNT, TRUE = TensorSpec(DType.I64), TensorSpec(DType.BOOL)

VariableKey = tuple[str, ...]
"""The key of a persistent variable: a resource, by names, or a variable tensor, by position."""

VariableState = dict[VariableKey, Value]
"""The current value of each variable."""


@dataclass
class TFLiteConversion:
    """A program under conversion, with the values and nodes created so far.

    keys            the variable named by a tensor, by (subgraph, tensor)
    specs           the spec of each variable
    weights         constants and initial variable values, by graph value
    initial_state   each variable's value before the run
    tensors         the values of non-constant tensors of the first subgraph, by tensor position
    persistent      the values stored in variables, kept from run to run
    nodes           the number of nodes created
    """

    program: TFLiteProgram
    keys: Mapping[tuple[int, int], VariableKey]
    specs: Mapping[VariableKey, TensorSpec]
    weights: dict[Value, FileConstant | None] = field(default_factory=dict)
    initial_state: VariableState = field(default_factory=dict)
    tensors: dict[int, Value] = field(default_factory=dict)
    persistent: dict[Value, VariableKey] = field(default_factory=dict)
    nodes: int = 0
    _constants: dict[tuple[int, int], Value] = field(default_factory=dict)
    names: NameGenerator = field(default_factory=partial(NameGenerator, separator="#"))

    @cached_property
    def max_nodes(self) -> int:
        """The maximum number of nodes of the converted program."""
        return FIXED_NODES + NODES_PER_OPERATOR * sum(len(subgraph.operators) for subgraph in self.program.subgraphs)

    def error(self, graph: int, what: str, position: int | None = None) -> ModelError:
        """Return the error for a malformed operator or subgraph."""
        at = "" if position is None else f", operator {position}"
        return ModelError(f"{self.program.where}: subgraph {graph}{at}: {what}")

    def new_value(self, graph: int, index: int) -> Value:
        """Return a new value for an input or computed tensor."""
        tensor = self.program.subgraphs[graph].tensors[index]
        value = Value(self.names.fresh(tensor.name or f"tensor{index}"), tensor.spec)
        if graph == 0:
            self.tensors.setdefault(index, value)
        return value

    def constant(self, graph: int, index: int) -> Value | None:
        """Return the value of a constant tensor, equal for every call; None for a tensor without constant content."""
        value = self._constants.get((graph, index))
        tensor = self.program.subgraphs[graph].tensors[index]
        if value is not None:
            return value
        content = self.program.constant_content(tensor)
        empty = isinstance(tensor.spec, TensorSpec) and tensor.spec.nbytes == 0
        if content is None and not empty:
            return None
        stored = self._constant_content(graph, index, tensor, content)
        value = Value(self.names.fresh(tensor.name or f"tensor{index}"), tensor.spec, _literal_of(stored))
        self.weights[value] = stored
        self._constants[graph, index] = value
        return value

    def _constant_content(
        self, graph: int, index: int, tensor: TFLiteTensor, content: memoryview | None
    ) -> FileConstant | None:
        """Return the content of a constant tensor; None for a compressed, encoded or unplannable tensor.

        Raises ModelError for a buffer of the wrong size.
        """
        if (
            content is None
            or tensor.is_encoded
            or not isinstance(tensor.spec, TensorSpec)
            or self.program.may_be_compressed
        ):
            return None
        if len(content) != tensor.spec.nbytes:
            what = f"the constant {tensor.name[:80]!r} (tensor {index}) is {tensor.spec}, {tensor.spec.nbytes} bytes"
            raise self.error(graph, f"{what}; its buffer has {len(content)}")
        return FileConstant(tensor.spec, content)

    def flag_value(self, name: str, literal: tuple[bool, ...] | None) -> Value:
        """Return a new bool scalar: a constant, or a variable if `literal` is None."""
        value = Value(self.names.fresh(name), TRUE, literal)
        self.weights[value] = None if literal is None else FileConstant(TRUE, memoryview(bytes(literal)))
        return value

    def state_value(self, key: VariableKey, variables: VariableState) -> Value:
        """Return the current value of a variable in the state `variables`."""
        if key not in self.initial_state:
            value = Value(self.names.fresh(key[-1] or "variable"), self.specs[key])
            self.weights[value] = None
            self.initial_state[key] = value
            self.persistent[value] = key
        return variables.setdefault(key, self.initial_state[key])

    def next_state_value(self, key: VariableKey) -> Value:
        """Return a new value for the next content of a variable."""
        value = Value(self.names.fresh(f"{key[-1] or 'variable'}.next"), self.specs[key])
        self.persistent[value] = key
        return value

    def finish_node(self, graph: int, position: int, operator: Operator, node: Node) -> Node:
        """Return the node with a name and source location. Raises ModelError for more than `max_nodes` nodes."""
        self.nodes += 1
        if self.nodes > self.max_nodes:
            raise self.error(graph, f"more than {self.max_nodes} operators, with each subgraph counted once a call")
        outputs = [self.program.subgraphs[graph].tensors[i] for i in operator.outputs if i >= 0]
        quantised = next((tensor.quantisation_text for tensor in outputs if tensor.quantisation_text), "")
        where = f"subgraph {graph}, operator {position}" if graph else f"operator {position}"
        source = f"{where}: {quantised}" if quantised else where
        return replace(node, name=self.names.fresh(f"{operator.name}.{position}"), source=source)

    def finish_graph(
        self, inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value], variables: VariableState
    ) -> Graph:
        """Return the graph of the first subgraph, with an update for each changed variable."""
        pairs = [(value, variables.get(key, value)) for key, value in self.initial_state.items()]
        name = self.program.subgraphs[0].name or self.program.where.rpartition(".")[0] or "graph"
        updates = tuple((target, source) for target, source in pairs if target is not source)
        return Graph(name, tuple(inputs), tuple(nodes), tuple(outputs), tuple(self.weights), updates)


def _literal_of(stored: FileConstant | None) -> tuple[int | float | bool, ...] | None:
    """Return the elements of a small constant of type i32, i64 or bool; None for any other constant."""
    if stored is None or stored.spec.size > MAX_LITERAL_ELEMENTS:
        return None
    if stored.spec.dtype not in (DType.I32, DType.I64, DType.BOOL):
        return None
    return tuple(np.ravel(stored.array()).tolist())

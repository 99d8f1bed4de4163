"""State of an ONNX graph under conversion: the readable values and the nodes converted so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.onnx.import_state import ImportState, KnownValue, Scope
from sublet.frontends.onnx.topological_order import node_title
from sublet.frontends.onnx.types import ELEMENT_NUMBERS, TensorType, Type
from sublet.frontends.onnx.weights import weight_of_array
from sublet.ir.graph import Node, Value

if TYPE_CHECKING:
    import onnx

BOOL_SCALAR = TensorType(9, ())
COUNT_SCALAR = TensorType(7, ())


@dataclass
class GraphConversion:
    """One ONNX graph under conversion.

    program   the state of the whole import
    scope     the readable values, by name in the file
    names     the unique name of each value defined by a node of the graph, by name in the file
    nodes     the nodes converted so far
    """

    program: ImportState
    scope: Scope
    names: Mapping[str, str]
    nodes: list[Node] = field(default_factory=list)

    def lookup(self, name: str) -> KnownValue | None:
        """Return the known value of a name; None for the empty name of an omitted input."""
        return self.scope[name] if name else None

    def define(self, name: str, type: Type, reason: str) -> Value:
        """Define the node output called `name` in the file, and return the new value."""
        known = self.program.known_value(self.names[name], type, reason)
        self.scope[name] = known
        return known.value

    def emit(self, op: str, base: str, inputs: Sequence[KnownValue], type: Type) -> KnownValue:
        """Append a node absent from the file, named after `base`, and return the single output."""
        result = self.program.fresh(base, type)
        name = self.program.nodes.fresh(base)
        self.nodes.append(Node(name, op, tuple(known.value for known in inputs), (result.value,)))
        return result


GraphConverter = Callable[[ImportState, "onnx.GraphProto", Scope], GraphConversion]
"""A function converting a graph whose inputs are in the scope, and adding the values of the graph to the scope."""


def node_error(frame: GraphConversion, node: onnx.NodeProto, what: str) -> ModelError:
    """Return the error for a malformed node."""
    return ModelError(f"{frame.program.where}: node {node_title(node)} {what}")


def graph_attribute(frame: GraphConversion, node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    """Return the sub-graph in an attribute. Raises ModelError without the attribute."""
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            graph: onnx.GraphProto = attribute.g
            return graph
    raise node_error(frame, node, f"has no graph {name!r}")


def results_of(program: ImportState, graph: onnx.GraphProto, scope: Scope) -> tuple[KnownValue, ...]:
    """Return the known values of the graph's outputs. Raises ModelError for an undefined output."""
    for output in graph.output:
        if output.name not in scope:
            raise ModelError(f"{program.where}: the output {output.name!r} of graph {graph.name!r} is not defined")
    return tuple(scope[output.name] for output in graph.output)


def integer_constant(program: ImportState, base: str, *numbers: int, scalar: bool = False) -> KnownValue:
    """Return a new i64 constant: a vector of `numbers`, or a scalar of the first number."""
    array = np.array(numbers[0] if scalar else numbers, dtype=np.int64)
    return program.constant(program.values.fresh(base), weight_of_array(array, TensorSpec(DType.I64, array.shape)))


def true_constant(program: ImportState, base: str) -> KnownValue:
    """Return a new bool scalar constant with the value true."""
    return program.constant(program.values.fresh(base), weight_of_array(np.array(True), TensorSpec(DType.BOOL)))


def as_scalar(frame: GraphConversion, known: KnownValue, type: TensorType, base: str) -> KnownValue:
    """Return `known`, a single element of any shape, as a scalar of `type`.

    The result is `known` unchanged, a constant, or a Reshape. ONNX allows [] and [1] for conditions and trip counts.
    Raises ModelError for any further shape or element type.
    """
    if known.type == type:
        return known
    spec = known.value.spec
    if isinstance(spec, TensorSpec) and (spec.size != 1 or ELEMENT_NUMBERS[spec.dtype] != type.elem):
        raise ModelError(f"{frame.program.where}: {base!r} must be one element of {type}, not {spec}")
    if known.weight is not None and isinstance(spec, TensorSpec):
        scalar = weight_of_array(known.weight.array().reshape(()), TensorSpec(spec.dtype))
        return frame.program.constant(frame.program.values.fresh(base), scalar)
    return frame.emit("onnx.Reshape", base, (known, integer_constant(frame.program, f"{base}.shape")), type)

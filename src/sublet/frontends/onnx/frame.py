"""One graph while it is being converted: what it can read, and the nodes it has so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.onnx.order import title
from sublet.frontends.onnx.program import Known, Program, Scope
from sublet.frontends.onnx.types import ELEMENTS, TensorType, Type
from sublet.frontends.onnx.weights import of_array
from sublet.ir.graph import Node, Value

if TYPE_CHECKING:
    import onnx

BOOL_SCALAR = TensorType(9, ())
COUNT_SCALAR = TensorType(7, ())


@dataclass
class Frame:
    """`names` tells the unique name of each value the graph's nodes define."""

    program: Program
    scope: Scope
    names: Mapping[str, str]
    nodes: list[Node] = field(default_factory=list)

    def read(self, name: str) -> Known | None:
        """What is known of a name; None for an omitted input."""
        return self.scope[name] if name else None

    def define(self, name: str, type: Type, reason: str) -> Value:
        """The value for a node's output called `name` in the file."""
        known = self.program.defined(self.names[name], type, reason)
        self.scope[name] = known
        return known.value

    def emit(self, op: str, base: str, inputs: Sequence[Known], type: Type) -> Known:
        """Add a node the file does not have, called after `base`; its one output."""
        result = self.program.fresh(base, type)
        name = self.program.nodes.fresh(base)
        self.nodes.append(Node(name, op, tuple(known.value for known in inputs), (result.value,)))
        return result


Converter = Callable[[Program, "onnx.GraphProto", Scope], Frame]
"""Converts a graph whose inputs are in the scope; the scope gains the values of the graph."""


def fail(frame: Frame, node: onnx.NodeProto, what: str) -> ModelError:
    """The error that says what is wrong with a node."""
    return ModelError(f"{frame.program.where}: node {title(node)} {what}")


def graph_attribute(frame: Frame, node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    """The sub-graph in an attribute. Raises ModelError when there is none."""
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            graph: onnx.GraphProto = attribute.g
            return graph
    raise fail(frame, node, f"has no graph {name!r}")


def results_of(program: Program, graph: onnx.GraphProto, scope: Scope) -> tuple[Known, ...]:
    """What is known of a graph's outputs. Raises ModelError for one that nothing defines."""
    for output in graph.output:
        if output.name not in scope:
            raise ModelError(f"{program.where}: the output {output.name!r} of graph {graph.name!r} is not defined")
    return tuple(scope[output.name] for output in graph.output)


def integers(program: Program, base: str, *numbers: int, scalar: bool = False) -> Known:
    """A new i64 weight: a list of `numbers`, or one number as a scalar."""
    array = np.array(numbers[0] if scalar else numbers, dtype=np.int64)
    return program.constant(program.values.fresh(base), of_array(array, TensorSpec(DType.I64, array.shape)))


def truth(program: Program, base: str) -> Known:
    """A new bool scalar weight that is true."""
    return program.constant(program.values.fresh(base), of_array(np.array(True), TensorSpec(DType.BOOL)))


def as_scalar(frame: Frame, known: Known, type: TensorType, base: str) -> Known:
    """`known`, one element of any shape, as the scalar `type`: itself, a constant, or a Reshape of it.

    ONNX allows [] and [1] for conditions and trip counts. Raises ModelError for anything else.
    """
    if known.type == type:
        return known
    spec = known.value.spec
    if isinstance(spec, TensorSpec) and (spec.size != 1 or ELEMENTS[spec.dtype] != type.elem):
        raise ModelError(f"{frame.program.where}: {base!r} must be one element of {type}, not {spec}")
    if known.weight is not None and isinstance(spec, TensorSpec):
        scalar = of_array(known.weight.array().reshape(()), TensorSpec(spec.dtype))
        return frame.program.constant(frame.program.values.fresh(base), scalar)
    return frame.emit("onnx.Reshape", base, (known, integers(frame.program, f"{base}.shape")), type)

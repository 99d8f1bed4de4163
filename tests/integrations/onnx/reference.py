"""Runs an imported graph node by node with ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model

Values = dict[str, Any]


def run(imported: Model, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the graph for `inputs`, in order; every computed value is compared with its spec."""
    values: Values = {name: weight.array() for name, weight in imported.weights.items()}
    values.update(zip([value.name for value in imported.graph.inputs], inputs, strict=True))
    return _run_graph(imported.graph, values, imported.opsets)


def _run_graph(graph: Graph, values: Values, opsets: Mapping[str, int]) -> list[Any]:
    for node in graph.nodes:
        _run_node(node, values, opsets)
    return [values[value.name] for value in graph.outputs]


def _run_node(node: Node, values: Values, opsets: Mapping[str, int]) -> None:
    if isinstance(node, CaseOf):
        arm = node.arms[int(np.asarray(values[node.index.name]).ravel()[0])]
        results = _run_graph(arm, values, opsets)
    elif isinstance(node, While):
        results = _run_while(node, values, opsets)
    else:
        results = _run_op(node, values, opsets)
    for value, result in zip(node.outputs, results, strict=True):
        if value is not None:
            _check(value, result)
            values[value.name] = result


def _check(value: Value, result: Any) -> None:
    if isinstance(value.spec, TensorSpec):
        assert np.asarray(result).shape == value.spec.shape, (value, result)


def _run_while(node: While, values: Values, opsets: Mapping[str, int]) -> list[Any]:
    state = [values[value.name] for value in node.inits]
    rows: list[list[Any]] = [[] for _ in node.rows]
    sequences = [values[value.name] for value in node.sequences]
    count = 0
    while True:
        values[node.counter.name] = np.array(count, dtype=np.int64)
        values.update(zip([value.name for value in node.parameters], state, strict=True))
        for early in node.body.nodes[: node.check]:
            _run_node(early, values, opsets)
        if not np.asarray(values[node.condition.name]).ravel()[0]:
            break
        for value, sequence, axis, back in zip(
            node.slices, sequences, node.slice_axes, node.slice_reversed, strict=True
        ):
            values[value.name] = np.take(sequence, -1 - count if back else count, axis=axis)
        for late in node.body.nodes[node.check :]:
            _run_node(late, values, opsets)
        state = [values[value.name] for value in node.updates]
        for row, collected in zip(node.rows, rows, strict=True):
            collected.append(values[row.name])
        count += 1
    stacked = [
        _stack(collected, axis, back, row)
        for collected, axis, back, row in zip(rows, node.row_axes, node.row_reversed, node.rows, strict=True)
    ]
    return [*state, *stacked]


def _stack(collected: list[Any], axis: int, back: bool, row: Value) -> Any:
    if collected:
        return np.stack(collected[::-1] if back else collected, axis=axis)
    shape = row.spec.shape if isinstance(row.spec, TensorSpec) else ()
    return np.zeros((*shape[:axis], 0, *shape[axis:]))


def _run_op(node: Node, values: Values, opsets: Mapping[str, int]) -> list[Any]:
    domain, _, op_type = node.op.removeprefix("onnx.").rpartition(".")
    own = [value for value in node.inputs if value is not None]
    names = [value.name if value is not None else "" for value in node.inputs]
    outputs = [value.name if value is not None else "" for value in node.outputs]
    captured = {name for key, names_ in node.attrs.items() if key.endswith(".captures") for name in names_}
    names = names[: len(names) - len(captured)]
    proto = helper.make_node(op_type, names, outputs, domain=domain)
    schema = defs.get_schema(op_type, opsets.get(domain, 1), domain)
    for key, attr in node.attrs.items():
        if not key.endswith(".captures"):
            proto.attribute.append(_attribute(key, attr, schema.attributes[key].type))
    feeds = {value.name: values[value.name] for value in own}
    graph = helper.make_graph(
        [proto],
        "one",
        [helper.make_empty_tensor_value_info(name) for name in feeds],
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    results = iter(ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(None, feeds))
    return [next(results) if name else None for name in outputs]


PROTOS = {
    defs.OpSchema.AttrType.TENSOR: ("t", onnx.TensorProto),
    defs.OpSchema.AttrType.GRAPH: ("g", onnx.GraphProto),
    defs.OpSchema.AttrType.TYPE_PROTO: ("tp", onnx.TypeProto),
}


def _attribute(name: str, attr: Attr, kind: Any) -> onnx.AttributeProto:
    if kind in PROTOS and isinstance(attr, bytes):
        return helper.make_attribute(name, PROTOS[kind][1].FromString(attr))
    number = getattr(onnx.AttributeProto, kind.name)
    return helper.make_attribute(name, list(attr) if isinstance(attr, tuple) else attr, attr_type=number)

"""The printer of the text form of graphs, an exact inverse of the parser: `parse(to_text(graph)) == graph`.

    graph @net(%x: f32[2,3]) {
      weights %w: f32[3,3], %axes: i64[1] = [0]
      %y: f32[2,3] = onnx.MatMul(%x, %w)
      %z: f32[2,3] = onnx.Softmax(%y) {axis = 1} @prob
      %v: f32[3,3] = onnx.Neg(%w)
      update %w = %v
      return %z
    }

A node has the name of its first output unless `@name` gives another name; `_` marks an omitted input or output. An
output of a model known under another name is written `return %z as "probabilities"`. docs/text_form.md explains every
part. Loops and branches:

    %h: f32[3], %ys: f32[9,3] = while(%i: i64[]; %p: f32[3] = %h0; %x: f32[3] in %xs axis 0) body @b {
      %c: bool[] = onnx.Less(%i, %limit)
      continue if %c
      %q: f32[3] = onnx.Add(%p, %x)
      next %q; %q axis 0
    }
    %r: f32[3] = case %flag else %h {
      arm @no {
        yield %h0
      }
    }
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from sublet.base.tensor import Spec, TensorSpec
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.model import GraphInPython, Model, as_model

PLAIN_NAME = re.compile(r"[A-Za-z0-9_./+$-]+")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def to_text(network: Graph | Model | GraphInPython) -> str:
    """Return the text form of a whole program: a graph, a model with the names of its outputs, or a written graph."""
    model = as_model(network)
    return "\n".join(_graph(model.graph, model.outputs)) + "\n"


def _graph(graph: Graph, names: Sequence[str]) -> Iterator[str]:
    yield f"graph {_at(graph.name)}({_list(map(_declare, graph.inputs))}) {{"
    if graph.weights:
        yield f"  weights {_list(map(_declare, graph.weights))}"
    for node in graph.nodes:
        yield from _indent(_node(node))
    if graph.updates:
        yield f"  update {_list(f'{_use(target)} = {_use(source)}' for target, source in graph.updates)}"
    known = zip(graph.outputs, names or [value.name for value in graph.outputs], strict=True)
    outputs = _list(
        _use(value) if name == value.name else f"{_use(value)} as {json.dumps(name)}" for value, name in known
    )
    yield f"  return {outputs}".rstrip()
    yield "}"


def _node(node: Node) -> Iterator[str]:
    results = _list("_" if value is None else _declare(value) for value in node.outputs)
    head = f"{results} = " if results else "= "
    if isinstance(node, While):
        yield from _while(node, head)
    elif isinstance(node, CaseOf):
        yield from _case(node, head)
    else:
        more = f"{_attrs(node)}{_scratch(node)}{' again' if node.again else ''}{_node_name(node)}"
        yield f"{head}{_key(node.op)}({_list(map(_use, node.inputs))}){more}"


def _while(node: While, head: str) -> Iterator[str]:
    carried = _list(f"{_declare(p)} = {_use(init)}" for p, init in zip(node.parameters, node.inits, strict=True))
    sliced = _list(
        f"{_declare(value)} in {_use(sequence)} {_axis(axis, backwards)}"
        for value, sequence, axis, backwards in zip(
            node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True
        )
    )
    groups = "; ".join([_declare(node.counter), carried, sliced])
    yield f"{head}while({groups}){_attrs(node)}{_node_name(node)} body {_at(node.body.name)} {{"
    for inner in node.body.nodes[: node.check]:
        yield from _indent(_node(inner))
    yield f"  continue if {_use(node.condition)}"
    for inner in node.body.nodes[node.check :]:
        yield from _indent(_node(inner))
    rows = _list(
        f"{_use(row)} {_axis(axis, backwards)}"
        for row, axis, backwards in zip(node.rows, node.row_axes, node.row_reversed, strict=True)
    )
    yield f"  next {_list(map(_use, node.updates))}; {rows}".rstrip()
    yield "}"


def _case(node: CaseOf, head: str) -> Iterator[str]:
    fallbacks = f" else {_list(map(_use, node.fallbacks))}" if node.fallbacks else ""
    yield f"{head}case {_use(node.index)}{fallbacks}{_attrs(node)}{_node_name(node)} {{"
    for arm in node.arms:
        yield f"  arm {_at(arm.name)} {{"
        for inner in arm.nodes:
            yield from _indent(_node(inner), 4)
        yield f"    yield {_list(map(_use, arm.outputs))}".rstrip()
        yield "  }"
    yield "}"


def _indent(lines: Iterator[str], width: int = 2) -> Iterator[str]:
    return (" " * width + line for line in lines)


def _list(items: Iterator[str] | Sequence[str] | map[str]) -> str:
    return ", ".join(items)


def _name(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else json.dumps(name)


def _key(name: str) -> str:
    return name if PLAIN_KEY.fullmatch(name) else json.dumps(name)


def _at(name: str) -> str:
    return "@" + _name(name)


def _use(value: Value | None) -> str:
    return "_" if value is None else "%" + _name(value.name)


def _declare(value: Value) -> str:
    literal = "" if value.literal is None else f" = {_attr(value.literal)}"
    return f"{_use(value)}: {_spec(value.spec)}{literal}"


def _spec(spec: Spec) -> str:
    if isinstance(spec, TensorSpec):
        return str(spec)
    return f"outside({json.dumps(spec.type)}, {json.dumps(spec.reason)})"


def _axis(axis: int, backwards: bool) -> str:
    return f"axis {axis} reversed" if backwards else f"axis {axis}"


def default_node_name(outputs: Sequence[Value | None]) -> str:
    """Return the name of a node without an explicit name: the name of its first output."""
    return next((value.name for value in outputs if value is not None), "")


def _scratch(node: Node) -> str:
    return "" if node.scratch is None else f" scratch {_declare(node.scratch)}"


def _node_name(node: Node) -> str:
    return "" if node.name == default_node_name(node.outputs) else f" {_at(node.name)}"


def _attrs(node: Node) -> str:
    if not node.attrs:
        return ""
    return f" {{{_list(f'{_key(key)} = {_attr(node.attrs[key])}' for key in sorted(node.attrs))}}}"


def _attr(attr: Attr | bool | tuple[int | float | bool, ...]) -> str:
    if isinstance(attr, tuple):
        return f"[{_list(_attr(item) for item in attr)}]"
    if isinstance(attr, bytes):
        return f"bytes({json.dumps(attr.hex())})"
    if isinstance(attr, bool):
        return "true" if attr else "false"
    return json.dumps(attr) if isinstance(attr, str) else repr(attr)

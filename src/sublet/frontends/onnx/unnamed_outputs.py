"""Naming of unnamed outputs that a kernel writes anyway.

Naming precedes every computation of the node, including constant folding in ONNX Runtime's optimiser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sublet.frontends.onnx.model_file import all_nodes, domain_of, graphs_of
from sublet.ops.onnx_outputs import always_written_outputs

if TYPE_CHECKING:
    import onnx


def with_written_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a name for every output written by a kernel unconditionally."""
    if not any(_unnamed_written_outputs(node) for node in _nodes_of(model)):
        return model
    named = type(model)()
    named.CopyFrom(model)
    taken = set(_value_names(named))
    for node in _nodes_of(named):
        for i in _unnamed_written_outputs(node):
            while len(node.output) <= i:
                node.output.append("")
            node.output[i] = _unused_name(next(filter(None, node.output), node.op_type), i, taken)
    return named


def _nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return all_nodes(iter(model.graph.node))


def _value_names(model: onnx.ModelProto) -> Iterator[str]:
    """Yield every value name of the model, including sub-graphs."""
    graphs = [model.graph]
    for node in _nodes_of(model):
        yield from (*node.input, *node.output)
        graphs += graphs_of(node)
    for graph in graphs:
        yield from (value.name for value in (*graph.input, *graph.initializer))


def _unnamed_written_outputs(node: onnx.NodeProto) -> list[int]:
    """Return the positions of unnamed outputs written by the kernel."""
    given = [bool(name) for name in node.input]
    written = always_written_outputs(domain_of(node.domain), node.op_type, given, len(node.output))
    return sorted(i for i in written if i >= len(node.output) or not node.output[i])


def _unused_name(first: str, position: int, taken: set[str]) -> str:
    """Return an unused name derived from `first` and `position`, and add the name to `taken`."""
    name = f"{first}.{position}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name

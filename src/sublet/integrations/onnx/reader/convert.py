"""Conversion of the nodes of an ONNX graph: sorted, typed, constant-folded, and uniquely named.

A node with graph attributes other than If, Loop or Scan (SequenceMap, for example) stays one node. The graphs become
serialised attributes, the captured outer values follow the node's own inputs, and the attribute "<graph
attribute>.captures" lists the captured names of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.base.extents import is_ranged
from sublet.base.formatting import printable
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.reader.constant_folding import fold_node
from sublet.integrations.onnx.reader.control_flow import convert_if, convert_loop, convert_scan
from sublet.integrations.onnx.reader.conversion_state import GraphConversion, ImportState, KnownValue, Scope
from sublet.integrations.onnx.reader.measured_extents import measure_declared_extents, measure_declared_inputs
from sublet.integrations.onnx.reader.model_file import domain_of, free_names, sort_nodes
from sublet.integrations.onnx.reader.ranged_contents import followed_contents
from sublet.integrations.onnx.reader.ranged_shapes import Content, depend_on_ranges
from sublet.integrations.onnx.reader.shape_conflicts import check_declared_types, node_shapes_of
from sublet.integrations.onnx.reader.type_inference import infer_types
from sublet.integrations.onnx.reader.types import Type, attributes_of, read_type, spec_of
from sublet.integrations.onnx.reader.weights import Weight, weight_of_array, weight_of_sparse, weight_of_tensor
from sublet.ir.graph import Node

# Source location of a node recorded by the exporter: a module path and a line of a program.

if TYPE_CHECKING:
    import onnx

STACK_TRACE_KEY = "pkg.torch.onnx.stack_trace"
NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""The metadata keys of PyTorch's exporter for the Python stack of a node, and for the module path."""

MAX_CHARACTERS = 200
_LINE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,9})')
_NAME = re.compile(r"'([^'\n]{0,400})'")


def source_location_of(node: onnx.NodeProto) -> str:
    """Return the source location as "in layer1.0.conv1, model.py:12"; "" without a recorded location."""
    noted = {entry.key: entry.value for entry in node.metadata_props} if hasattr(node, "metadata_props") else {}
    modules = _NAME.findall(noted.get(NAME_SCOPES_KEY, "")[:4096])
    lines = _LINE.findall(noted.get(STACK_TRACE_KEY, "")[-4096:])
    # Scopes go from the model down to the operator; the second to last is the module calling the operator.
    module = f"in {modules[-2]}" if len(modules) > 1 and modules[-2] else ""
    line = f"{lines[-1][0].rsplit('/', 1)[-1]}:{lines[-1][1]}" if lines else ""
    return printable(", ".join(part for part in (module, line) if part))[:MAX_CHARACTERS]


if TYPE_CHECKING:
    import onnx

CONTROL_FLOW_CONVERTERS = {"If": convert_if, "Loop": convert_loop, "Scan": convert_scan}
FIRST_SCAN_OPSET = 9
"""The first operator set whose Scan is a plain loop."""


def convert_graph(program: ImportState, graph: onnx.GraphProto, scope: Scope) -> GraphConversion:
    """Convert a graph whose inputs are in `scope`, and add every value of the graph to `scope`.

    Raises ModelError for a malformed graph: undefined or doubly defined names, cycles, nodes in conflict with their
    schema.
    """
    program.spend_budget(1 + len(graph.node))
    _add_initializers(program, graph, scope)
    nodes = sort_nodes(graph.node, scope.maps[0], scope.parents, program.where)
    frame = GraphConversion(
        program, scope, {name: program.values.fresh(name) for n in nodes for name in n.output if name}
    )
    if program.undecided and len(scope.maps) == 1:
        measure_declared_inputs(frame)
    names = [program.nodes.fresh(node.name) if node.name else "" for node in nodes]
    declared = {value.name: read_type(value.type, program.dims) for value in chain(graph.value_info, graph.output)}
    for i, node in enumerate(nodes):
        _convert_node(frame, node, names[i] or program.nodes.fresh(f"{node.op_type}_{i}"), declared)
    return frame


def _add_initializers(program: ImportState, graph: onnx.GraphProto, scope: Scope) -> None:
    """Add the dense and sparse initialisers of the graph to `scope` as constants."""
    for tensor in graph.initializer:
        _require_new_name(program, tensor.name, scope)
        weight = weight_of_tensor(tensor, program.folder, program.where)
        scope[tensor.name] = program.constant(program.values.fresh(tensor.name), weight)
    for coded in graph.sparse_initializer:
        _require_new_name(program, coded.values.name, scope)
        weight = weight_of_sparse(coded, program.folder, program.where)
        scope[coded.values.name] = program.constant(program.values.fresh(coded.values.name), weight)


def _require_new_name(program: ImportState, name: str, scope: Scope) -> None:
    """Raise ModelError for an initialiser without a name or with a name already defined."""
    if not name or name in scope.maps[0]:
        what = "is defined twice" if name else "has no name"
        raise ModelError(f"{program.where}: the initializer {name!r} {what}")


def _convert_node(frame: GraphConversion, node: onnx.NodeProto, name: str, declared: Mapping[str, Type]) -> None:
    """Convert one node: inline a renaming, fold a constant, or append a node to `frame`."""
    domain = domain_of(node.domain)
    old_scan = node.op_type == "Scan" and frame.program.opsets.get("", 1) < FIRST_SCAN_OPSET
    if domain == "" and node.op_type in CONTROL_FLOW_CONVERTERS and not old_scan:
        CONTROL_FLOW_CONVERTERS[node.op_type](frame, node, name, convert_graph)
        return
    inputs = [frame.lookup(text) for text in node.input]
    if _is_renaming(frame, node, domain):
        frame.scope[node.output[0]] = frame.scope[node.input[0]]
        return
    types, reason = infer_types(frame.program, node, inputs, declared, frame.names)
    check_declared_types(frame.program, node, types, declared, inner=len(frame.scope.maps) > 1)
    closed = frame.program.assumed.close_type
    types = [closed(frame.names[n], t) if n else t for n, t in zip(node.output, types, strict=True)]
    contents = _contents_over_ranges(frame.program, node, inputs, types)
    folded = _fold_contents(node, types, contents) or fold_node(frame.program, node, inputs, types)
    if folded is not None:
        for text, weight in folded.items():
            frame.scope[text] = frame.program.constant(frame.names[text], weight)
        return
    _add_node(frame, node, name, inputs, (types, reason), contents)
    if frame.program.undecided:
        measure_declared_extents(frame, node, types)


def _contents_over_ranges(
    program: ImportState, node: onnx.NodeProto, inputs: Sequence[KnownValue | None], types: Sequence[Type]
) -> list[Content | None]:
    """Return the contents of outputs computed from dimensions with ranges; None for other outputs."""
    if not depend_on_ranges(inputs):
        return [None] * len(node.output)
    version = program.opsets.get(domain_of(node.domain), 1)
    return followed_contents(node, inputs, types, node_shapes_of(node, inputs, types, version))


def _fold_contents(
    node: onnx.NodeProto, types: Sequence[Type], contents: Sequence[Content | None]
) -> dict[str, Weight] | None:
    """Return the outputs as constants, by name, if no element of any content depends on a range."""
    folded: dict[str, Weight] = {}
    for name, type, content in zip(node.output, types, contents, strict=True):
        spec = spec_of(type, "")
        if content is None or not isinstance(spec, TensorSpec) or any(is_ranged(each) for each in content.ravel()):
            return None
        folded[name] = weight_of_array(content.astype(NUMPY[spec.dtype]).reshape(spec.shape), spec)
    return folded or None


def _is_renaming(frame: GraphConversion, node: onnx.NodeProto, domain: str) -> bool:
    """True if the node is an Identity in a branch or body, and so only renames a value.

    ONNX requires a separate result name in such graphs. Without the Identity, the graph passes the value itself, and
    the planner needs no copy.
    """
    inside = len(frame.scope.maps) > 1
    plain = inside and domain == "" and node.op_type == "Identity" and len(node.input) == len(node.output) == 1
    return plain and bool(node.input[0]) and bool(node.output[0])


def _add_node(
    frame: GraphConversion,
    node: onnx.NodeProto,
    name: str,
    inputs: Sequence[KnownValue | None],
    types_and_reason: tuple[list[Type], str],
    contents: Sequence[Content | None],
) -> None:
    """Append the node with converted attributes, captured values and typed outputs."""
    domain = domain_of(node.domain)
    attrs = dict(attributes_of(node))
    values = [None if known is None else known.value for known in inputs]
    while values and values[-1] is None:
        values.pop()
    for text, names in _captured_names(node):
        attrs[f"{text}.captures"] = names
        values.extend(frame.scope[inner].value for inner in names)
    types, reason = types_and_reason
    outputs = tuple(
        frame.define(text, type, reason, content) if text else None
        for text, type, content in zip(node.output, types, contents, strict=True)
    )
    op = f"onnx.{domain}.{node.op_type}" if domain else f"onnx.{node.op_type}"
    frame.nodes.append(Node(name, op, tuple(values), outputs, attrs, source_location_of(node)))


def _captured_names(node: onnx.NodeProto) -> list[tuple[str, tuple[str, ...]]]:
    """Return, for every graph attribute, the attribute name and the outer names read by the graphs."""
    captures: list[tuple[str, tuple[str, ...]]] = []
    for attribute in node.attribute:
        graphs = (attribute.g, *attribute.graphs) if attribute.HasField("g") else tuple(attribute.graphs)
        if graphs:
            captures.append((attribute.name, tuple(dict.fromkeys(chain(*map(free_names, graphs))))))
    return captures

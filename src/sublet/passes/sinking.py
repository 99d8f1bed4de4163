"""Sinking: constants, input-independent nodes and updates run later.

Constant sinking: fill in a constant tensor, mostly zeros, right before the first reader.

Requires a legal graph. Ensures that a pure node without inputs stands right before the first reader of the result; if
a single arm of a single branch reads the result, inside of the arm. Ensures also that equal constants with overlapping
live ranges are merged, unless a reader may overwrite either constant.

    %z = nn.fill() {value = 0.0}         %a = nn.exp(%x)
    %a = nn.exp(%x)              ->      %z = nn.fill() {value = 0.0}
    %b = nn.add(%z, %a)                  %b = nn.add(%z, %a)

[NNC: the zero initialisation that compiling injects.] A constant is never moved into a loop: the loop would fill in
the constant in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sublet.ir.dataflow import reads_inside, rename_values, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.passes.live_bytes import blocks_of, estimated_peak
from sublet.passes.reordering import reorder_levels
from sublet.passes.rewriting import attribute_key, is_pure


def with_late_constants(graph: Graph) -> Graph:
    """Return the graph with every constant right before the first reader."""
    return _sink_in_level(graph, len(graph.nodes), ())[0]


def _sink_in_level(graph: Graph, check: int, tested: Sequence[Value]) -> tuple[Graph, int]:
    """Return a level, with sub-graphs, after sinking, and the number of nodes now before the check of the loop.

    `check` is the number of nodes before the check, `tested` the values read by the check.
    """
    graph, check = _sink_into_arms(graph, check, tested)
    early = {node.name for node in graph.nodes[:check]}
    constants = {node.outputs[0]: node for node in graph.nodes if _is_constant(node)}
    others = [node for node in graph.nodes if not _is_constant(node)]
    boundary = sum(node.name in early for node in others)
    read = [reads_inside(node) for node in others]
    read.insert(boundary, set(tested))  # the check is an additional reader
    read.append(set(results(graph)))
    end = [len(read) - 1]
    spans = {v: [i for i, values in enumerate(read) if v in values] or end for v in constants if v is not None}
    shared = _constants_to_merge(
        {v: constants[v] for v in spans}, spans, [*others[:boundary], None, *others[boundary:]]
    )
    before = _insert_constants(others[:boundary], constants, spans, shared, range(boundary + 1))
    after = _insert_constants(others[boundary:], constants, spans, shared, range(boundary + 1, len(read)))
    nodes = tuple(_sink_in_subgraphs(node) for node in (*before, *after))
    return rename_values(replace(graph, nodes=nodes), shared, definitions=False), len(before)


def _insert_constants(
    others: Sequence[Node],
    constants: dict[Value | None, Node],
    spans: dict[Value, list[int]],
    shared: dict[Value, Value],
    moments: range,
) -> list[Node]:
    """Return `others` with each constant inserted before the first reader.

    `moments` are the reader positions of `others`, followed by the position after the last of `others`.
    """
    at: dict[int, list[Node]] = {}
    for value, span in spans.items():
        if value not in shared:
            at.setdefault(span[0], []).append(constants[value])
    placed: list[Node] = []
    for moment, node in zip(moments, [*others, None], strict=True):
        placed += at.get(moment, ())
        placed += [node] if node is not None else []
    return placed


def _is_constant(node: Node) -> bool:
    """True if the node is a pure node without inputs and with one result."""
    return (
        not node.inputs and not node.subgraphs and node.scratch is None and len(node.defs) == 1 and _has_pure_op(node)
    )


def _has_pure_op(node: Node) -> bool:
    return lookup(node.op).pure


def _sink_in_subgraphs(node: Node) -> Node:
    """Return the node with the constants of the sub-graphs sunk."""
    if isinstance(node, While):
        body, check = _sink_in_level(node.body, node.check, (node.condition,))
        return replace(node, body=body, check=check)
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(_sink_in_level(arm, len(arm.nodes), ())[0] for arm in node.arms))
    return node


def _constants_to_merge(
    constants: dict[Value, Node], spans: dict[Value, list[int]], nodes: Sequence[Node | None]
) -> dict[Value, Value]:
    """Return the constants to merge, by value: an equal constant, alive at the first read, replaces each.

    Constants that a reader may overwrite, or that a result of the level needs, are not merged.
    """
    shared: dict[Value, Value] = {}
    open_until: dict[object, tuple[Value, int]] = {}
    for value in sorted(spans, key=lambda v: spans[v][:1]):
        span, node = spans[value], constants[value]
        readers = [nodes[i] for i in span if i < len(nodes)]
        if len(readers) < len(span) or any(reader and _may_overwrite(reader, value) for reader in readers):
            continue
        key = (node.op, str(value.spec), attribute_key(node))
        first, last = open_until.get(key, (value, -1))
        if span[0] <= last:
            shared[value] = first
            open_until[key] = (first, max(last, span[-1]))
        else:
            open_until[key] = (value, span[-1])
    return shared


def _may_overwrite(node: Node, value: Value) -> bool:
    """True if the node, or a node in a sub-graph, may write over the value."""
    if node.subgraphs:
        return True
    return any(node.inputs[share.input] == value for share in lookup(node.op).inplace(node))


def _sink_into_arms(graph: Graph, check: int, tested: Sequence[Value]) -> tuple[Graph, int]:
    """Return the graph and its check, with each constant read by a single arm of a branch moved into the arm."""
    constants = {node.outputs[0]: node for node in graph.nodes if _is_constant(node)}
    if not constants or not any(isinstance(node, CaseOf) for node in graph.nodes):
        return graph, check
    places: dict[Value, list[tuple[str, int]]] = {value: [] for value in constants if value is not None}
    for value in (*results(graph), *tested):
        places.get(value, []).append(("", -1))
    for node in graph.nodes:
        for position, values in _reads_by_arm(node):
            for value in places.keys() & values:
                places[value].append((node.name, position))
    moved: dict[tuple[str, int], list[Node]] = {}
    for value, arms in places.items():
        if len(arms) == 1 and arms[0][1] >= 0:
            moved.setdefault(arms[0], []).append(constants[value])
    moved_names = {node.name for nodes in moved.values() for node in nodes}
    nodes = tuple(_with_moved_constants(node, moved) for node in graph.nodes if node.name not in moved_names)
    return replace(graph, nodes=nodes), check - sum(node.name in moved_names for node in graph.nodes[:check])


def _reads_by_arm(node: Node) -> list[tuple[int, set[Value]]]:
    """Return the values read by each arm of a branch and, with index -1, the values read outside of arms."""
    if not isinstance(node, CaseOf):
        return [(-1, reads_inside(node))]
    arms = [(i, reads_inside(replace(node, inputs=(), arms=(arm,)))) for i, arm in enumerate(node.arms)]
    return [(-1, set(node.uses)), *arms]


def _with_moved_constants(node: Node, moved: dict[tuple[str, int], list[Node]]) -> Node:
    """Return the branch with the moved constants at the beginning of the arms; a non-branch is returned unchanged."""
    if not isinstance(node, CaseOf):
        return node
    arms = (replace(arm, nodes=(*moved.get((node.name, i), ()), *arm.nodes)) for i, arm in enumerate(node.arms))
    return replace(node, arms=tuple(arms))


# Sinking of input-independent nodes: run a node computed from constants right before the first reader.
#
# Requires a legal graph. Ensures the same nodes in an order with each pure node computed from constants alone right
# before the first reader, unless the estimated peak of the level would grow.
#
#     %f = onnx.DequantizeLinear(%w, %s)         %a = onnx.Relu(%x)
#     %a = onnx.Relu(%x)                   ->    %f = onnx.DequantizeLinear(%w, %s)
#     %b = onnx.Conv(%a, %f)                     %b = onnx.Conv(%a, %f)
#
# The position of a constant node in a file carries no information: exporters write the dequantised weights of a whole
# network before the first layer.


def with_late_invariants(graph: Graph) -> Graph:
    """Return the graph with every input-independent node right before the first reader."""
    constants = input_independent_nodes(graph)
    return reorder_levels(graph, partial(_sink_if_not_higher, constants=constants)) if constants else graph


def input_independent_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes, on every level, depending on no input and on no weight updated by a run."""
    known, names = set(graph.constants), set()
    for node in graph.walk():
        if not node.subgraphs and is_pure(node) and known.issuperset(node.uses):
            known.update(node.defs)
            names.add(node.name)
    return frozenset(names)


def _sink_if_not_higher(
    level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int], *, constants: frozenset[str]
) -> tuple[tuple[Node, ...], int]:
    """Return the nodes of a level with constant nodes sunk, and the peak in bytes.

    The order is unchanged if the estimated peak of the changed order is higher.
    """
    nodes = tuple(nodes)
    blocks = blocks_of(level, nodes, wanted, extra)
    given = tuple(range(len(nodes)))
    sunk = _sunk_order(nodes, constants)
    peak, sunk_peak = blocks.peak(given)[0], blocks.peak(sunk)[0]
    return (nodes, peak) if sunk_peak > peak else (tuple(nodes[i] for i in sunk), sunk_peak)


def _sunk_order(nodes: Sequence[Node], constants: frozenset[str]) -> list[int]:
    """Return the positions of the nodes in the new order, each constant node right before the first reader."""
    readers: dict[Value, int] = {}
    """The position before which a value is needed."""
    moment = list(range(len(nodes)))
    for i in reversed(range(len(nodes))):
        node = nodes[i]
        if node.name in constants:
            moment[i] = min((readers[value] for value in node.defs if value in readers), default=len(nodes))
        for value in reads_inside(node):
            readers[value] = min(moment[i], readers.get(value, len(nodes)))
    return sorted(range(len(nodes)), key=lambda i: (moment[i], nodes[i].name not in constants, i))


# Sinking of updates: run nodes that only update inputs or weights last, unless memory use grows.
#
# Requires a legal graph. Ensures that a run failing before the sunk nodes, for example by a label out of range or an
# interrupt, leaves every weight unchanged. An order of less memory consumes each gradient early; where the peak lies
# elsewhere, consuming early saves no bytes. A node that also computes a value for readers, such as a batch
# normalisation with running statistics, stays in place.


def with_late_updates(graph: Graph, measure: Callable[[Graph], tuple[int, ...]]) -> Graph:
    """Return the graph with the updates last, or unchanged if any number returned by `measure` (bytes) would grow."""
    updating = _update_only_nodes(graph)
    nodes = tuple(sorted(graph.nodes, key=lambda node: node.name in updating))
    candidate = replace(graph, nodes=nodes)
    if nodes == graph.nodes or estimated_peak(candidate)[0] > estimated_peak(graph)[0]:
        return graph
    return candidate if all(a <= b for a, b in zip(measure(candidate), measure(graph), strict=True)) else graph


def _update_only_nodes(graph: Graph) -> set[str]:
    """Return the names of the nodes defining updates and read by no node but update nodes."""
    sources = {source for _, source in graph.updates}
    needed = {*graph.outputs}
    names: set[str] = set()
    for node in reversed(graph.nodes):
        if not node.subgraphs and is_pure(node) and sources.intersection(node.defs) and needed.isdisjoint(node.defs):
            names.add(node.name)
        else:
            needed |= reads_inside(node)
    return names

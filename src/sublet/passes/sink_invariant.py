"""Sinking of input-independent nodes: run a node computed from constants right before the first reader.

Requires a legal graph. Ensures the same nodes in an order with each pure node computed from constants alone right
before the first reader, unless the estimated peak of the level would grow.

    %f = onnx.DequantizeLinear(%w, %s)         %a = onnx.Relu(%x)
    %a = onnx.Relu(%x)                   ->    %f = onnx.DequantizeLinear(%w, %s)
    %b = onnx.Conv(%a, %f)                     %b = onnx.Conv(%a, %f)

The position of a constant node in a file carries no information: exporters write the dequantised weights of a whole
network before the first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Node, Value
from sublet.passes.live_bytes import blocks_of
from sublet.passes.reordering import reorder_levels
from sublet.passes.rewriting import is_pure


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

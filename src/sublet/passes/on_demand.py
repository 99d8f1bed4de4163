"""On demand: what depends on no input of the program runs right before its first reader.

Requires a legal graph. Ensures the same nodes, in an order in which each pure node that is computed from constants
alone stands right before the first node that reads it, unless its level is estimated to need more bytes that way.

    %f = onnx.DequantizeLinear(%w, %s)         %a = onnx.Relu(%x)
    %a = onnx.Relu(%x)                   ->    %f = onnx.DequantizeLinear(%w, %s)
    %b = onnx.Conv(%a, %f)                     %b = onnx.Conv(%a, %f)

Where such a node stands in a file says nothing about when it should run: exporters write the dequantised weights of
a whole network before its first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import reads_inside
from sublet.passes.live_bytes import blocks_of
from sublet.passes.order import reordered
from sublet.passes.rewriting import is_pure


def on_demand(graph: Graph) -> Graph:
    """The graph with what is computed from constants alone where it is needed first."""
    constants = computed_from_constants(graph)
    return reordered(graph, partial(_late, constants=constants)) if constants else graph


def computed_from_constants(graph: Graph) -> frozenset[str]:
    """The names of the nodes, on every level, that depend on no input and on no weight that a run changes."""
    known, found = set(graph.constants), set()
    for node in graph.walk():
        if not node.subgraphs and is_pure(node) and known.issuperset(node.uses):
            known.update(node.defs)
            found.add(node.name)
    return frozenset(found)


def _late(
    level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int], *, constants: frozenset[str]
) -> tuple[tuple[Node, ...], int]:
    """The nodes of a level with constants late, and the peak; as they are where that is estimated to be lower."""
    nodes = tuple(nodes)
    blocks = blocks_of(level, nodes, wanted, extra)
    given = tuple(range(len(nodes)))
    late = _moments(nodes, constants)
    peak, later = blocks.peak(given)[0], blocks.peak(late)[0]
    return (nodes, peak) if later > peak else (tuple(nodes[i] for i in late), later)


def _moments(nodes: Sequence[Node], constants: frozenset[str]) -> list[int]:
    """The positions of the nodes, each constant moved to right before what reads it first."""
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

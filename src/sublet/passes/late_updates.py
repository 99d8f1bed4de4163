"""Late updates: what only updates inputs and weights runs after everything else, where that costs no memory.

Requires a legal graph. Ensures that until these nodes run nothing outlasts a run that fails, so that a label out of
range or an interrupt leaves every weight as it was. An order of less memory consumes a gradient when it is complete;
where the peak lies elsewhere, that saves nothing. State of a node that computes something else too, as the running
statistics of a batch normalisation, is updated where that node stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sublet.ir.graph import Graph, Node
from sublet.ir.walk import reads_inside, results
from sublet.passes.live_bytes import blocks_of
from sublet.passes.rewriting import is_pure


def with_late_updates(graph: Graph, measure: Callable[[Graph], tuple[int, ...]]) -> Graph:
    """The graph with its updates at the end, or as it is when that needs more bytes by any number of `measure`."""
    last = _only_updating(graph)
    nodes = tuple(sorted(graph.nodes, key=lambda node: node.name in last))
    if nodes == graph.nodes or _estimated(graph, nodes) > _estimated(graph, graph.nodes):
        return graph
    found = replace(graph, nodes=nodes)
    return found if all(a <= b for a, b in zip(measure(found), measure(graph), strict=True)) else graph


def _only_updating(graph: Graph) -> set[str]:
    """The names of the nodes that make what inputs or weights are updated to, and whose results only they read."""
    sources = {source for _, source in graph.updates}
    wanted = {*graph.outputs}
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if not node.subgraphs and is_pure(node) and sources.intersection(node.defs) and wanted.isdisjoint(node.defs):
            found.add(node.name)
        else:
            wanted |= reads_inside(node)
    return found


def _estimated(graph: Graph, nodes: tuple[Node, ...]) -> int:
    """The peak of the root level in this order, what sub-graphs need in them left out."""
    return blocks_of(graph, nodes, results(graph), {}).peak(range(len(nodes)))[0]

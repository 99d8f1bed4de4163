"""The root level of a program as numbers, for a search over what is computed again: nodes, blocks of bytes, seconds.

Blocks are those of `passes/live_bytes.py`: a view is bytes of its base. What does not lie in the arena has no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import results
from sublet.passes.live_bytes import Blocks, blocks_of
from sublet.passes.order import reordered
from sublet.passes.recompute.clones import clonable, only_moved, reads_of_clone
from sublet.passes.recompute.offload import is_offload, offloaded, there_and_back

Clones = frozenset[tuple[int, int]]
"""Pairs (node, position of the reader): what is computed again, and before which node."""

NONE: Clones = frozenset()


@dataclass(frozen=True)
class Level:
    """The nodes of a root level, in order, and their blocks; both by position.

    blocks   as estimated: sizes, who makes and reads what, in what the results may be written
    cloned   the blocks that a clone of a node reads
    renewed  the blocks that a clone of a node makes anew, for those that read later
    wasted   bytes that a clone makes in blocks that nobody reads
    views    the nodes that name bytes of a block that the node makes
    latest   before which node at the latest a clone of it may stand
    seconds  of one run of each node
    away     by block the node that brings it to the slow memory, -1 for none; it runs only where it is brought back
    steady   bytes that are in the arena all the time
    """

    names: tuple[str, ...]
    blocks: Blocks
    cloned: tuple[tuple[int, ...], ...]
    renewed: tuple[tuple[int, ...], ...]
    wasted: tuple[int, ...]
    views: tuple[tuple[int, ...], ...]
    latest: tuple[int, ...]
    seconds: tuple[float, ...]
    away: tuple[int, ...]
    steady: int

    def again(self, clones: Clones) -> tuple[tuple[str, str], ...]:
        """The clones by name, with the views that their readers look through; in the order they will stand in."""
        pairs = {(k, r) for j, r in clones for k in (j, *self.views[j]) if k < r}
        return tuple((self.names[j], self.names[r]) for j, r in sorted(pairs, key=lambda pair: (pair[1], pair[0])))


def level_of(graph: Graph, seconds: Mapping[str, float], *, io_bound: bool, weights_bound: bool) -> Level:
    """The root level of a graph, with the seconds that each node takes by name."""
    extra = _inner_bytes(graph)
    blocks = blocks_of(graph, graph.nodes, results(graph), extra)
    block = blocks.of
    if io_bound:
        for value in (*graph.inputs, *graph.outputs):
            if value in block:
                blocks.nbytes[block[value]] = 0
    for value in (*graph.weights, *offloaded(graph)):
        if value in block:
            blocks.nbytes[block[value]] = 0
    views: list[list[int]] = [[] for _ in graph.nodes]
    maker = {b: j for j, born in enumerate(blocks.born) for b in born}
    for j, node in enumerate(graph.nodes):
        for value in node.defs:
            if maker.get(block[value], j) != j:
                views[maker[block[value]]].append(j)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            views[j] = [k for k in views[maker[block[there_and_back(node)[0]]]] if k > j]
    latest = list(clonable(graph))
    for j, several in enumerate(views):
        latest[j] = min([latest[j], *(latest[k] for k in several)])
    away = [-1] * len(blocks.nbytes)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            away[block[there_and_back(node)[0]]] = j
    moved = [{block[value] for value in only_moved(node)} for node in graph.nodes]
    return Level(
        tuple(node.name for node in graph.nodes),
        blocks,
        tuple(_blocks_read(node, block) for node in graph.nodes),
        tuple(_renewed(*each, block) for each in zip(graph.nodes, blocks.born, moved, strict=True)),
        tuple(sum(blocks.nbytes[b] for b in out) for out in moved),
        tuple(map(tuple, views)),
        tuple(latest),
        tuple(seconds[node.name] for node in graph.nodes),
        tuple(away),
        0 if weights_bound else sum(weight.nbytes for weight in graph.weights),
    )


def _renewed(node: Node, born: Sequence[int], moved: set[int], block: Mapping[Value, int]) -> tuple[int, ...]:
    """The blocks that a clone of the node makes anew."""
    return (block[there_and_back(node)[0]],) if is_offload(node) else tuple(b for b in born if b not in moved)


def _blocks_read(node: Node, block: Mapping[Value, int]) -> tuple[int, ...]:
    read = node.uses if node.subgraphs else [v for v in (*node.uses, *node.defs) if v in reads_of_clone(node)]
    return tuple(dict.fromkeys(block[value] for value in read if value in block))


def _inner_bytes(graph: Graph) -> dict[str, int]:
    """The bytes that loops and branches need inside, besides their results, by name."""
    found: dict[str, int] = {}

    def as_given(
        level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
    ) -> tuple[tuple[Node, ...], int]:
        found.update(extra)
        return tuple(nodes), blocks_of(level, nodes, wanted, extra).peak(range(len(nodes)))[0]

    choose: Callable[..., tuple[tuple[Node, ...], int]] = as_given
    reordered(graph, choose)
    return found

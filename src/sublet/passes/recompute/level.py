"""The root level of a program as numbers, for a search over what is computed again: nodes, blocks of bytes, seconds.

Blocks are those of `passes/live_bytes.py`: a view is bytes of its base. What does not lie in the arena has no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import makers, results
from sublet.ops import lookup, shared
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

    @cached_property
    def maker(self) -> dict[int, int]:
        """The node that makes each block, where one does."""
        return {b: j for j, born in enumerate(self.blocks.born) for b in born}

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
    _join_parts(graph.nodes, blocks)
    made_at = makers(graph.nodes)
    closed = {**_updated_in_steps(graph, blocks, made_at), **_updated_in_pieces(graph, blocks, made_at)}
    views: list[list[int]] = [[] for _ in graph.nodes]
    maker = {b: j for j, born in enumerate(blocks.born) for b in born}
    for j, node in enumerate(graph.nodes):
        for value in node.defs:
            if maker.get(block[value], j) != j:
                views[maker[block[value]]].append(j)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            views[j] = [k for k in views[maker[block[there_and_back(node)[0]]]] if k > j]
    cloned = [_blocks_read(node, block) for node in graph.nodes]
    latest = list(clonable(graph))
    for j, several in enumerate(views):
        latest[j] = min([latest[j], *(latest[k] for k in several)])
        latest[j] = min([latest[j], *(closed[b] for b in cloned[j] if b in closed)])
    away = [-1] * len(blocks.nbytes)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            away[block[there_and_back(node)[0]]] = j
    moved = [{block[value] for value in only_moved(node)} for node in graph.nodes]
    return Level(
        tuple(node.name for node in graph.nodes),
        blocks,
        tuple(cloned),
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


def _join_parts(nodes: Sequence[Node], blocks: Blocks) -> None:
    """A whole that is written where its parts lie takes over their bytes."""
    for node, over in zip(nodes, blocks.over, strict=True):
        if not node.subgraphs:
            for share in lookup(node.op).parts(node):
                whole, part = node.outputs[share.output], node.inputs[share.input]
                if whole in blocks.of and part in blocks.of:
                    pair = blocks.of[whole], blocks.of[part]
                    if 0 < blocks.nbytes[pair[1]] <= blocks.nbytes[pair[0]] and pair[1] not in blocks.kept:
                        over.append(pair)


def _updated_in_pieces(graph: Graph, blocks: Blocks, maker: dict[Value, int]) -> dict[int, int]:
    """Lets updates that are parts written over views of their target have no bytes of their own.

    Gives by block of such a target the node that first writes over it: no clone that reads it may stand behind.
    """
    closed: dict[int, int] = {}
    for target, source in graph.updates:
        joining = maker.get(source)
        if joining is None or target not in blocks.of or blocks.nbytes[blocks.of[target]]:
            continue
        whole, home = graph.nodes[joining], blocks.of[target]
        parts = [whole.inputs[share.input] for share in lookup(whole.op).parts(whole)] if not whole.subgraphs else []
        if parts and all(part in maker and _over(graph.nodes[maker[part]], part, home, blocks) for part in parts):
            for value in (source, *parts):
                if value is not None and blocks.of[value] != home:
                    blocks.nbytes[blocks.of[value]] = 0
            closed[home] = min(maker[part] for part in parts if part is not None)
    return closed


def _updated_in_steps(graph: Graph, blocks: Blocks, maker: Mapping[Value, int]) -> dict[int, int]:
    """Lets what leads to an update, each written over the one before and the first over the target, have no bytes.

    Gives by block of what is written over the node that does so: no clone that reads it may stand behind.
    """
    closed: dict[int, int] = {}
    for target, source in graph.updates:
        if target in blocks.of and not blocks.nbytes[blocks.of[target]]:
            steps = _steps(graph.nodes, maker, blocks, target, source)
            for before, node, after in steps if len(steps) > 1 else ():  # a single one is `at_home`
                blocks.nbytes[blocks.of[after]] = 0
                closed[blocks.of[before]] = node
    return closed


def _steps(
    nodes: Sequence[Node], maker: Mapping[Value, int], blocks: Blocks, target: Value, source: Value
) -> list[tuple[Value, int, Value]]:
    """(what a node reads for the last time, the node, what it writes over it) from the target to the source; none
    where they do not lead there."""
    found: list[tuple[Value, int, Value]] = []
    after = source
    while after != target:
        j = maker.get(after)
        if j is None or nodes[j].subgraphs:
            return []
        pairs = shared(nodes[j], lookup(nodes[j].op).inplace(nodes[j]))
        operands = [v for output, v, _ in pairs if output == after and v.nbytes == after.nbytes and v in blocks.of]
        last = [v for v in operands if blocks.readers[blocks.of[v]][-1:] == [j]]
        if len(last) != 1 or (last[0] != target and len(blocks.readers[blocks.of[last[0]]]) > 1):
            return []
        found.append((last[0], j, after))
        after = last[0]
    return found


def _over(node: Node, part: Value | None, home: int, blocks: Blocks) -> bool:
    """Whether the node may write the part over bytes of a block."""
    if node.subgraphs:
        return False
    pairs = shared(node, lookup(node.op).inplace(node))
    return any(output == part and blocks.of.get(operand) == home for output, operand, _ in pairs)


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

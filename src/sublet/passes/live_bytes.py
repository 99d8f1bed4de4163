"""Estimated live bytes of one level of a program, for passes choosing an order.

The estimate models the simple cases of buffer sharing: a view shares the bytes of the base; an output may overwrite an
operand at the last use if the op allows in-place execution; an updated input is dead after the last reader. The
estimate ignores offsets, concat operands in place and the copies of control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.dataflow import reads_inside, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup, present_shares


@dataclass
class LiveBlocks:
    """The blocks of bytes of a sequence of nodes. Nodes and blocks are identified by position.

    nbytes           size of each block
    born             blocks defined by each node
    read             blocks read by each node
    readers          nodes reading each block
    inplace          by node, pairs (defined block, read block): the node may write the first over the second
    update_in_place  by node, pairs (defined block, target): an update and the block of the updated value; unless a
                     later node reads the target, the update is written into the memory of the target
    kept             blocks live after the last node
    live_in          blocks live before the first node
    extra            bytes needed by each node inside the sub-graphs of the node
    block_of         the block of each value
    """

    nbytes: list[int] = field(default_factory=list)
    born: list[list[int]] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    inplace: list[list[tuple[int, int]]] = field(default_factory=list)
    update_in_place: list[list[tuple[int, int]]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    live_in: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    block_of: dict[Value, int] = field(default_factory=dict)

    @property
    def bytes_at_start(self) -> int:
        """The bytes live before the first node."""
        return sum(self.nbytes[block] for block in self.live_in)

    def peak(self, order: Sequence[int]) -> tuple[int, int]:
        """Return the peak of live bytes and the sum of live bytes over all nodes, for this order."""
        curve = self.curve(order)
        return max([self.bytes_at_start, *curve]), sum(curve)

    def curve(self, order: Sequence[int]) -> list[int]:
        """Return the live bytes at each node of this order."""
        waiting = [len(readers) for readers in self.readers]
        live = self.bytes_at_start
        found: list[int] = []
        for i in order:
            ending = [block for block in self.read[i] if waiting[block] == 1 and block not in self.kept]
            home = sum(self.nbytes[block] for block, target in self.update_in_place[i] if waiting[target] == 1)
            made = sum(self.nbytes[block] for block in self.born[i]) - home
            found.append(live + made - self.bytes_overwritten(i, ending) + self.extra[i])
            for block in self.read[i]:
                waiting[block] -= 1
            unread = (b for b in self.born[i] if not self.readers[b] and b not in self.kept)
            live += made - sum(self.nbytes[b] for b in ending) - sum(self.nbytes[b] for b in unread)
        return found

    def bytes_defined(self, i: int, counts: Callable[[int], bool]) -> int:
        """Return the bytes of the blocks defined by node `i` and accepted by `counts`, without in-place updates."""
        home = {block for block, _ in self.update_in_place[i]}
        return sum(self.nbytes[block] for block in self.born[i] if block not in home and counts(block))

    def bytes_overwritten(self, i: int, ending: Sequence[int]) -> int:
        """Return the bytes overwritten by the results of node `i`, of the blocks in `ending`: last used at the node."""
        taken: set[int] = set()
        done: set[int] = set()
        for made, source in self.inplace[i]:
            part = (
                self.nbytes[source] < self.nbytes[made]
            )  # a concatenation overwrites several parts, any other result one operand
            if source in ending and source not in taken and (part or made not in done):
                taken.add(source)
                done.add(made)
        return sum(self.nbytes[block] for block in taken)


def estimated_peak(graph: Graph) -> tuple[int, int]:
    """Return the estimated peak of live bytes of the root level, and the position of the first node at the peak.

    Bytes inside sub-graphs do not count.
    """
    blocks = blocks_of(graph, graph.nodes, results(graph), {})
    curve = blocks.curve(range(len(graph.nodes)))
    return max([blocks.bytes_at_start, *curve]), curve.index(max(curve)) if curve else 0


def blocks_of(graph: Graph, nodes: Sequence[Node], wanted: Iterable[Value], extra: Mapping[str, int]) -> LiveBlocks:
    """Return the blocks of some nodes of a level, in order. The `wanted` values are live after the last node.

    `extra` maps the name of a node to the bytes needed inside the sub-graphs of the node.
    """
    blocks = LiveBlocks()
    block_of = blocks.block_of
    updates = {source: target for target, source in graph.updates}
    kept = {*wanted, *graph.weights, *updates.values()}

    def add_block(value: Value) -> int:
        """Add a block for a value and return the number of the block."""
        block_of[value] = len(blocks.nbytes)
        blocks.nbytes.append(value.nbytes)
        blocks.readers.append([])
        return block_of[value]

    reads = [reads_inside(node) for node in nodes]
    read_at_all = set().union(*reads)
    for value in (*graph.inputs, *graph.weights):
        if value in read_at_all:
            add_block(value)
            blocks.live_in += [] if value in kept else [block_of[value]]
    for i, (node, read) in enumerate(zip(nodes, reads, strict=True)):
        known = [block_of[value] for value in _values_in_order(node, read) if value in block_of]
        blocks.read.append(list(dict.fromkeys(known)))
        for known_block in blocks.read[-1]:
            blocks.readers[known_block].append(i)
        base_of = _view_bases(node)
        blocks.born.append([])
        for value in node.defs:
            base = base_of.get(value)
            if base is not None and base in block_of:
                block_of[value] = block_of[base]
            else:
                blocks.born[-1].append(add_block(value))
        over = _inplace_pairs(node, block_of, blocks)
        home = {(block_of[s], block_of[updates[s]]) for s in node.defs if updates.get(s) in block_of}
        blocks.inplace.append([pair for pair in over if pair not in home])
        blocks.update_in_place.append([pair for pair in over if pair in home])
        blocks.extra.append(extra.get(node.name, 0))
    blocks.kept = {block_of[value] for value in kept if value in block_of}
    return blocks


def _values_in_order(node: Node, read: set[Value]) -> list[Value]:
    """Return the values read by a node in a deterministic order: operands first, captured values by name."""
    return [*dict.fromkeys(node.uses), *sorted(read - set(node.uses), key=lambda value: value.name)]


def _view_bases(node: Node) -> dict[Value, Value]:
    """Return the base of each output that is a view."""
    if node.subgraphs:
        return {}
    bases: dict[Value, Value] = {}
    for output, base, _ in present_shares(node, lookup(node.op).views(node)):
        bases.setdefault(output, base)
    return bases


def _inplace_pairs(node: Node, block: Mapping[Value, int], blocks: LiveBlocks) -> list[tuple[int, int]]:
    """Return the pairs (defined block, read block) of equal size to coalesce by running the node in place."""
    if node.subgraphs:
        return []
    pairs = []
    for output, source, _ in present_shares(node, lookup(node.op).inplace(node)):
        if output in block and source in block:
            pair = block[output], block[source]
            if blocks.nbytes[pair[0]] == blocks.nbytes[pair[1]] and pair[0] != pair[1]:
                pairs.append(pair)
    return pairs

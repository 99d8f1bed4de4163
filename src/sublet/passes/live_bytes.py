"""An estimate of the live bytes of one level of a program, for passes that choose an order.

It knows what the planner does about sharing in its simple cases: a view is bytes of its base, an output takes over
the bytes of an operand that is read for the last time where the op allows it, an updated input is over when the last
node has read it. Offsets, parts of concatenations and moves of control flow are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import reads_inside
from sublet.ops import lookup, shared


@dataclass
class Blocks:
    """The blocks of bytes of some nodes that run one after another. Nodes and blocks are known by their positions.

    nbytes    of each block
    born      the blocks that each node makes
    read      the blocks that each node reads
    readers   the nodes that read each block
    over      (block made, block read): which may take over the bytes of which, by node
    at_home   (block made, block read): an update and its target, by node; when nobody reads the target later, the
              update is written there, in memory that is the target's own
    kept      the blocks that are not given back here
    present   the blocks that are there before the first node
    extra     bytes that each node needs in its sub-graphs
    of        the block of each value
    """

    nbytes: list[int] = field(default_factory=list)
    born: list[list[int]] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    over: list[list[tuple[int, int]]] = field(default_factory=list)
    at_home: list[list[tuple[int, int]]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    present: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    of: dict[Value, int] = field(default_factory=dict)

    def peak(self, order: Sequence[int]) -> tuple[int, int]:
        """The most bytes alive at once, and the sum over all nodes, when the nodes run in this order."""
        curve = self.curve(order)
        return max([sum(self.nbytes[block] for block in self.present), *curve]), sum(curve)

    def curve(self, order: Sequence[int]) -> list[int]:
        """The bytes alive at each node, when the nodes run in this order."""
        waiting = [len(several) for several in self.readers]
        live = sum(self.nbytes[block] for block in self.present)
        found: list[int] = []
        for i in order:
            ending = [block for block in self.read[i] if waiting[block] == 1 and block not in self.kept]
            taken = self._taken(i, ending)
            home = sum(self.nbytes[block] for block, target in self.at_home[i] if waiting[target] == 1)
            made = sum(self.nbytes[block] for block in self.born[i]) - home
            saved = sum(self.nbytes[block] for block in taken)
            found.append(live + made - saved + self.extra[i])
            for block in self.read[i]:
                waiting[block] -= 1
            unread = (b for b in self.born[i] if not self.readers[b] and b not in self.kept)
            live += made - sum(self.nbytes[b] for b in ending) - sum(self.nbytes[b] for b in unread)
        return found

    def made(self, i: int, counts: Callable[[int], bool]) -> int:
        """Bytes that node i makes in blocks that count, updates at home left out."""
        home = {block for block, _ in self.at_home[i]}
        return sum(self.nbytes[block] for block in self.born[i] if block not in home and counts(block))

    def _taken(self, i: int, ending: Sequence[int]) -> list[int]:
        """The blocks read for the last time that node i writes its results over."""
        taken: list[int] = []
        done: set[int] = set()
        for made, source in self.over[i]:
            part = self.nbytes[source] < self.nbytes[made]  # a whole has several
            if source in ending and source not in taken and (part or made not in done):
                taken.append(source)
                done.add(made)
        return taken


def blocks_of(graph: Graph, nodes: Sequence[Node], wanted: Iterable[Value], extra: Mapping[str, int]) -> Blocks:
    """The blocks of some nodes of a level, in order, after which the `wanted` values are needed."""
    made = Blocks()
    block = made.of
    updates = {source: target for target, source in graph.updates}
    kept = {*wanted, *graph.weights, *updates.values()}

    def new(value: Value) -> int:
        block[value] = len(made.nbytes)
        made.nbytes.append(value.nbytes)
        made.readers.append([])
        return block[value]

    reads = [reads_inside(node) for node in nodes]
    read_at_all = set().union(*reads)
    for value in (*graph.inputs, *graph.weights):
        if value in read_at_all:
            new(value)
            made.present += [] if value in kept else [block[value]]
    for i, (node, read) in enumerate(zip(nodes, reads, strict=True)):
        known = [block[value] for value in _in_order(node, read) if value in block]
        made.read.append(list(dict.fromkeys(known)))
        for known_block in made.read[-1]:
            made.readers[known_block].append(i)
        viewed = _views(node)
        made.born.append([])
        for value in node.defs:
            base = viewed.get(value)
            if base is not None and base in block:
                block[value] = block[base]
            else:
                made.born[-1].append(new(value))
        over = _over(node, block, made)
        home = {(block[s], block[updates[s]]) for s in node.defs if updates.get(s) in block}
        made.over.append([pair for pair in over if pair not in home])
        made.at_home.append([pair for pair in over if pair in home])
        made.extra.append(extra.get(node.name, 0))
    made.kept = {block[value] for value in kept if value in block}
    return made


def _in_order(node: Node, read: set[Value]) -> list[Value]:
    return [*dict.fromkeys(node.uses), *sorted(read - set(node.uses), key=lambda value: value.name)]


def _views(node: Node) -> dict[Value, Value]:
    """What each output that is a view is bytes of."""
    if node.subgraphs:
        return {}
    found: dict[Value, Value] = {}
    for output, base, _ in shared(node, lookup(node.op).views(node)):
        found.setdefault(output, base)
    return found


def _over(node: Node, block: Mapping[Value, int], made: Blocks) -> list[tuple[int, int]]:
    if node.subgraphs:
        return []
    pairs = []
    for output, source, _ in shared(node, lookup(node.op).inplace(node)):
        if output in block and source in block:
            pair = block[output], block[source]
            if made.nbytes[pair[0]] == made.nbytes[pair[1]] and pair[0] != pair[1]:
                pairs.append(pair)
    return pairs

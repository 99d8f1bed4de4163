"""What is computed again, as data, and the one function that writes it into a graph.

Requires a legal graph. Ensures the same results, bit by bit where the same kernel gives the same: each pair (node,
reader) puts a clone of the node right before the reader, and whoever reads what it makes from there on reads the
clone. So the value is not alive between its last reader before the clone and the clone.

    %y = nn.relu(%x)                     %y = nn.relu(%x)
    %z = nn.conv(%y, %w)                 %z = nn.conv(%y, %w)
    ...                           ->     ...
    %d = gradient(%g, %y)                %y.again = nn.relu(%x) again
                                         %d = gradient(%g, %y.again)

Clones before one reader stand in the order of what they are clones of, so a chain reads its own clones. What nobody
reads any more is left out: where the first reader reads a clone, the node has moved. A result of the program is the
original's always. Random commands are functions of a key, and give the same numbers again.

A clone never stands behind the node that makes the new content of an input or weight which it reads: that content may
be written over the old. A batch normalisation reads the running statistics only to move them; its clone, whose moved
ones nobody reads, reads the scale in their place.

A pair may also name the offload of a value (`offload.py`): its clone brings the value back from slow memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.base.errors import PlanError
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import makers, reads_inside, renamed_in, results
from sublet.ops import lookup
from sublet.ops.emitter import Names
from sublet.ops.nn.conversion import RELOAD
from sublet.passes.recompute.offload import is_offload, meant, there_and_back, with_offloads

Again = Sequence[tuple[str, str]]
"""Pairs (node, reader) of the root level, by name."""

ONLY_MOVED: Mapping[str, tuple[tuple[int, int, int], ...]] = {"nn.batch_norm": ((3, 1, 1), (4, 1, 2))}
"""By op (operand, another of the same spec, output): the operand has a part in this output only."""


def recomputed(graph: Graph, again: Again) -> Graph:
    """The graph in which these nodes are computed again. The same graph for the same pairs.

    Raises PlanError for a pair that this graph cannot have, that is told twice, or that nobody would read.
    """
    if not again:
        return graph
    nodes, left = _written(graph, again)
    if len(left) != len(again):
        name, reader = next((pair for pair in again if pair not in left), again[0])
        raise PlanError(f"{name!r} computed again before {reader!r} is read by nobody, or told twice: leave it out")
    return replace(graph, nodes=tuple(nodes))


def read_by_somebody(graph: Graph, again: Again) -> Again:
    """Those of the pairs that change something. Raises PlanError for a pair that this graph cannot have."""
    return _written(graph, again)[1]


def _written(graph: Graph, again: Again) -> tuple[Sequence[Node], Again]:
    """The nodes, and of the pairs those whose clones are left."""
    graph = with_offloads(graph, meant(graph, (name for name, _ in again)))
    places = _places(graph, again)
    names = Names([value.name for value in graph.values()] + [node.name for node in graph.walk()])
    now: dict[Value, Value] = {}
    made: list[Node] = []
    pairs: dict[str, tuple[str, str]] = {}
    for i, node in enumerate(graph.nodes):
        for j in sorted(places.get(i, ())):
            clone = _clone(graph.nodes[j], now, names)
            pairs[clone.name] = graph.nodes[j].name, node.name
            made.append(clone)
            now.update(_pairs(graph.nodes[j], clone))
        made.append(renamed_in(node, now) if now else node)
    nodes = _needed(made, set(results(graph)), {name for name, _ in again})
    return nodes, [pairs[node.name] for node in nodes if node.name in pairs]


def clonable(graph: Graph) -> list[int]:
    """For each node of the root level the last position that a clone of it may stand before; -1 where none may."""
    maker = makers(graph.nodes)
    end = len(graph.nodes)
    closed = {target: maker.get(source, end) for target, source in graph.updates}
    return [_latest(node, closed, end - 1) for node in graph.nodes]


def _latest(node: Node, closed: Mapping[Value, int], last: int) -> int:
    if (
        node.subgraphs
        or not lookup(node.op).pure
        or not any(node.outputs)
        or not all(v.plannable for v in (*node.uses, *node.defs))
    ):
        return -1
    read = _operands(node)
    return min([last, *(closed[value] for value in read if value is not None and value in closed)])


def _operands(node: Node) -> tuple[Value | None, ...]:
    """What a clone of the node reads."""
    if is_offload(node):
        return (there_and_back(node)[1],)
    read = list(node.inputs)
    for position, other, _ in ONLY_MOVED.get(node.op, ()):
        if position < len(read):
            read[position] = read[other]
    return tuple(read)


def reads_of_clone(node: Node) -> set[Value]:
    """The values that a clone of the node reads."""
    return {value for value in _operands(node) if value is not None}


def only_moved(node: Node) -> set[Value]:
    """The outputs of which a clone has no use: they hold something else there."""
    return {value for _, _, k in ONLY_MOVED.get(node.op, ()) if (value := node.outputs[k]) is not None}


def _places(graph: Graph, again: Again) -> dict[int, set[int]]:
    """The positions of what is computed again by the position of the reader. Raises PlanError."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    latest = clonable(graph)
    found: dict[int, set[int]] = {}
    for name, reader in again:
        if name not in position or reader not in position:
            raise PlanError(f"{name!r} cannot be computed again before {reader!r}: the graph has no such nodes")
        j, i = position[name], position[reader]
        if not j < i <= latest[j]:
            why = "it stands before it" if i <= j else "it does more than compute, or what it reads is updated by then"
            raise PlanError(f"{name!r} cannot be computed again before {reader!r}: {why}")
        found.setdefault(i, set()).add(j)
    return found


@dataclass(frozen=True)
class _Fresh:
    """Values of a clone."""

    names: Names

    def of(self, value: Value | None) -> Value | None:
        return None if value is None else replace(value, name=self.names.fresh(f"{value.name}.again"))


def _clone(node: Node, now: Mapping[Value, Value], names: Names) -> Node:
    fresh = _Fresh(names)
    inputs = tuple(None if value is None else now.get(value, value) for value in _operands(node))
    outputs = tuple(fresh.of(value) for value in (node.inputs if is_offload(node) else node.outputs))
    node = replace(node, op=RELOAD) if is_offload(node) else node
    scratch = None if node.scratch is None else fresh.of(node.scratch)
    name = next(value.name for value in outputs if value is not None)
    return replace(node, name=name, inputs=inputs, outputs=outputs, scratch=scratch, again=True)


def _pairs(node: Node, clone: Node) -> dict[Value, Value]:
    moved = only_moved(node)
    pairs = zip(node.inputs if is_offload(node) else node.outputs, clone.outputs, strict=True)
    return {old: new for old, new in pairs if old is not None and new is not None and old not in moved}


def _needed(nodes: Sequence[Node], needed: set[Value], several: Collection[str]) -> list[Node]:
    """The nodes without clones, and nodes that have clones, that nobody reads."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if (node.again or node.name in several) and needed.isdisjoint(node.outputs):
            continue
        needed |= reads_inside(node)
        kept.append(node)
    return kept[::-1]

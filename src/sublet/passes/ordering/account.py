"""The bytes that are alive in any order of the nodes of a level: what the compiled search counts.

Counted are atoms: bytes that live and die together. A view is atoms of its base, a concatenation the atoms of its
operands, so neither takes bytes; a result takes over the atoms of an operand that end there, where the op allows it. No
plan of any order has fewer bytes at its peak where `proves` says so; elsewhere it is an estimate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import reads_inside
from sublet.ops import lookup, shared
from sublet.passes.greedy_orders import DataFlow
from sublet.passes.ordering import _ordering


class Segment(NamedTuple):
    """Bytes begin to end of what was made as `root`."""

    root: Value
    begin: int
    end: int


Content = tuple[Segment, ...]


@dataclass(frozen=True)
class Account:
    """Atoms and nodes by position: sizes, who makes (-1: the start) and reads them, what results may be written over.

    over   by node: (bytes of a result, the atoms of each operand that it may be written over)
    extra  bytes that each node needs in its sub-graphs
    proves whether no plan of any order has fewer bytes alive: there is no control flow, nothing is updated, and
           no operand has to be copied into a concatenation, where two copies might be the same bytes
    """

    size: tuple[int, ...]
    kept: tuple[bool, ...]
    maker: tuple[int, ...]
    read: tuple[tuple[int, ...], ...]
    over: tuple[tuple[tuple[int, tuple[tuple[int, ...], ...]], ...], ...]
    extra: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    proves: bool

    def problem(self) -> _ordering.Problem:
        """In the form of the compiled search."""
        return _ordering.problem(self.size, self.kept, self.maker, self.before, self.read, self.over, self.extra)


def account_of(
    graph: Graph,
    nodes: Sequence[Node],
    wanted: Iterable[Value],
    extra: Mapping[str, int],
    flow: DataFlow,
    outside: Collection[Value],
    *,
    in_all: bool = True,
) -> Account:
    """The account of some nodes of a level after which the `wanted` values are needed.

    Values `outside` have no bytes here; nor has an update that is written over its target, the last to read it. An
    operand lies in all concatenations that read it, or (not `in_all`) in the first of them, as plans mostly have it.
    """
    home = {*outside, *_at_home(graph, nodes, flow)}
    reads = [reads_inside(node) for node in nodes]
    read_at_all = set().union(*reads)
    contents: dict[Value, Content] = {}
    maker: dict[Value, int] = {}
    for value in (*graph.inputs, *graph.weights):
        if value in read_at_all:
            contents[value], maker[value] = (Segment(value, 0, value.nbytes),), -1
    wholes: dict[Value, set[Segment]] | None = None if in_all else {}
    for i, node in enumerate(nodes):
        _define(node, contents, home, wholes)
        maker.update((segment.root, i) for v in node.defs for segment in contents[v] if segment.root in node.defs)
    kept = {*wanted, *graph.weights, *graph.updated}
    proves = not graph.updates and not any(node.subgraphs or _copies(node, contents) for node in nodes)
    return _divided(nodes, reads, contents, maker, kept, home, extra, flow, proves)


def _copies(node: Node, contents: Mapping[Value, Content]) -> bool:
    """Whether an operand is no bytes of the concatenation that holds it, or one of several that are the same is not."""
    rest: dict[Value, int] = {}
    for whole, part, _ in shared(node, lookup(node.op).parts(node)):
        rest[whole] = rest.get(whole, whole.nbytes) - part.nbytes
    own = {whole: sum(end - begin for root, begin, end in contents[whole] if root == whole) for whole in rest}
    return any(own[whole] > left for whole, left in rest.items())


def _at_home(graph: Graph, nodes: Sequence[Node], flow: DataFlow) -> set[Value]:
    """The updates that lie in the memory of their targets: nobody that follows them reads the target."""
    targets = {source: target for target, source in graph.updates}
    readers: dict[Value, list[int]] = {}
    for i, node in enumerate(nodes):
        for value in reads_inside(node) & {*targets.values()}:
            readers.setdefault(value, []).append(i)
    found = set()
    for i, node in enumerate(nodes):
        for made, read, _ in shared(node, () if node.subgraphs else lookup(node.op).inplace(node)):
            if targets.get(made) == read and all(k == i or k in flow.before[i] for k in readers[read]):
                found.add(made)
    return found


def _define(
    node: Node,
    contents: dict[Value, Content],
    outside: Collection[Value],
    wholes: dict[Value, set[Segment]] | None,
) -> None:
    """What the results of a node are bytes of; `wholes`: the concatenation that bytes lie in, if in one only."""
    placed: dict[Value, list[tuple[int, Content]]] = {}
    if not node.subgraphs:
        op = lookup(node.op)
        for output, base, offset in shared(node, op.views(node)):
            if base in contents and output not in placed:
                placed[output] = [(0, _cut(contents[base], offset, offset + output.nbytes))]
        for output, part, offset in shared(node, op.parts(node)):
            if part not in contents or any(s.root in outside for s in contents[part]):
                continue
            if wholes is None or all(wholes.get(s.root, set()) <= set(contents[part]) for s in contents[part]):
                placed.setdefault(output, []).append((offset, contents[part]))
    for value in node.defs:
        contents[value] = _laid(value, placed.get(value, ()))
        if wholes is not None and len(placed.get(value, ())) > 1:
            wholes.update((segment.root, set(contents[value])) for segment in contents[value])


def _cut(content: Content, begin: int, end: int) -> Content:
    """Bytes begin to end of a content."""
    found, at = [], 0
    for root, first, last in content:
        low, high = max(begin - at, 0), min(end - at, last - first)
        if low < high:
            found.append(Segment(root, first + low, first + high))
        at += last - first
    return tuple(found)


def _laid(value: Value, placed: Sequence[tuple[int, Content]]) -> Content:
    """The content of a value of which some is bytes of others; the rest, and what would be there twice, is its own."""
    found: list[Segment] = []
    at = own = 0
    for offset, content in [*sorted(placed, key=lambda pair: pair[0]), (value.nbytes, ())]:
        nbytes = sum(segment.end - segment.begin for segment in content)
        if offset < at or offset + nbytes > value.nbytes or _overlap(found, content):
            continue
        if at < offset:
            found.append(Segment(value, own, own + offset - at))
            own += offset - at
        found += content
        at = offset + nbytes
    return tuple(found)


def _overlap(some: Iterable[Segment], others: Content) -> bool:
    return any(a.root == b.root and a.begin < b.end and b.begin < a.end for a in some for b in others)


def _divided(
    nodes: Sequence[Node],
    reads: Sequence[set[Value]],
    contents: Mapping[Value, Content],
    maker: Mapping[Value, int],
    kept: Collection[Value],
    outside: Collection[Value],
    extra: Mapping[str, int],
    flow: DataFlow,
    proves: bool,
) -> Account:
    """The account, with what was made in one piece divided where somebody takes a part of it."""
    bounds: dict[Value, set[int]] = {}
    for content in contents.values():
        for root, begin, end in content:
            bounds.setdefault(root, set()).update((begin, end))
    cuts = {root: sorted(several) for root, several in bounds.items()}
    first, count = {}, 0
    for root, several in cuts.items():
        first[root] = count
        count += len(several) - 1

    def atoms(value: Value) -> list[int]:
        found: list[int] = []
        for root, begin, end in contents.get(value, ()):
            start = first[root]
            found += range(start + bisect_left(cuts[root], begin), start + bisect_left(cuts[root], end))
        return found

    size = [0 if root in outside else end - begin for root, several in cuts.items() for begin, end in pairwise(several)]
    made_by = [maker[root] for root, several in cuts.items() for _ in several[1:]]
    stays = [False] * count
    for value in kept:
        for a in atoms(value):
            stays[a] = True
    read = [
        tuple(sorted({a for value in several for a in atoms(value) if made_by[a] != i}))
        for i, several in enumerate(reads)
    ]
    over = [_slots(node, contents, atoms) for node in nodes]
    more = tuple(extra.get(node.name, 0) for node in nodes)
    return Account(tuple(size), tuple(stays), tuple(made_by), tuple(read), tuple(over), more, flow.before, proves)


def _slots(
    node: Node, contents: Mapping[Value, Content], atoms: Callable[[Value], list[int]]
) -> tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]:
    """What each result that is bytes of its own may be written over."""
    found: dict[Value, list[tuple[int, ...]]] = {}
    for made, read, _ in shared(node, () if node.subgraphs else lookup(node.op).inplace(node)):
        if contents[made] == (Segment(made, 0, made.nbytes),) and made.nbytes and read in contents:
            found.setdefault(made, []).append(tuple(atoms(read)))
    return tuple((made.nbytes, tuple(dict.fromkeys(operands))) for made, operands in found.items())

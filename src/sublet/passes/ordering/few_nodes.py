"""Orders of a few nodes that may need a smaller arena than a given one, with an estimate of each arena.

The estimate of an order models sharing as in plans: each value has one place. A view, or an operand of a concatenation,
lies in place or is copied. At first all these shares are in place, nested concatenations included. Two values that need
the same place at the same time are a conflict: the search copies one of the shares between both values, in all ways,
and the estimate is the least peak without a conflict. Gaps between buffers do not count.
A plan may need less than the estimate where copies of equal bytes share a place by chance: one graph of about 1,400.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import chain, combinations, islice, pairwise
from typing import NamedTuple

from sublet.ir.dataflow import reads_inside, results
from sublet.ir.graph import Graph, Value
from sublet.ops import lookup, present_shares
from sublet.passes.ordering.atom_model import Content, RootRange, share_bytes, sub_content
from sublet.passes.ordering.order_search import atom_model_in_order
from sublet.passes.reordering import data_flow

MAX_NODES = 12
"""Nodes of a graph. The orders of a larger graph are not enumerated: too many of them would be left out."""
MAX_ORDERS = 1000
"""Orders to estimate, about half a second for 12 nodes. Further orders are left out."""
MAX_CHOICES = 16
"""Choices of copies to compare for one order. Beyond, conflicts no longer raise the estimate."""

Links = dict[Value, list[tuple[Value, int, int]]]
"""For each value the values at a fixed distance in bytes: (value, distance, share)."""
Lifetimes = Sequence[tuple[int, int]]
"""For each atom the positions of the first and the last node at which the atom is live."""


def promising_orders(
    graph: Graph, outside: Collection[Value], alignment: int, arena_bytes: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Return (estimate, order) of the orders that may need fewer than `arena_bytes`, the smallest estimate first.

    The live bytes exclude all other orders, up to MAX_ORDERS. An estimate ends at `arena_bytes`. An order lists the
    positions of the nodes. Values in `outside` have no bytes in the arena. The list is empty for graphs of more than
    MAX_NODES nodes, with control flow or with updates.
    """
    if len(graph.nodes) > MAX_NODES or graph.updates or any(node.subgraphs for node in graph.nodes):
        return []
    estimates = _OrderEstimates(graph, outside, alignment)
    orders = islice(_orders_below(graph, outside, arena_bytes), MAX_ORDERS)
    return sorted((estimates.arena_bytes(order, arena_bytes), order) for order in orders)


def _orders_below(graph: Graph, outside: Collection[Value], arena_bytes: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders with fewer live bytes than `arena_bytes` at every node, or all if live bytes are no bound."""
    model = atom_model_in_order(graph, outside)
    before = [frozenset(nodes) for nodes in data_flow(graph.nodes).before]
    problem = model.compiled_problem()
    dead_ends: set[frozenset[int]] = set()

    def orders_from(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the orders beginning with the nodes of `order`."""
        if len(order) == len(before):
            yield order
            return
        done, is_dead_end = frozenset(order), True
        for node in range(len(before)):
            longer = (*order, node)
            if node in done or not before[node] <= done or done | {node} in dead_ends:
                continue
            if not model.is_bound or problem.curve(longer)[-1] < arena_bytes:
                for complete in orders_from(longer):
                    is_dead_end = False
                    yield complete
        if is_dead_end:
            dead_ends.add(done)

    return orders_from(())


class _Share(NamedTuple):
    """A view, or an operand of a concatenation: the operand lies in place `shift` bytes after the result.

    The shift is the offset of an operand in the result, and the negative offset of a view in the base.
    """

    node: int
    result: Value
    operand: Value
    shift: int
    is_view: bool


class _Atom(NamedTuple):
    """Bytes with a common definition and a common last use.

    units     the number of alignment units beginning in the atom
    slack     bytes between the end of the atom and the next aligned offset
    defining  the nodes defining a value with these bytes, -1 for inputs
    reading   the nodes reading such a value; also the number of all nodes if a result has these bytes
    """

    units: int
    slack: int
    defining: set[int]
    reading: set[int]


class _Sharing(NamedTuple):
    """The atoms of a graph, with some shares copied and all others in place.

    overwrites  (node, units of a result, the atoms of each operand that the result may overwrite)
    touching    (node, atom, atom): the node may write the second atom over the first
    conflicts   (two atoms in one place, the shares between both); the same atom twice for a value in two places
    """

    atoms: Sequence[_Atom]
    overwrites: Sequence[tuple[int, int, Sequence[Collection[int]]]]
    touching: Collection[tuple[int, int, int]]
    conflicts: Sequence[tuple[int, int, Collection[int]]]

    def peak(self, lives: Lifetimes, position: Mapping[int, int], alignment: int) -> int:
        """Return the least bytes of an arena for these lifetimes, with offsets that are multiples of `alignment`."""
        count = len(position) - 1
        units, slack = [0] * count, [0] * count
        for atom, (begin, end) in zip(self.atoms, lives, strict=True):
            for at in range(begin + 1, min(end + 2, count)):
                units[at] += atom.units
                slack[at] = max(slack[at], atom.slack)
        for node, written, operands in self.overwrites:
            at = position[node]
            ending = (sum(self.atoms[a].units for a in atoms if lives[a][1] == at) for atoms in operands)
            units[at + 1] -= min(written, max(ending))
        return max(alignment * n - rest for n, rest in zip(units, slack, strict=True))

    def find_conflict(self, lives: Lifetimes, order: Sequence[int]) -> Collection[int]:
        """Return the shares between two atoms that need one place at the same time; an empty collection if none do."""
        for a, b, shares in self.conflicts:
            first, second = (a, b) if lives[a] <= lives[b] else (b, a)
            end, begin = lives[first][1], lives[second][0]
            if a == b or end > begin or (end == begin and (order[begin], first, second) not in self.touching):
                return shares
        return ()


class _OrderEstimates:
    """Estimates of the arena of a graph in any order of its nodes."""

    def __init__(self, graph: Graph, outside: Collection[Value], alignment: int) -> None:
        self._graph, self._outside, self._alignment = graph, outside, alignment
        self._shares = [
            _Share(i, result, operand, -offset if is_view else offset, is_view)
            for i, node in enumerate(graph.nodes)
            for is_view, facts in ((True, lookup(node.op).views), (False, lookup(node.op).parts))
            for result, operand, offset in present_shares(node, facts(node))
            if result.nbytes and operand.nbytes
        ]
        self._misaligned = frozenset(k for k, share in enumerate(self._shares) if share.shift % alignment)
        self._sharing = cache(self._make_sharing)

    def arena_bytes(self, order: Sequence[int], enough: int) -> int:
        """Return the estimated arena of an order: the least peak over the copies that leave no conflict, in bytes.

        The search goes from the least peak upwards, and ends at `enough` bytes.
        """
        position = {-1: -1, len(order): len(order)} | {node: at for at, node in enumerate(order)}
        todo: list[tuple[int, list[int], Collection[int]]] = []
        seen: set[frozenset[int]] = set()

        def add(copied: frozenset[int]) -> None:
            """Add the choice to copy the shares in `copied`."""
            if copied in seen:
                return
            seen.add(copied)
            sharing, lives = self._sharing(copied), []
            for atom in sharing.atoms:
                begin = min(position[node] for node in atom.defining)
                lives.append((begin, max((position[node] for node in atom.reading), default=begin)))
            peak = sharing.peak(lives, position, self._alignment)
            between = sharing.find_conflict(lives, order) if peak < enough else ()
            heappush(todo, (peak, sorted(copied), between))

        add(self._misaligned)
        while True:
            peak, copied, between = heappop(todo)
            if not between or len(seen) > MAX_CHOICES:
                return peak
            for share in between:
                add(frozenset((*copied, share)))

    def _make_sharing(self, copied: frozenset[int]) -> _Sharing:
        """Return the atoms of the graph, with the shares in `copied` copied."""
        nodes, links = self._graph.nodes, Links()
        contents = self._place(copied, links)
        cuts: dict[Value, set[int]] = {}
        for root, begin, end in chain.from_iterable(contents.values()):
            cuts.setdefault(root, set()).update((begin, end))
        pieces = {
            value: [
                RootRange(root, *ends)
                for root, begin, end in content
                for ends in pairwise(at for at in sorted(cuts[root]) if begin <= at <= end)
            ]
            for value, content in contents.items()
        }
        number = {piece: a for a, piece in enumerate(dict.fromkeys(chain.from_iterable(pieces.values())))}
        held = {value: [number[piece] for piece in several] for value, several in pieces.items()}
        atoms = [self._new_atom(piece) for piece in number]
        for value in (*self._graph.inputs, *self._graph.weights):
            for a in held[value]:
                atoms[a].defining.add(-1)
        for value in (*results(self._graph), *self._graph.weights):
            for a in held[value]:
                atoms[a].reading.add(len(nodes))
        overwrites, touching = [], set()
        for i, node in enumerate(nodes):
            for a in chain.from_iterable(held[value] for value in node.defs):
                atoms[a].defining.add(i)
            for a in chain.from_iterable(held[value] for value in reads_inside(node)):
                atoms[a].reading.add(i)
            over: dict[Value, list[list[int]]] = {}
            for made, operand, _ in present_shares(node, lookup(node.op).inplace(node)):
                over.setdefault(made, []).append(held[operand])
                touching |= {(i, a, b) for a in held[operand] for b in held[made]}
            for made, operands in over.items():
                if contents[made] == (RootRange(made, 0, made.nbytes),):
                    overwrites.append((i, -(-made.nbytes // self._alignment), operands))
        sizes = [end - begin for _, begin, end in number]
        return _Sharing(atoms, overwrites, touching, list(_conflicts(held, sizes, links)))

    def _new_atom(self, piece: RootRange) -> _Atom:
        """Return the atom of some bytes, without nodes. Bytes of a value outside the arena take no units."""
        root, begin, end = piece
        units = 0 if root in self._outside else -(-end // self._alignment) - -(-begin // self._alignment)
        return _Atom(units, -end % self._alignment if units else 0, set(), set())

    def _place(self, copied: Collection[int], links: Links) -> dict[Value, Content]:
        """Return the content of each value, and add the shares in place to `links`."""
        contents: dict[Value, Content] = {}
        for value in (*self._graph.inputs, *self._graph.weights):
            contents[value] = (RootRange(value, 0, value.nbytes),)
        of_result: dict[Value, list[tuple[int, _Share]]] = {}
        for k, share in enumerate(self._shares):
            of_result.setdefault(share.result, []).append((k, share))
        for value in chain.from_iterable(node.defs for node in self._graph.nodes):
            ranges, end = list[RootRange](), 0
            for k, (_, _, operand, shift, is_view) in sorted(of_result.get(value, ()), key=lambda pair: pair[1].shift):
                offset, skipped = max(0, shift), max(0, -shift)
                if offset < end:
                    continue
                content = sub_content(contents[operand], skipped, skipped + value.nbytes)
                in_place = k not in copied and (is_view or all(root not in self._outside for root, _, _ in content))
                if in_place:
                    links.setdefault(value, []).append((operand, shift, k))
                    links.setdefault(operand, []).append((value, -shift, k))
                else:
                    content = _copy_of(content, offset, self._alignment)
                    while share_bytes(ranges, content):
                        content = _copy_of(content, offset, self._alignment)
                ranges += [RootRange(value, end, offset)] if end < offset else []
                ranges += content
                end = offset + sum(last - first for _, first, last in content)
            contents[value] = (*ranges, *((RootRange(value, end, value.nbytes),) if end < value.nbytes else ()))
        return contents


def _copy_of(content: Content, offset: int, alignment: int) -> Content:
    """Return the content of a copy at an offset. Copies of the same bytes may be the same bytes.

    A range of the copy begins as many bytes after an aligned offset as its place.
    """
    ranges = []
    for root, begin, end in content:
        moved = (offset - begin) % alignment
        copy = replace(root, name=f"copy of {root.name}, moved by {moved}")
        ranges.append(RootRange(copy, begin + moved, end + moved))
        offset += end - begin
    return tuple(ranges)


def _conflicts(
    held: Mapping[Value, Sequence[int]], sizes: Sequence[int], links: Links
) -> Iterator[tuple[int, int, Collection[int]]]:
    """Yield two atoms in one place, or atom 0 twice for a value in two places, with the shares between both."""
    offset: dict[Value, int] = {}
    path: dict[Value, frozenset[int]] = {}
    for first in held:
        if first in offset:
            continue
        offset[first], path[first] = 0, frozenset()
        todo = [first]
        for value in todo:
            for other, distance, share in links.get(value, ()):
                if other not in offset:
                    offset[other], path[other] = offset[value] + distance, path[value] | {share}
                    todo.append(other)
                elif offset[other] != offset[value] + distance:
                    yield 0, 0, sorted((path[value] ^ path[other]) | {share})
        places: dict[tuple[int, int], Value] = {}
        for value in todo:
            begin = offset[value]
            for a in held[value]:
                places.setdefault((begin, a), value)
                begin += sizes[a]
        for ((x, a), one), ((y, b), other) in combinations(places.items(), 2):
            if a != b and x < y + sizes[b] and y < x + sizes[a]:
                yield a, b, sorted(path[one] ^ path[other])

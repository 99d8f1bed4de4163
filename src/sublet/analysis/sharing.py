"""Which values are the same bytes on purpose: views, parts of a concatenation, in-place, carries.

Starting from one buffer a value, buffers are merged, in this order:

    view     an output that is bytes of an input
    part     a concatenation's operand, written at its place in the output
    inplace  an output that takes over an input's bytes
    carry    the source of a control flow move (a carried update, an arm's result) born where it goes

Two values may overlap in a buffer where their contents agree, or when one is read for the last time
before, or (in-place and carry) at the very point where, the other is written. A merge is made only
if it does not raise the live bytes at any point above the highest of its own lifetime, so that a
small view does not keep a large base alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.content import Content, agree, contents
from sublet.analysis.flow import Flow, Point
from sublet.analysis.liveness import LiveRanges, Pieces, merge
from sublet.analysis.order import Concurrency
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import Share, lookup


@dataclass(frozen=True, slots=True)
class Member:
    """A value in a buffer: its offset there, how it came in, and whose bytes it took."""

    value: Value
    offset: int
    how: str = "own"
    shares: str = ""


@dataclass(frozen=True)
class SharedBuffer:
    """Values that live in one block of `nbytes`.

    `home` names the bound storage the block is, "" for the arena. Invariant: at any time the bytes
    that several members cover are equal for all members alive then.
    """

    members: tuple[Member, ...]
    nbytes: int
    live: Pieces
    home: str = ""


@dataclass
class _Group:
    members: list[Member]
    low: int
    high: int
    live: Pieces
    home: str = ""
    writable: bool = True  # whether the network may write there
    filled: bool = False  # whether the caller puts bytes there before the run


@dataclass
class _Merger:
    """The state of merging: the group of each value, and the live bytes at each point."""

    alignment: int
    ranges: LiveRanges
    concurrency: Concurrency
    contents: Mapping[Value, Content]
    groups: dict[Value, _Group]
    offsets: dict[Value, int]
    curve: NDArray[np.int64]
    permitted: frozenset[tuple[int, Value, Value]]
    distances: Mapping[tuple[Value, Value], set[int]]
    unwritten: set[Value]  # views that lie in their base, so that nothing writes them

    def merge(self, how: str, child: Value, parent: Value, offset: int) -> bool:
        """Put `child`'s group into `parent`'s so that child starts `offset` bytes after parent starts."""
        a, b = self.groups.get(parent), self.groups.get(child)
        if a is None or b is None or a is b:
            return a is b and a is not None
        shift = self.offsets[parent] + offset - self.offsets[child]
        if shift % self.alignment or not self._homes_allow(how, a, b, shift):
            return False
        if how == "view":
            self.unwritten.add(child)
        union = _union(a, b, shift)
        fits = all(self._compatible(x, y, shift) for y in b.members for x in a.members)
        if not fits or self._raises_peak(a, b, union):
            self.unwritten.discard(child)
            return False
        self._commit(how, child, parent, a, b, union, shift)
        return True

    def _homes_allow(self, how: str, a: _Group, b: _Group, shift: int) -> bool:
        if a.home and b.home:
            return False
        fixed, guest, base = (a, b, shift) if a.home else (b, a, -shift)
        if not fixed.home:
            return True
        if guest.filled:
            return False  # the caller would not find the place
        if not fixed.writable and (how != "view" or fixed is b):
            return False
        return fixed.low <= guest.low + base and guest.high + base <= fixed.high

    def _compatible(self, x: Member, y: Member, shift: int) -> bool:
        """Whether x and y, the latter moved by `shift`, may lie where they do."""
        begin, end = y.offset + shift, y.offset + shift + y.value.nbytes
        if begin >= x.offset + x.value.nbytes or x.offset >= end:
            return True
        if self._equal(x, y, begin):
            return True
        return self._take_turns(x.value, y.value, same_place=begin == x.offset)

    def _equal(self, x: Member, y: Member, begin: int) -> bool:
        """Whether x, and y when it begins at `begin`, hold equal bytes, and none is copied over the other.

        Equal bytes do not help when one is an operand of the other and copied from elsewhere in it, nor
        when one may be written while another stream reads the other.
        """
        distance = begin - x.offset
        into_y, into_x = self.distances.get((x.value, y.value)), self.distances.get((y.value, x.value))
        if (into_y is not None and distance not in into_y) or (into_x is not None and -distance not in into_x):
            return False
        if not agree(self.contents[x.value], x.offset, self.contents[y.value], begin):
            return False
        written = ((x.value, y.value), (y.value, x.value))
        return not any(a not in self.unwritten and self.concurrency.may_write_during(a, b) for a, b in written)

    def _take_turns(self, x: Value, y: Value, same_place: bool) -> bool:
        """Whether the lives of two values are disjoint, or touch only where one may replace the other."""
        if self.concurrency.may_meet(x, y):
            return False
        i = j = 0
        p, q = self.ranges.halves[x], self.ranges.halves[y]
        while i < len(p) and j < len(q):
            ordered = p[i] <= q[j]
            (_, end), (begin, _) = (p[i], q[j]) if ordered else (q[j], p[i])
            if end > begin:
                return False
            # An odd half point is a write: here one value is read last and the other written first.
            if end == begin and end % 2:
                last, first = (x, y) if ordered else (y, x)
                if not same_place or (end // 2, last, first) not in self.permitted:
                    return False
            if p[i][1] <= q[j][1]:
                i += 1
            else:
                j += 1
        return True

    def _raises_peak(self, a: _Group, b: _Group, union: _Group) -> bool:
        if not union.live:
            return False
        begin, end = union.live[0][0], union.live[-1][1]
        window = self.curve[begin:end].copy()
        before = int(window.max())
        for group, sign in ((a, -1), (b, -1), (union, 1)):
            _add(window, group, sign, begin)
        return int(window.max()) > before

    def _commit(self, how: str, child: Value, parent: Value, a: _Group, b: _Group, union: _Group, shift: int) -> None:
        for group, sign in ((a, -1), (b, -1), (union, 1)):
            _add(self.curve, group, sign, 0)
        for member in b.members:
            if member.value == child and member.how == "own":
                member = Member(child, member.offset, how, parent.name)
            moved = Member(member.value, member.offset + shift, member.how, member.shares)
            union.members.append(moved)
            self.offsets[moved.value] = moved.offset
        for member in union.members:
            self.groups[member.value] = union


def _union(a: _Group, b: _Group, shift: int) -> _Group:
    home = a if a.home else b
    return _Group(
        members=list(a.members),
        low=min(a.low, b.low + shift),
        high=max(a.high, b.high + shift),
        live=merge((*a.live, *b.live)),
        home=home.home,
        writable=home.writable,
        filled=a.filled or b.filled,
    )


def _add(curve: NDArray[np.int64], group: _Group, sign: int, origin: int) -> None:
    """Add the bytes of a group of the arena to the points of `curve`, which starts at `origin`."""
    if not group.home:
        for begin, end in group.live:
            curve[begin - origin : end - origin] += sign * (group.high - group.low)


def share(
    graph: Graph,
    flow: Flow,
    ranges: LiveRanges,
    *,
    alignment: int = 1,
    homes: Mapping[Value, tuple[str, bool]] | None = None,
) -> tuple[SharedBuffer, ...]:
    """Merge the values of a program into buffers, in order of definition.

    `homes` gives the values bound outside the arena: the name of the storage and whether the network
    may write it. Values of zero bytes and values that cannot be planned get no buffer.
    """
    merger = _start(graph, flow, ranges, alignment, homes or {})
    nodes = [point.node for point in flow.points if point.kind == "run" and point.node]
    for node in nodes:
        for view, base, offset in _pairs(node, lookup(node.op).views(node)):
            merger.merge("view", view, base, offset)
    for node in nodes:
        for whole, part, offset in _pairs(node, lookup(node.op).parts(node)):
            merger.merge("part", part, whole, offset)
    for node in nodes:
        _take_over(merger, node)
    for point in flow.points:
        _carry(merger, point)
    return _finish(merger)


def _start(
    graph: Graph, flow: Flow, ranges: LiveRanges, alignment: int, homes: Mapping[Value, tuple[str, bool]]
) -> _Merger:
    """Every value in a group of its own."""
    curve = np.zeros(len(flow.points), dtype=np.int64)
    groups: dict[Value, _Group] = {}
    filled = {*graph.inputs, *graph.weights}
    for value in graph.values():
        if value.nbytes:
            home, writable = homes.get(value, ("", True))
            live = ranges.points(value)
            groups[value] = _Group([Member(value, 0)], 0, value.nbytes, live, home, writable, value in filled)
            _add(curve, groups[value], 1, 0)
    return _Merger(
        alignment=alignment,
        ranges=ranges,
        concurrency=Concurrency(flow),
        contents=contents(graph),
        groups=groups,
        offsets=dict.fromkeys(groups, 0),
        curve=curve,
        permitted=frozenset(_permitted(flow)),
        distances=_distances(flow),
        unwritten=set(),
    )


def _pairs(node: Node, shares: tuple[Share, ...]) -> Iterator[tuple[Value, Value, int]]:
    """The (output, input, offset) of each share whose values are present."""
    for share in shares:
        output, source = node.outputs[share.output], node.inputs[share.input]
        if output is not None and source is not None:
            yield output, source, share.offset


def _permitted(flow: Flow) -> Iterator[tuple[int, Value, Value]]:
    """Where a value may be written over another that is read last at that point: (point, read, written)."""
    for t, point in enumerate(flow.points):
        yield from ((t, source, destination) for source, destination in point.moves)
        if point.kind == "run" and point.node:
            yield from ((t, source, output) for output, source in _inplace(point.node))


def _distances(flow: Flow) -> dict[tuple[Value, Value], set[int]]:
    """For each (input, output) of a view or concatenation, where the output may start relative to the input."""
    found: dict[tuple[Value, Value], set[int]] = {}
    for point in flow.points:
        if point.kind != "run" or point.node is None:
            continue
        op, node = lookup(point.node.op), point.node
        views, parts = op.views(node), op.parts(node)
        if views or parts:
            found.update({(source, output): set() for source in node.uses for output in node.defs})
        for output, source, offset in _pairs(node, views):
            found[source, output].add(offset)
        for output, source, offset in _pairs(node, parts):
            found[source, output].add(-offset)
    return found


def _inplace(node: Node) -> list[tuple[Value, Value]]:
    """The (output, input) pairs of which the first may overwrite the second.

    An input that is given twice may be overwritten only if the op allows it at both positions.
    """
    pairs = [(output, source) for output, source, _ in _pairs(node, lookup(node.op).inplace(node))]
    return [pair for pair in dict.fromkeys(pairs) if pairs.count(pair) == node.inputs.count(pair[1])]


def _take_over(merger: _Merger, node: Node) -> None:
    """Let each output take over the first input it can."""
    done: set[Value] = set()
    for output, source in _inplace(node):
        if output not in done and merger.merge("inplace", output, source, 0):
            done.add(output)


def _carry(merger: _Merger, point: Point) -> None:
    """Let both ends of control flow moves be the same bytes, so that nothing moves."""
    for source, destination in point.moves:
        born_here = point.kind in ("next", "yield")
        child, parent = (source, destination) if born_here else (destination, source)
        if child is not parent:
            merger.merge("carry", child, parent, 0)


def _finish(merger: _Merger) -> tuple[SharedBuffer, ...]:
    buffers: list[SharedBuffer] = []
    seen: set[int] = set()
    for group in merger.groups.values():
        if id(group) in seen:
            continue
        seen.add(id(group))
        members = tuple(Member(m.value, m.offset - group.low, m.how, m.shares) for m in group.members)
        buffers.append(SharedBuffer(members, group.high - group.low, group.live, group.home))
    return tuple(buffers)

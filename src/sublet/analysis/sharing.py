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
    written: bool = True  # whether the caller lets the network write there


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

    def merge(self, how: str, child: Value, parent: Value, offset: int) -> bool:
        """Put `child`'s group into `parent`'s so that child starts `offset` bytes after parent starts."""
        a, b = self.groups.get(parent), self.groups.get(child)
        if a is None or b is None or a is b:
            return a is b and a is not None
        shift = self.offsets[parent] + offset - self.offsets[child]
        if shift % self.alignment or not self._homes_allow(how, a, b, shift):
            return False
        if not all(self._compatible(x, y, shift) for y in b.members for x in a.members):
            return False
        union = _union(a, b, shift)
        if self._raises_peak(a, b, union):
            return False
        self._commit(how, child, parent, a, b, union, shift)
        return True

    def _homes_allow(self, how: str, a: _Group, b: _Group, shift: int) -> bool:
        if a.home and b.home:
            return False
        fixed, guest, base = (a, b, shift) if a.home else (b, a, -shift)
        if not fixed.home:
            return True
        if not fixed.written and (how != "view" or fixed is b):
            return False
        return fixed.low <= guest.low + base and guest.high + base <= fixed.high

    def _compatible(self, x: Member, y: Member, shift: int) -> bool:
        """Whether x and y, the latter moved by `shift`, may lie where they do."""
        begin, end = y.offset + shift, y.offset + shift + y.value.nbytes
        if begin >= x.offset + x.value.nbytes or x.offset >= end:
            return True
        if agree(self.contents[x.value], x.offset, self.contents[y.value], begin):
            return True
        return self._take_turns(x.value, y.value, same_place=begin == x.offset)

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
        written=home.written,
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
    for value in graph.values():
        if value.nbytes:
            home, written = homes.get(value, ("", True))
            groups[value] = _Group([Member(value, 0)], 0, value.nbytes, ranges.points(value), home, written)
            _add(curve, groups[value], 1, 0)
    offsets = dict.fromkeys(groups, 0)
    return _Merger(
        alignment, ranges, Concurrency(flow), contents(graph), groups, offsets, curve, frozenset(_permitted(flow))
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
            pairs = _pairs(point.node, lookup(point.node.op).inplace(point.node))
            yield from ((t, source, output) for output, source, _ in pairs)


def _take_over(merger: _Merger, node: Node) -> None:
    """Let each output take over the first input it can."""
    done: set[Value] = set()
    for output, source, _ in _pairs(node, lookup(node.op).inplace(node)):
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

"""Whether two groups of values may become one block of bytes, and making them one.

Two values may overlap in a block where their contents agree, or when one is read for the last time
before, or (where an op or a control flow move permits it) at the very point where, the other is
written. For blocks, which are needed whole as long as any value in them is, a merge is made only if it does not raise
the live bytes above the highest of its own lifetime, so that a small view does not keep a large base alive. For shapes
(`analysis/shapes.py`) no merge does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.content import Content, agree
from sublet.analysis.groups import Group, Member, add, joined, union
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.order import Concurrency
from sublet.analysis.unroll import Way
from sublet.analysis.windows import Window
from sublet.ir.graph import Value

Permitted = frozenset[tuple[int, Value, Value]]
"""Where a value may be written over another that is read last at that point: (point, read, written)."""

NOWHERE: Permitted = frozenset()


class Copy(NamedTuple):
    """Bytes [begin, end) of an output are copied from `source`, unless that starts `distance` after it."""

    source: Value
    distance: int
    begin: int
    end: int


@dataclass
class Merger:
    """The state of merging: the group of each value, and the live bytes at each point."""

    alignment: int
    ranges: LiveRanges[Value]
    concurrency: Concurrency
    contents: Mapping[Value, Content]
    groups: dict[Value, Group]
    offsets: dict[Value, int]
    curve: NDArray[np.int64]
    permitted: Permitted
    made_by_copies: Mapping[tuple[Value, Value], tuple[Copy, ...]]
    ways: Mapping[Value, Way]
    pointed: frozenset[Value]
    rewritten: Mapping[Value, tuple[int, ...]]  # the points that write a value, where there are several
    updates: Mapping[
        tuple[Value, Value], int
    ]  # (source, target): the point at the end of the run that makes them equal
    placed: Mapping[Value, int] = field(default_factory=dict)  # where values are to lie, so that not all may merge
    blocks: bool = True  # whether a group is needed whole as long as any of its values is
    merging: tuple[Group, ...] = ()  # the parent's group and the child's, during a merge
    unwritten: set[Value] = field(default_factory=set)  # views that lie in their base, so that nothing writes them

    def merge(self, how: str, child: Value, parent: Value, offset: int) -> bool:
        """Put `child`'s group into `parent`'s so that child starts `offset` bytes after parent starts."""
        a, b = self.groups.get(parent), self.groups.get(child)
        if a is None or b is None:
            return False
        if a is b:
            return self.offsets[child] == self.offsets[parent] + offset
        shift = self.offsets[parent] + offset - self.offsets[child]
        if self._elsewhere(a, parent) or self._elsewhere(b, child):
            return False
        if (
            shift % self.alignment
            or not self._homes_allow(how, a, b, shift)
            or (self.placed and not self._meet(a, b, shift))
        ):
            return False
        self.merging = (a, b)
        if how == "view":
            self.unwritten.add(child)
        if all(self._compatible(x, y, shift) for x, y in self._meeting(a, b, shift)):
            together = union(a, b, shift)
            if not self._raises_peak(a, b, together):
                self._commit(how, child, parent, a, b, together, shift)
                return True
        self.unwritten.discard(child)
        return False

    def join(self, alias: Value, source: Value) -> None:
        """Put an alias, which nothing writes, where its source is, whatever that costs."""
        a, b = self.groups.get(source), self.groups.get(alias)
        if a is None or b is None:
            return
        self.unwritten.add(alias)
        shift = self.offsets[source] - self.offsets[alias]
        self._commit("pointer", alias, source, a, b, union(a, b, shift), shift)

    def lay_window(self, window: Window) -> None:
        """Let a slice or row be bytes of its whole, unless something that lives beyond its round has its bytes."""
        group = self.groups.get(window.value)
        if group is None or group.fixed or window.whole not in self.groups:
            return
        others = [member for member in group.members.values() if member.how != "pointer"]
        if not all(window.holds(self.ranges.halves[member.value]) for member in others):
            return
        add(self.curve, group, -1, 0)
        group.window, group.writable, group.first = window, not window.read_only, None
        member = group.members[window.value]
        group.members[member.value] = Member(member.value, member.offset, window.kind, window.whole.name)

    def _elsewhere(self, group: Group, value: Value) -> bool:
        """Whether a value stands for a row of another round than that whose bytes the group is."""
        return group.window is not None and group.members[value].how == "pointer"

    def _within(self, window: Window, group: Group) -> bool:
        """Whether all of a group lives within one round; pointers lead to one place, not to one a round."""
        lives = self.ranges.halves
        return all(
            window.holds(lives[member.value]) and member.how != "pointer" and member.value not in self.pointed
            for member in group.members.values()
        )

    def _homes_allow(self, how: str, a: Group, b: Group, shift: int) -> bool:
        if a.fixed and b.fixed:
            return False
        fixed, guest, base = (a, b, shift) if a.fixed else (b, a, -shift)
        if not fixed.fixed:
            return True
        if guest.filled:
            return False  # the caller would not find the place
        if fixed.window and not self._within(fixed.window, guest):
            return False
        if not fixed.writable and (how != "view" or fixed is b):
            return False
        return fixed.low <= guest.low + base and guest.high + base <= fixed.high

    def _meet(self, a: Group, b: Group, shift: int) -> bool:
        """Whether both groups lie, or none does, where their values are to lie, when the second is moved by `shift`."""
        first = {self.placed[v] - self.offsets[v] for v in a.members if v in self.placed}
        return first == {self.placed[v] - self.offsets[v] - shift for v in b.members if v in self.placed}

    def _meeting(self, a: Group, b: Group, shift: int) -> Iterator[tuple[Member, Member]]:
        """The members of two groups that may share bytes while both live; all pairs where streams run at once."""
        halves = self.ranges.halves
        if not self.concurrency.serial:
            yield from ((x, y) for y in b.members.values() for x in a.members.values())
        elif len(a.members) >= len(b.members):
            for y in b.members.values():
                lives = halves.get(y.value, ())
                yield from ((x, y) for x in a.beside(y.offset + shift, y.value.nbytes, lives))
        else:
            for x in a.members.values():
                lives = halves.get(x.value, ())
                yield from ((x, y) for y in b.beside(x.offset - shift, x.value.nbytes, lives))

    def _compatible(self, x: Member, y: Member, shift: int) -> bool:
        """Whether x and y, the latter moved by `shift`, may lie where they do."""
        begin, end = y.offset + shift, y.offset + shift + y.value.nbytes
        if begin >= x.offset + x.value.nbytes or x.offset >= end:
            return True
        # Comparing lives is cheaper than comparing contents, and mostly enough.
        same_place = begin == x.offset
        if self._take_turns(x.value, y.value, same_place) or self._equal(x, y, shift):
            return True
        return same_place and (self._becomes(x.value, y.value) or self._becomes(y.value, x.value))

    def _becomes(self, source: Value, target: Value) -> bool:
        """Whether two values only live at once after the update that makes them equal: nothing is written any more."""
        point = self.updates.get((source, target))
        if point is None or self.concurrency.may_meet(source, target):
            return False
        before = tuple((begin, min(end, 2 * point + 1)) for begin, end in self.ranges.halves[source])
        halves = {source: before, target: self.ranges.halves[target]}
        return take_turns(LiveRanges(halves), self.permitted, source, target)

    def _equal(self, x: Member, y: Member, shift: int) -> bool:
        """Whether x, and y moved by `shift`, hold equal bytes, and none is written over the other.

        Equal bytes do not help when a node that reads one copies something into them for the other, nor
        when one may be written while another stream reads the other.
        """
        if not agree(self.contents[x.value], x.offset, self.contents[y.value], y.offset + shift):
            return False
        same_place = x.offset == y.offset + shift
        if self._outdated(x.value, same_place) or self._outdated(y.value, same_place):
            return False
        if self._written_at_once(x.value, y.value):
            return False
        if self._copied_over(x.value, y.value, shift) or self._copied_over(y.value, x.value, shift):
            return False
        written = ((x.value, y.value), (y.value, x.value))
        return not any(a not in self.unwritten and self.concurrency.may_write_during(a, b) for a, b in written)

    def _written_at_once(self, x: Value, y: Value) -> bool:
        """Whether one point makes both: a kernel does not write two outputs to the same bytes."""
        halves = self.ranges.halves
        return halves[x][0][0] == halves[y][0][0] and not (x in self.unwritten and y in self.unwritten)

    def _outdated(self, value: Value, same_place: bool) -> bool:
        """Whether a value is still needed when what its bytes are copies of is written anew, in another round.

        It may be read for the last time by the op that writes, where that may write over it.
        """
        for segment in self.contents[value]:
            for point in self.rewritten.get(segment.token, ()) if segment.token is not value else ():
                over = same_place and (point, value, segment.token) in self.permitted
                for begin, end in self.ranges.halves[value]:
                    if begin < 2 * point + 1 < end or (end == 2 * point + 1 and not over):
                        return True
        return False

    def _copied_over(self, operand: Value, output: Value, shift: int) -> bool:
        """Whether the node that makes `output` of `operand` copies anything onto the operand's bytes."""
        start = self._place(output, shift)
        begin = self._place(operand, shift) - start
        copies = self.made_by_copies.get((operand, output), ())
        first = bisect_right(copies, begin, key=lambda copy: copy.end)
        last = bisect_left(copies, begin + operand.nbytes, key=lambda copy: copy.begin)
        return any(not self._stays(copy, start, shift) for copy in copies[first:last])

    def _stays(self, copy: Copy, start: int, shift: int) -> bool:
        """Whether the source of a copy already lies where it would go."""
        group = self.groups.get(copy.source)
        return group in self.merging and self._place(copy.source, shift) == start + copy.distance

    def _place(self, value: Value, shift: int) -> int:
        """The offset of a value in the group that a merge would make."""
        moved = self.groups[value] is self.merging[1]
        return self.offsets[value] + (shift if moved else 0)

    def _take_turns(self, x: Value, y: Value, same_place: bool) -> bool:
        """Whether the lives of two values are disjoint, or touch only where one may replace the other."""
        if self.concurrency.may_meet(x, y):
            return False
        if self._alternatives(x, y):
            return True
        return take_turns(self.ranges, self.permitted if same_place else NOWHERE, x, y)

    def _alternatives(self, x: Value, y: Value) -> bool:
        """Whether two aliases come out of one loop or branch by different ends, so that one of them is nothing."""
        a, b = self.ways.get(x), self.ways.get(y)
        return a is not None and b is not None and a[:2] == b[:2] and not a[2] & b[2]

    def _raises_peak(self, a: Group, b: Group, together: Group) -> bool:
        if not self.blocks or not together.live or (a.nbytes == b.nbytes == together.nbytes and a.fixed == b.fixed):
            return False  # nothing lives longer, nor grows
        begin, end = together.live[0][0], together.live[-1][1]
        window = self.curve[begin:end].copy()
        before = int(np.maximum.reduce(window))
        for group, sign in ((a, -1), (b, -1), (together, 1)):
            add(window, group, sign, begin)
        return int(np.maximum.reduce(window)) > before

    def _commit(self, how: str, child: Value, parent: Value, a: Group, b: Group, together: Group, shift: int) -> None:
        joined(self.curve, a, b, together)
        if b.first == child:
            _tell(b, child, how, parent)
        elif b.first is not None:  # another member of it is why they are one
            _tell(b, b.first, "joined", parent)
        elif a.first is not None:
            _tell(a, a.first, "joined", child)
        first = None if a.window or b.window else a.first
        kept, gone, distance = (a, b, shift) if len(a.members) >= len(b.members) else (b, a, -shift)
        for member in gone.members.values():
            moved = Member(member.value, member.offset + distance, member.how, member.shares)
            kept.put(moved, self.ranges.halves.get(moved.value, ()))
            self.offsets[moved.value] = moved.offset
            self.groups[moved.value] = kept
        base = 0 if kept is a else -shift
        kept.low, kept.high = together.low + base, together.high + base
        kept.order, kept.live, kept.home, kept.writable = (
            together.order,
            together.live,
            together.home,
            together.writable,
        )
        kept.filled, kept.window, kept.first = together.filled, together.window, first


def _tell(group: Group, value: Value, how: str, sharing: Value) -> None:
    """Note why a member is the same bytes as another."""
    group.members[value] = Member(value, group.members[value].offset, how, sharing.name)


def take_turns(ranges: LiveRanges[Value], permitted: Permitted, x: Value, y: Value) -> bool:
    """Whether the lives of two values are disjoint, or touch only where one may be written over the other."""
    i = j = 0
    p, q = ranges.halves.get(x, ()), ranges.halves.get(y, ())
    while i < len(p) and j < len(q):
        ordered = p[i] <= q[j]
        (_, end), (begin, _) = (p[i], q[j]) if ordered else (q[j], p[i])
        if end > begin:
            return False
        # An odd half point is a write: here one value is read last and the other written first.
        if end == begin and end % 2:
            last, first = (x, y) if ordered else (y, x)
            if (end // 2, last, first) not in permitted:
                return False
        if p[i][1] <= q[j][1]:
            i += 1
        else:
            j += 1
    return True

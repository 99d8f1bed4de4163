"""Buffer coalescing: legality, profit and commit of a merge of two buffers.

Two values may overlap in a buffer if their bytes have the same provenance, or if their live ranges are disjoint. Live
ranges may touch at a point where an op or a control-flow move permits the overwrite.

A rectangular buffer is needed whole while any member is live. A merge of rectangular buffers must not raise the live
bytes above the previous maximum within the lifetime of the merged buffer; otherwise a small view would keep a large
base live. For segmented buffers (`analysis/buffer_segments.py`) every legal merge is profitable.
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
"""Permitted overwrites: (point, value read for the last time, value written over it)."""

NOWHERE: Permitted = frozenset()


class Copy(NamedTuple):
    """A copy made by a node: bytes [begin, end) of an output come from `source`.

    No bytes are copied if `source` already starts `distance` bytes after the output.
    """

    source: Value
    distance: int
    begin: int
    end: int


@dataclass
class Merger:
    """The state of buffer coalescing: the buffer of every value, and the live bytes at every point."""

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
    rewritten: Mapping[Value, tuple[int, ...]]  # the defining points of values with several definitions
    # (source, target): the point of the final update, which makes both values equal
    updates: Mapping[tuple[Value, Value], int]
    placed: Mapping[Value, int] = field(default_factory=dict)  # fixed offsets, which merges must respect
    blocks: bool = True  # true if buffers are rectangles, needed whole while any member is live
    merging: tuple[Group, ...] = ()  # the buffers of parent and child, during a merge
    unwritten: set[Value] = field(default_factory=set)  # views in place and aliases, which no node writes

    def merge(self, how: str, child: Value, parent: Value, offset: int) -> bool:
        """Merge the buffer of `child` into the buffer of `parent`, with `child` at `offset` bytes after `parent`.

        Return True if `child` lies at the requested place afterwards: already before, or by a legal and profitable
        merge. `how` is the reason of sharing, as recorded in plans.
        """
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
        """Merge `alias`, which no node writes, into the buffer of `source` at the same place, whatever the cost."""
        a, b = self.groups.get(source), self.groups.get(alias)
        if a is None or b is None:
            return
        self.unwritten.add(alias)
        shift = self.offsets[source] - self.offsets[alias]
        self._commit("pointer", alias, source, a, b, union(a, b, shift), shift)

    def lay_window(self, window: Window) -> None:
        """Turn the buffer of a slice or row into a view of the whole, if all members live within an iteration."""
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
        """True if `value` is an alias in a loop view: the alias is bound to the row of an earlier iteration."""
        return group.window is not None and group.members[value].how == "pointer"

    def _within(self, window: Window, group: Group) -> bool:
        """True if every member of `group` lives within an iteration and takes no part in a renaming.

        A member takes part if it is renamed, or if a renamed value is bound to it. A renamed value is bound to a fixed
        place, not to a different place in every iteration.
        """
        lives = self.ranges.halves
        return all(
            window.holds(lives[member.value]) and member.how != "pointer" and member.value not in self.pointed
            for member in group.members.values()
        )

    def _homes_allow(self, how: str, a: Group, b: Group, shift: int) -> bool:
        """True if at most one buffer is preplaced, and its memory accepts the other buffer, the guest.

        The guest must lie within the preplaced buffer, must not be filled by the caller, and must be a view if the
        network may not write into the memory. A guest in a loop view must live within an iteration.
        """
        if a.fixed and b.fixed:
            return False
        fixed, guest, base = (a, b, shift) if a.fixed else (b, a, -shift)
        if not fixed.fixed:
            return True
        if guest.filled:
            return False  # the caller fills the guest, and would not find another place
        if fixed.window and not self._within(fixed.window, guest):
            return False
        if not fixed.writable and (how != "view" or fixed is b):
            return False
        return fixed.low <= guest.low + base and guest.high + base <= fixed.high

    def _meet(self, a: Group, b: Group, shift: int) -> bool:
        """True if both buffers imply the same fixed offsets after moving `b` by `shift` bytes, or neither has any."""
        first = {self.placed[v] - self.offsets[v] for v in a.members if v in self.placed}
        return first == {self.placed[v] - self.offsets[v] - shift for v in b.members if v in self.placed}

    def _meeting(self, a: Group, b: Group, shift: int) -> Iterator[tuple[Member, Member]]:
        """Yield the member pairs that may share bytes while both are live; in several streams, all pairs."""
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
        """True if `x`, and `y` moved by `shift` bytes, may lie at their places."""
        begin, end = y.offset + shift, y.offset + shift + y.value.nbytes
        if begin >= x.offset + x.value.nbytes or x.offset >= end:
            return True
        # Comparing live ranges is cheaper than comparing provenance, and mostly enough.
        same_place = begin == x.offset
        if self._take_turns(x.value, y.value, same_place) or self._equal(x, y, shift):
            return True
        return same_place and (self._becomes(x.value, y.value) or self._becomes(y.value, x.value))

    def _becomes(self, source: Value, target: Value) -> bool:
        """True if `source` and `target` are live together only after the final update, which makes both values equal.

        No node writes after the final update.
        """
        point = self.updates.get((source, target))
        if point is None or self.concurrency.may_meet(source, target):
            return False
        before = tuple((begin, min(end, 2 * point + 1)) for begin, end in self.ranges.halves[source])
        halves = {source: before, target: self.ranges.halves[target]}
        return take_turns(LiveRanges(halves), self.permitted, source, target)

    def _equal(self, x: Member, y: Member, shift: int) -> bool:
        """True if `x`, and `y` moved by `shift` bytes, hold equal bytes, and neither is written over the other.

        Equal bytes are not enough if a node reading either value copies bytes into the other, if the source of either
        value is redefined too early, or if either value may be written while another stream reads the other.
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
        """True if a single point defines both values: a kernel must not write two outputs to the same bytes."""
        halves = self.ranges.halves
        return halves[x][0][0] == halves[y][0][0] and not (x in self.unwritten and y in self.unwritten)

    def _outdated(self, value: Value, same_place: bool) -> bool:
        """True if the value is read after the source of the bytes was overwritten in a later iteration.

        The last use may coincide with the overwrite, if the op at the point permits the overwrite at the same place.
        """
        for segment in self.contents[value]:
            for point in self.rewritten.get(segment.token, ()) if segment.token is not value else ():
                over = same_place and (point, value, segment.token) in self.permitted
                for begin, end in self.ranges.halves[value]:
                    if begin < 2 * point + 1 < end or (end == 2 * point + 1 and not over):
                        return True
        return False

    def _copied_over(self, operand: Value, output: Value, shift: int) -> bool:
        """True if the node computing `output` from `operand` copies bytes over the bytes of `operand`."""
        start = self._place(output, shift)
        begin = self._place(operand, shift) - start
        copies = self.made_by_copies.get((operand, output), ())
        first = bisect_right(copies, begin, key=lambda copy: copy.end)
        last = bisect_left(copies, begin + operand.nbytes, key=lambda copy: copy.begin)
        return any(not self._stays(copy, start, shift) for copy in copies[first:last])

    def _stays(self, copy: Copy, start: int, shift: int) -> bool:
        """True if the source of a copy already lies at the destination after the candidate merge."""
        group = self.groups.get(copy.source)
        return group in self.merging and self._place(copy.source, shift) == start + copy.distance

    def _place(self, value: Value, shift: int) -> int:
        """Return the offset of a value, in bytes, in the buffer of the candidate merge."""
        moved = self.groups[value] is self.merging[1]
        return self.offsets[value] + (shift if moved else 0)

    def _take_turns(self, x: Value, y: Value, same_place: bool) -> bool:
        """True if the live ranges of two values are disjoint, or touch at a permitted overwrite of the same place."""
        if self.concurrency.may_meet(x, y):
            return False
        if self._alternatives(x, y):
            return True
        return take_turns(self.ranges, self.permitted if same_place else NOWHERE, x, y)

    def _alternatives(self, x: Value, y: Value) -> bool:
        """True if two aliases leave the same loop or branch by different exits: a run binds at most one."""
        a, b = self.ways.get(x), self.ways.get(y)
        return a is not None and b is not None and a[:2] == b[:2] and not a[2] & b[2]

    def _raises_peak(self, a: Group, b: Group, together: Group) -> bool:
        """True if the merge raises the maximum of live bytes within the lifetime of the merged buffer."""
        if not self.blocks or not together.live or (a.nbytes == b.nbytes == together.nbytes and a.fixed == b.fixed):
            return False  # no live range and no size grows
        begin, end = together.live[0][0], together.live[-1][1]
        window = self.curve[begin:end].copy()
        before = int(np.maximum.reduce(window))
        for group, sign in ((a, -1), (b, -1), (together, 1)):
            add(window, group, sign, begin)
        return int(np.maximum.reduce(window)) > before

    def _commit(self, how: str, child: Value, parent: Value, a: Group, b: Group, together: Group, shift: int) -> None:
        """Apply a merge: update the live bytes, record the reason, move the members of the smaller buffer."""
        joined(self.curve, a, b, together)
        if b.first == child:
            _tell(b, child, how, parent)
        elif b.first is not None:  # a member other than the owner is the reason of the merge
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
    """Record the reason `how` of a member, and the value sharing the bytes."""
    group.members[value] = Member(value, group.members[value].offset, how, sharing.name)


def take_turns(ranges: LiveRanges[Value], permitted: Permitted, x: Value, y: Value) -> bool:
    """True if the live ranges of `x` and `y` are disjoint, or touch only at a permitted overwrite."""
    i = j = 0
    p, q = ranges.halves.get(x, ()), ranges.halves.get(y, ())
    while i < len(p) and j < len(q):
        ordered = p[i] <= q[j]
        (_, end), (begin, _) = (p[i], q[j]) if ordered else (q[j], p[i])
        if end > begin:
            return False
        # An odd slot is a write: here one value has its last use and the other its definition.
        if end == begin and end % 2:
            last, first = (x, y) if ordered else (y, x)
            if (end // 2, last, first) not in permitted:
                return False
        if p[i][1] <= q[j][1]:
            i += 1
        else:
            j += 1
    return True

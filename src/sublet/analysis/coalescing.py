"""Buffer coalescing: legality, profit and commit of a merge of two buffers.

Two values may overlap in a buffer if their bytes have the same provenance, or if their live ranges are disjoint. Live
ranges may touch at a point where an op or a control-flow move permits the overwrite.

A rectangular buffer is needed whole while any member is live. A merge of rectangular buffers must not raise the live
bytes above the previous maximum within the lifetime of the merged buffer; otherwise a small view would keep a large
base live. For segmented buffers (`analysis/interference.py`) every legal merge is profitable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.byte_provenance import Provenance, have_equal_overlap, row_bytes
from sublet.analysis.coalesced_buffer import (
    CoalescedBuffer,
    Member,
    add_live_bytes,
    buffer_in_rows,
    replace_by_merged,
    union_without_members,
)
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.loop_versions import ExitEdges
from sublet.analysis.program_facts import LoopView
from sublet.analysis.streams import Concurrency
from sublet.base.ranges import merge
from sublet.ir.graph import Value

Overwrite = tuple[int, Value, Value]
"""An overwrite: (point, value read for the last time, value written over it)."""


@dataclass(frozen=True, slots=True)
class AllowedOverwrites:
    """The permitted overwrites: the listed overwrites, and any by the definition of an alias, which writes no bytes."""

    listed: frozenset[Overwrite] = frozenset()
    aliases: frozenset[Value] = frozenset()

    def __contains__(self, overwrite: Overwrite) -> bool:
        return overwrite[2] in self.aliases or overwrite in self.listed


NO_OVERWRITES = AllowedOverwrites()


class NodeCopy(NamedTuple):
    """A copy made by a node: bytes [begin, end) of an output come from `source`.

    No bytes are copied if `source` already starts `distance` bytes after the output.
    """

    source: Value
    distance: int
    begin: int
    end: int


NodeCopies = Mapping[tuple[Value, Value], tuple[NodeCopy, ...]]
"""The copies made by a node into an output, by (operand, output)."""


@dataclass(frozen=True)
class RowSharing:
    """The facts of sharing row by row: as for whole values, with bytes of a row; see `program_facts.RowFacts`.

    strided     the values of which only each row need be contiguous: every node that writes or reads them takes strides
    call_bytes  for each value, the bytes of the operands of nodes that compute row by row if the value lies in rows
    live_bytes  a merge may raise the live bytes up to here, since no copy at all is worth more than fewer live bytes
    """

    provenance: Mapping[Value, Provenance]
    node_copies: NodeCopies
    strided: frozenset[Value]
    call_bytes: Mapping[Value, int]
    live_bytes: int


NO_ROWS = RowSharing({}, {}, frozenset(), {}, 0)


@dataclass
class Coalescer:
    """The state of buffer coalescing: the buffer of every value, and the live bytes at every point."""

    alignment: int
    ranges: LiveRanges[Value]
    concurrency: Concurrency
    provenance: Mapping[Value, Provenance]
    buffer_of: dict[Value, CoalescedBuffer]
    offset_of: dict[Value, int]
    live_bytes: NDArray[np.int64]
    allowed_overwrites: AllowedOverwrites
    node_copies: NodeCopies
    exit_edges: Mapping[Value, ExitEdges]
    renamed_sources: frozenset[Value]
    multiple_definitions: Mapping[Value, tuple[int, ...]]  # the defining points of values with several definitions
    # (source, target): the point of the final update, which makes both values equal
    update_points: Mapping[tuple[Value, Value], int]
    fixed_offsets: Mapping[Value, int] = field(default_factory=dict)  # fixed offsets, which merges must respect
    rectangular: bool = True  # true if buffers are rectangles, needed whole while any member is live
    candidate_pair: tuple[CoalescedBuffer, ...] = ()  # the buffers of parent and child, during a merge
    never_written: set[Value] = field(default_factory=set)  # views in place and aliases, which no node writes
    by_rows: RowSharing = NO_ROWS
    is_peak_known: bool = False  # true if the merges under way raise no peak together

    def try_coalesce(self, how: str, child: Value, parent: Value, offset: int, rows: int = 1) -> bool:
        """Merge the buffer of `child` into the buffer of `parent`, with `child` at `offset` bytes after `parent`.

        Return True if `child` lies at the requested place afterwards: already before, or by a legal and profitable
        merge. `how` is the reason of sharing, as recorded in plans. With several `rows`, each row of `child` lies
        `offset` bytes after the same row of `parent`.
        """
        a, b = self.buffer_of.get(parent), self.buffer_of.get(child)
        if a is None or b is None:
            return False
        if a is b and a.rows == rows:
            return self.offset_of[child] == self.offset_of[parent] + offset
        if a is b or max(a.rows, b.rows) > rows:
            if offset or child.nbytes != parent.nbytes:
                return False  # no range of bytes that only spans whole rows
            if a is b:
                return self.offset_of[child] == self.offset_of[parent]
            rows = max(a.rows, b.rows)
        if rows > 1:
            return self._try_coalesce_rows(how, child, parent, offset, rows)
        return self._try_merge(how, child, parent, a, b, offset)

    def coalesce_rows(self, how: str, whole: Value, parts: Sequence[tuple[Value, int]], rows: int) -> None:
        """Merge the buffers of `parts`, each with an offset in a row of `whole`, into the buffer of `whole`.

        A single operand of a concatenation would keep the bytes of all others live. So all parts merge if all merges
        together raise no peak; otherwise each part that alone raises none.
        """
        groups = [self.buffer_of[value] for value in dict.fromkeys((whole, *(part for part, _ in parts)))]
        self.is_peak_known = self._fit_together([each for each in dict.fromkeys(groups) if not each.is_preplaced])
        for part, offset in parts:
            self.try_coalesce(how, part, whole, offset, rows)
        self.is_peak_known = False

    def _fit_together(self, groups: Sequence[CoalescedBuffer]) -> bool:
        """True if a merge of all buffers, with the bytes of the largest, raises no peak."""
        live = merge(piece for group in groups for piece in group.live)
        if len(groups) < 2 or not live:
            return False
        begin, end = live[0][0], live[-1][1]
        window = self.live_bytes[begin:end].copy()
        before = max(int(np.maximum.reduce(window)), self.by_rows.live_bytes)
        for group in groups:
            add_live_bytes(window, group, -1, begin)
        for first, last in live:
            window[first - begin : last - begin] += max(group.nbytes for group in groups)
        return int(np.maximum.reduce(window)) <= before

    def _try_coalesce_rows(self, how: str, child: Value, parent: Value, offset: int, rows: int) -> bool:
        """Merge as `try_coalesce` does, with the buffers in rows; undo the rows if there is no merge."""
        before = self.buffer_of[parent], self.buffer_of[child]
        if before[0] is before[1] or self.fixed_offsets:
            return False
        after = [buffer_in_rows(buffer, rows, self.ranges.slot_ranges) for buffer in before]
        a, b = after
        if a is None or b is None:
            return False
        shift = (self.offset_of[parent] if a is before[0] else 0) + offset
        shift -= self.offset_of[child] if b is before[1] else 0
        width = max(a.high, b.high + shift) - min(a.low, b.low + shift)
        members = (member.value for buffer in (a, b) for member in buffer.members.values())
        if width % self.alignment or any(
            row_bytes(value) != width and value not in self.by_rows.strided for value in members
        ):
            return False
        for old, new in zip(before, (a, b), strict=True):
            self._replace_buffer(old, new)
        if self._try_merge(how, child, parent, a, b, offset):
            return True
        for old, new in zip(before, (a, b), strict=True):
            self._replace_buffer(new, old)
        return False

    def _replace_buffer(self, old: CoalescedBuffer, new: CoalescedBuffer) -> None:
        """Replace a buffer by the same buffer in another frame."""
        if old is not new:
            self.buffer_of.update(dict.fromkeys(new.members, new))
            self.offset_of.update((member.value, member.offset) for member in new.members.values())

    def _try_merge(
        self, how: str, child: Value, parent: Value, a: CoalescedBuffer, b: CoalescedBuffer, offset: int
    ) -> bool:
        """Merge buffer `b` of `child` into buffer `a` of `parent`, of equal rows, if legal and profitable."""
        shift = self.offset_of[parent] + offset - self.offset_of[child]
        if self._is_row_of_other_iteration(a, parent) or self._is_row_of_other_iteration(b, child):
            return False
        if (
            shift % self.alignment
            or not self._storages_allow(how, a, b, shift)
            or (self.fixed_offsets and not self._respects_fixed_offsets(a, b, shift))
        ):
            return False
        self.candidate_pair = (a, b)
        if how == "view":
            self.never_written.add(child)
        if all(self._may_overlap(x, y, shift) for x, y in self._overlapping_members(a, b, shift)):
            together = union_without_members(a, b, shift)
            if not self._raises_peak(a, b, together):
                self._commit_merge(how, child, parent, a, b, together, shift)
                return True
        self.never_written.discard(child)
        return False

    def coalesce_alias(self, alias: Value, source: Value) -> None:
        """Merge `alias`, which no node writes, into the buffer of `source` at the same place, whatever the cost."""
        a, b = self.buffer_of.get(source), self.buffer_of.get(alias)
        if a is None or b is None:
            return
        self.never_written.add(alias)
        shift = self.offset_of[source] - self.offset_of[alias]
        self._commit_merge("pointer", alias, source, a, b, union_without_members(a, b, shift), shift)

    def place_loop_view(self, window: LoopView) -> None:
        """Turn the buffer of a slice or row into a view of the whole, if all members live within an iteration."""
        group = self.buffer_of.get(window.value)
        if group is None or group.is_preplaced or window.whole not in self.buffer_of:
            return
        others = [member for member in group.members.values() if member.how != "pointer"]
        if not all(window.contains_ranges(self.ranges.slot_ranges[member.value]) for member in others):
            return
        add_live_bytes(self.live_bytes, group, -1, 0)
        group.loop_view, group.writable, group.owner = window, not window.is_read_only, None
        member = group.members[window.value]
        group.members[member.value] = Member(member.value, member.offset, window.kind, window.whole.name)

    def _is_row_of_other_iteration(self, group: CoalescedBuffer, value: Value) -> bool:
        """True if `value` is an alias in a loop view: the alias is bound to the row of an earlier iteration."""
        return group.loop_view is not None and group.members[value].how == "pointer"

    def _lives_within_iteration(self, window: LoopView, group: CoalescedBuffer) -> bool:
        """True if every member of `group` lives within an iteration and takes no part in a renaming.

        A member takes part if it is renamed, or if a renamed value is bound to it. A renamed value is bound to a fixed
        place, not to a different place in every iteration.
        """
        lives = self.ranges.slot_ranges
        return all(
            window.contains_ranges(lives[member.value])
            and member.how != "pointer"
            and member.value not in self.renamed_sources
            for member in group.members.values()
        )

    def _storages_allow(self, how: str, a: CoalescedBuffer, b: CoalescedBuffer, shift: int) -> bool:
        """True if at most one buffer is preplaced, and its memory accepts the other buffer, the guest.

        The guest must lie within the preplaced buffer, must not be filled by the caller, and must be a view if the
        network may not write into the memory. A guest in a loop view must live within an iteration.
        """
        if a.is_preplaced and b.is_preplaced:
            return False
        fixed, guest, base = (a, b, shift) if a.is_preplaced else (b, a, -shift)
        if not fixed.is_preplaced:
            return True
        if guest.filled_by_caller:
            return False  # the caller fills the guest, and would not find another place
        if fixed.loop_view and not self._lives_within_iteration(fixed.loop_view, guest):
            return False
        if not fixed.writable and (how != "view" or fixed is b):
            return False
        return fixed.low <= guest.low + base and guest.high + base <= fixed.high

    def _respects_fixed_offsets(self, a: CoalescedBuffer, b: CoalescedBuffer, shift: int) -> bool:
        """True if both buffers imply the same fixed offsets after moving `b` by `shift` bytes, or neither has any."""
        first = {self.fixed_offsets[v] - self.offset_of[v] for v in a.members if v in self.fixed_offsets}
        return first == {
            self.fixed_offsets[v] - self.offset_of[v] - shift for v in b.members if v in self.fixed_offsets
        }

    def _overlapping_members(
        self, a: CoalescedBuffer, b: CoalescedBuffer, shift: int
    ) -> Iterator[tuple[Member, Member]]:
        """Yield the member pairs that may share bytes while both are live; in several streams, all pairs."""
        halves = self.ranges.slot_ranges
        if not self.concurrency.is_serial:
            yield from ((x, y) for y in b.members.values() for x in a.members.values())
        elif len(a.members) >= len(b.members):
            for y in b.members.values():
                lives = halves.get(y.value, ())
                yield from ((x, y) for x in a.candidates_overlapping(y.offset + shift, b.width_of(y.value), lives))
        else:
            for x in a.members.values():
                lives = halves.get(x.value, ())
                yield from ((x, y) for y in b.candidates_overlapping(x.offset - shift, a.width_of(x.value), lives))

    def _may_overlap(self, x: Member, y: Member, shift: int) -> bool:
        """True if `x`, and `y` moved by `shift` bytes, may lie at their places."""
        a, b = self.candidate_pair
        begin, end = y.offset + shift, y.offset + shift + b.width_of(y.value)
        if begin >= x.offset + a.width_of(x.value) or x.offset >= end:
            return True
        # Comparing live ranges is cheaper than comparing provenance, and mostly enough.
        same_place = begin == x.offset
        if self._have_disjoint_ranges(x.value, y.value, same_place) or self._hold_equal_bytes(x, y, shift):
            return True
        return same_place and (
            self._are_equal_after_update(x.value, y.value) or self._are_equal_after_update(y.value, x.value)
        )

    def _are_equal_after_update(self, source: Value, target: Value) -> bool:
        """True if `source` and `target` are live together only after the final update, which makes both values equal.

        No node writes after the final update.
        """
        point = self.update_points.get((source, target))
        if point is None or self.concurrency.may_access_together(source, target):
            return False
        before = tuple((begin, min(end, 2 * point + 1)) for begin, end in self.ranges.slot_ranges[source])
        halves = {source: before, target: self.ranges.slot_ranges[target]}
        return have_disjoint_live_ranges(LiveRanges(halves), self.allowed_overwrites, source, target)

    def _hold_equal_bytes(self, x: Member, y: Member, shift: int) -> bool:
        """True if `x`, and `y` moved by `shift` bytes, hold equal bytes, and neither is written over the other.

        Equal bytes are not enough if a node reading either value copies bytes into the other, if the source of either
        value is redefined too early, or if either value may be written while another stream reads the other.
        """
        of_x, of_y = (self._provenance_of(member.value) for member in (x, y))
        if not have_equal_overlap(of_x, x.offset, of_y, y.offset + shift):
            return False
        same_place = x.offset == y.offset + shift
        if self._is_read_after_source_overwritten(x.value, same_place) or self._is_read_after_source_overwritten(
            y.value, same_place
        ):
            return False
        if self._are_defined_together(x.value, y.value):
            return False
        if self._is_overwritten_by_copy(x.value, y.value, shift) or self._is_overwritten_by_copy(
            y.value, x.value, shift
        ):
            return False
        written = ((x.value, y.value), (y.value, x.value))
        return not any(a not in self.never_written and self.concurrency.may_write_during(a, b) for a, b in written)

    def _provenance_of(self, value: Value) -> Provenance:
        """Return the provenance of a value in the candidate merge: of its bytes, or of the bytes of a row."""
        in_rows = self.candidate_pair[0].rows > 1
        return (self.by_rows.provenance if in_rows else self.provenance)[value]

    def _are_defined_together(self, x: Value, y: Value) -> bool:
        """True if a single point defines both values: a kernel must not write two outputs to the same bytes."""
        halves = self.ranges.slot_ranges
        return halves[x][0][0] == halves[y][0][0] and not (x in self.never_written and y in self.never_written)

    def _is_read_after_source_overwritten(self, value: Value, same_place: bool) -> bool:
        """True if the value is read after the source of the bytes was overwritten in a later iteration.

        The last use may coincide with the overwrite, if the op at the point permits the overwrite at the same place.
        """
        for segment in self._provenance_of(value):
            for point in self.multiple_definitions.get(segment.origin, ()) if segment.origin is not value else ():
                over = same_place and (point, value, segment.origin) in self.allowed_overwrites
                for begin, end in self.ranges.slot_ranges[value]:
                    if begin < 2 * point + 1 < end or (end == 2 * point + 1 and not over):
                        return True
        return False

    def _is_overwritten_by_copy(self, operand: Value, output: Value, shift: int) -> bool:
        """True if the node computing `output` from `operand` copies bytes over the bytes of `operand`."""
        start = self._offset_after_merge(output, shift)
        begin = self._offset_after_merge(operand, shift) - start
        group = self.candidate_pair[0]
        copies = (self.by_rows.node_copies if group.rows > 1 else self.node_copies).get((operand, output), ())
        first = bisect_right(copies, begin, key=lambda copy: copy.end)
        last = bisect_left(copies, begin + group.width_of(operand), key=lambda copy: copy.begin)
        return any(not self._is_copy_in_place(copy, start, shift) for copy in copies[first:last])

    def _is_copy_in_place(self, copy: NodeCopy, start: int, shift: int) -> bool:
        """True if the source of a copy already lies at the destination after the candidate merge."""
        group = self.buffer_of.get(copy.source)
        return group in self.candidate_pair and self._offset_after_merge(copy.source, shift) == start + copy.distance

    def _offset_after_merge(self, value: Value, shift: int) -> int:
        """Return the offset of a value, in bytes, in the buffer of the candidate merge."""
        moved = self.buffer_of[value] is self.candidate_pair[1]
        return self.offset_of[value] + (shift if moved else 0)

    def _have_disjoint_ranges(self, x: Value, y: Value, same_place: bool) -> bool:
        """True if the live ranges of two values are disjoint, or touch at a permitted overwrite of the same place."""
        if self.concurrency.may_access_together(x, y):
            return False
        if self._are_exclusive_exits(x, y):
            return True
        return have_disjoint_live_ranges(self.ranges, self.allowed_overwrites if same_place else NO_OVERWRITES, x, y)

    def _are_exclusive_exits(self, x: Value, y: Value) -> bool:
        """True if two aliases leave the same loop or branch by different exits: a run binds at most one."""
        a, b = self.exit_edges.get(x), self.exit_edges.get(y)
        return a is not None and b is not None and a[:2] == b[:2] and not a[2] & b[2]

    def _raises_peak(self, a: CoalescedBuffer, b: CoalescedBuffer, together: CoalescedBuffer) -> bool:
        """True if the merge raises the maximum of live bytes within the lifetime of the merged buffer."""
        if (
            not (self.rectangular or together.rows > 1)
            or self.is_peak_known
            or not together.live
            or (a.nbytes == b.nbytes == together.nbytes and a.is_preplaced == b.is_preplaced)
        ):
            return False  # no live range and no size grows
        begin, end = together.live[0][0], together.live[-1][1]
        window = self.live_bytes[begin:end].copy()
        before = int(np.maximum.reduce(window))
        for group, sign in ((a, -1), (b, -1), (together, 1)):
            add_live_bytes(window, group, sign, begin)
        if together.rows > 1:
            before = max(before, self.by_rows.live_bytes)
        return int(np.maximum.reduce(window)) > before

    def _commit_merge(
        self,
        how: str,
        child: Value,
        parent: Value,
        a: CoalescedBuffer,
        b: CoalescedBuffer,
        together: CoalescedBuffer,
        shift: int,
    ) -> None:
        """Apply a merge: update the live bytes, record the reason, move the members of the smaller buffer."""
        replace_by_merged(self.live_bytes, a, b, together)
        if b.owner == child:
            _record_sharing_reason(b, child, how, parent)
        elif b.owner is not None:  # a member other than the owner is the reason of the merge
            _record_sharing_reason(b, b.owner, "joined", parent)
        elif a.owner is not None:
            _record_sharing_reason(a, a.owner, "joined", child)
        first = None if a.loop_view or b.loop_view else a.owner
        kept, gone, distance = (a, b, shift) if len(a.members) >= len(b.members) else (b, a, -shift)
        for member in gone.members.values():
            moved = Member(member.value, member.offset + distance, member.how, member.shares)
            kept.add_member(moved, self.ranges.slot_ranges.get(moved.value, ()))
            self.offset_of[moved.value] = moved.offset
            self.buffer_of[moved.value] = kept
        base = 0 if kept is a else -shift
        kept.low, kept.high = together.low + base, together.high + base
        kept.order, kept.live, kept.bound_storage, kept.writable = (
            together.order,
            together.live,
            together.bound_storage,
            together.writable,
        )
        kept.filled_by_caller, kept.loop_view, kept.owner = together.filled_by_caller, together.loop_view, first


def _record_sharing_reason(group: CoalescedBuffer, value: Value, how: str, sharing: Value) -> None:
    """Record the reason `how` of a member, and the value sharing the bytes."""
    group.members[value] = Member(value, group.members[value].offset, how, sharing.name)


def have_disjoint_live_ranges(ranges: LiveRanges[Value], permitted: AllowedOverwrites, x: Value, y: Value) -> bool:
    """True if the live ranges of `x` and `y` are disjoint, or touch only at a permitted overwrite."""
    i = j = 0
    p, q = ranges.slot_ranges.get(x, ()), ranges.slot_ranges.get(y, ())
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

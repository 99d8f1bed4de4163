"""What lies in the holes of a buffer: in bytes of its block that none of its values needs at that time.

The block of a concatenation is as large as all of its operands, from the first of them on; the bytes of those that
come later are a hole until then. A buffer that needs bytes only meanwhile is a guest there, and needs none of its own.
It lives no longer than the buffer around it, nor does it reach beyond its block. Where most is alive comes first, and
the largest first, as long as that lowers the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sublet.analysis.groups import Group, Member
from sublet.analysis.liveness import Pieces
from sublet.analysis.merging import Merger
from sublet.base.ranges import holds, merge, overlap
from sublet.ir.graph import Value


def lodge(merger: Merger) -> None:
    """Puts buffers into holes of others until the peak of a program in one stream is no lower for that."""
    while merger.concurrency.serial and merger.curve.size and _lowered(merger):
        pass


def _lowered(merger: Merger) -> bool:
    """Whether a buffer that is alive where most is could be put into another."""
    peak = int(np.argmax(merger.curve))
    groups = {id(group): group for group in merger.groups.values() if not group.fixed}
    alive = [group for group in groups.values() if holds(group.live, peak)]
    hosts = [(group, most) for group in alive if (most := _most_free(merger, group, peak))]
    for guest in sorted(alive, key=lambda group: -group.nbytes) if hosts else ():
        for host, most in hosts:
            if guest is not host and guest.nbytes <= most and _put(merger, host, guest):
                return True
    return False


def _most_free(merger: Merger, group: Group, point: int) -> int:
    """The bytes of the largest hole at a point."""
    if len(group.members) < 2:
        return 0
    needed = _bytes_of(member for member in group.members.values() if holds(merger.ranges.points(member.value), point))
    return max(end - begin for begin, end in _between(needed, group))


def _put(merger: Merger, host: Group, guest: Group) -> bool:
    """Puts a buffer into a hole that is there as long as it lives, at the lowest place."""
    if guest.first is None or guest.filled or merge((*host.live, *guest.live)) != host.live:
        return False
    beside = [m for m in host.members.values() if overlap(merger.ranges.points(m.value), guest.live)]
    step = merger.alignment
    for begin, end in _between(_bytes_of(beside), host):
        place = begin + -(begin - guest.low) % step
        if place + guest.nbytes <= end:
            merger.lodge(guest, host, _around(host, place, place + guest.nbytes), place - guest.low)
            return True
    return False


def _around(host: Group, begin: int, end: int) -> Value:
    """Whose bytes these will be, or were: the smallest value around them, or the one that the buffer began with."""
    around = [m for m in host.members.values() if m.offset <= begin and end <= m.offset + m.value.nbytes]
    if around:
        return min(around, key=lambda member: member.value.nbytes).value
    return next(iter(host.in_order())).value


def _bytes_of(members: Iterator[Member] | Sequence[Member]) -> Pieces:
    return merge((member.offset, member.offset + member.value.nbytes) for member in members)


def _between(taken: Pieces, group: Group) -> Iterator[tuple[int, int]]:
    """The bytes of a block that are not taken, from the lowest on."""
    at = group.low
    for begin, end in (*taken, (group.high, group.high)):
        yield at, begin
        at = end

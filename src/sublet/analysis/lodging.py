"""What lies in the holes of a buffer: in bytes of its block that none of its values needs at that time.

The block of a concatenation is as large as all of its operands, from the first of them on; the bytes of those that
come later are a hole until then. A buffer that needs bytes only meanwhile is a guest there, and needs none of its own.
It lives no longer than the buffer around it, nor does it reach beyond its block. Where most is alive comes first, and
the largest first, as long as that lowers the peak.
"""

from __future__ import annotations

import numpy as np

from sublet.analysis.groups import Group
from sublet.analysis.liveness import Pieces
from sublet.analysis.merging import Merger
from sublet.base.ranges import holds, merge, overlap
from sublet.ir.graph import Value
from sublet.packing.problem import round_up


def lodge(merger: Merger) -> None:
    """Puts buffers into holes of others until the peak of a program in one stream is no lower for that."""
    while merger.concurrency.serial and merger.curve.size and _lowered(merger):
        pass


def _lowered(merger: Merger) -> bool:
    """Whether a buffer that is alive where most is could be put into another."""
    peak = int(np.argmax(merger.curve))
    groups = {id(group): group for group in merger.groups.values() if not group.fixed}
    alive = [group for group in groups.values() if holds(group.live, peak)]
    hosts = [group for group in alive if _holes(merger, group, ((peak, peak + 1),))]
    by_size = sorted(alive, key=lambda group: -group.nbytes)
    return any(_put(merger, host, guest) for guest in by_size for host in hosts)


def _put(merger: Merger, host: Group, guest: Group) -> bool:
    """Puts a buffer into a hole that is there as long as it lives, at the lowest place."""
    if merge((*host.live, *guest.live)) != host.live:
        return False
    for begin, end in _holes(merger, host, guest.live):
        place = round_up(begin, merger.alignment)
        if place + guest.nbytes <= end:
            merger.lodge(guest, host, _around(host, place, place + guest.nbytes), place - guest.low)
            return True
    return False


def _holes(merger: Merger, group: Group, points: Pieces) -> list[tuple[int, int]]:
    """The bytes of a block that none of its values needs at these points, from the lowest on."""
    needed = (m for m in group.members.values() if overlap(merger.ranges.points(m.value), points))
    taken = merge((member.offset, member.offset + member.value.nbytes) for member in needed)
    first = [group.low, *(end for _, end in taken)]
    after = [*(begin for begin, _ in taken), group.high]
    return [hole for hole in zip(first, after, strict=True) if hole[0] < hole[1]]


def _around(host: Group, begin: int, end: int) -> Value:
    """Whose bytes these will be, or were: the smallest value around them, or the one that the buffer began with."""
    around = (m for m in host.members.values() if m.offset <= begin and end <= m.offset + m.value.nbytes)
    return min(around, key=lambda member: member.value.nbytes, default=next(iter(host.in_order()))).value

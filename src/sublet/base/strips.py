"""The shape of a buffer: which of its bytes are needed when.

A concatenation is written part by part, and a view outlives its base: not all bytes of a buffer are needed as long as
any of them is. So a buffer is *strips*, runs of bytes with one life each, that keep their distances. What is no part of
a strip at some point is free for other buffers there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from sublet.base.ranges import Ranges, merge


class Strip(NamedTuple):
    """Bytes [begin, end) of a buffer, and the points at which they are needed."""

    begin: int
    end: int
    live: Ranges

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def strips(members: Iterable[Strip], alignment: int) -> tuple[Strip, ...]:
    """The bytes that some of these need, as few strips from the lowest on; each begins at a multiple of `alignment`.

    Cells of so many bytes are needed as a whole, but for what lies above the last member in the highest of a strip.
    What none ever needs is in none.
    """
    placed = sorted(member for member in members if member.live)
    first = [member.begin // alignment * alignment for member in placed]
    last = [-(-member.end // alignment) * alignment for member in placed]
    found: list[Strip] = []
    inside: list[int] = []
    waiting = 0
    for low, high in pairwise(sorted({*first, *last})):
        inside = [i for i in inside if last[i] > low]
        while waiting < len(placed) and first[waiting] <= low:
            inside.append(waiting)
            waiting += 1
        if not inside:
            continue
        live = merge(piece for i in inside for piece in placed[i].live)
        end = min(high, max(placed[i].end for i in inside))
        if found and found[-1].live == live and -(-found[-1].end // alignment) * alignment == low:
            found[-1] = Strip(found[-1].begin, end, live)
        else:
            found.append(Strip(low, end, live))
    return tuple(found)


def whole(members: Iterable[Strip]) -> tuple[Strip, ...]:
    """The one strip from the first byte to the last of these, needed as long as any of them is."""
    placed = [member for member in members if member.live]
    if not placed:
        return ()
    live = merge(piece for member in placed for piece in member.live)
    return (Strip(min(member.begin for member in placed), max(member.end for member in placed), live),)

"""The arenas of a picture: each arena has separate addresses, so several arenas are drawn as bands, stacked upwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.plan import UNLIMITED

GAP_DIVISOR = 20
"""The gap between two arenas is the height of all arenas divided by this number."""


@dataclass(frozen=True, slots=True)
class DrawnArena:
    """An arena with byte 0 drawn at the address `begin`.

    nbytes     the size of the arena
    bound      a lower bound for the size, over all placements of the buffers in the arena
    capacity   the maximum size of the memory region, or UNLIMITED
    """

    name: str
    begin: int
    nbytes: int
    bound: int
    capacity: int = UNLIMITED

    @property
    def end(self) -> int:
        """The highest address drawn."""
        return self.begin + max(self.nbytes, self.bound)


def drawn_begins(heights: Iterable[int]) -> list[int]:
    """Return the drawn begin addresses of arenas with the given heights, with gaps between the arenas."""
    sizes = list(heights)
    gap = max(1, sum(sizes) // GAP_DIVISOR)
    begin_addresses, begin = [], 0
    for height in sizes:
        begin_addresses.append(begin)
        begin += height + gap
    return begin_addresses

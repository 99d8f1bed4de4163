"""Arenas in a picture: each has addresses of its own, so several are drawn as bands, one above the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.plan import UNLIMITED

APART = 20
"""Between two arenas lies this part of the height of all."""


@dataclass(frozen=True, slots=True)
class Arena:
    """An arena whose byte 0 is drawn at the address `begin`.

    nbytes     its size
    bound      bytes that no placement of the buffers which lie in it can go below
    capacity   what its memory region holds at most, or UNLIMITED
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


def begins(heights: Iterable[int]) -> list[int]:
    """The drawn addresses at which arenas of these heights begin."""
    all_of_them = list(heights)
    apart = max(1, sum(all_of_them) // APART)
    found, begin = [], 0
    for height in all_of_them:
        found.append(begin)
        begin += height + apart
    return found

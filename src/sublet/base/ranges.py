"""Half-open ranges of numbers: points of time, or bytes."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]


def merge(pieces: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint, non-adjacent ranges that cover the same numbers."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether two lists of ranges, each sorted and disjoint, have a number in common."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][0] < other[j][1] and other[j][0] < one[i][1]:
            return True
        i, j = (i + 1, j) if one[i][1] <= other[j][1] else (i, j + 1)
    return False

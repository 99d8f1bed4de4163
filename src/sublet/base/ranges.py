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

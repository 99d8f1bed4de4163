"""The checker of packings: judges a packing from the problem alone, independently of the strategies.

The checker sweeps lifetimes in time and keeps the live buffers sorted by offset: while no buffers overlap, a
new buffer can collide only with its two neighbours. Only after a collision does the checker enumerate all
collisions. Under a precedence, every pair with a common byte must be free of conflict.
All arithmetic uses Python integers, which do not overflow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from sublet.base.errors import Finding, PackingError
from sublet.packing.problem import Buffer, Packing, Precedence, Problem

MAX_OVERLAPS = 10_000  # findings reported at most; a bad packing can have one per pair


def check_packing(problem: Problem, packing: Packing) -> None:
    """Raise PackingError with all findings (at most MAX_OVERLAPS overlaps) unless the packing is valid."""
    findings = find_violations(problem, packing)
    if findings:
        raise PackingError(findings)


def find_violations(problem: Problem, packing: Packing, steps: Sequence[str] = ()) -> list[Finding]:
    """Return all findings: `count`, `outside`, `misaligned`, `pinned`, `companions` and `overlap`.

    `steps` names the events at the times 0, 1, ... in messages.
    """
    if len(packing.offsets) != len(problem.buffers):
        what = f"{len(packing.offsets)} offsets for {len(problem.buffers)} buffers"
        return [Finding("count", "packing", what, "pass one offset for each buffer, in the order of the problem")]
    offsets = [int(offset) for offset in packing.offsets]
    findings: list[Finding] = []
    for buffer, offset in zip(problem.buffers, offsets, strict=True):
        findings.extend(_check_buffer(buffer, offset, packing.arena_bytes))
    for tie in problem.companions:
        low, high = offsets[tie.first], offsets[tie.second]
        if low + tie.distance != high:
            what = f"at {low}, but its companion {problem.buffers[tie.second].id} is at {high}"
            fix = f"place the companion {tie.distance} bytes above" if tie.distance else "place both at one offset"
            findings.append(Finding("companions", f"buffer {problem.buffers[tie.first].id}", what, fix))
    for first, second in _overlaps(problem, offsets):
        a, b = problem.buffers[first], problem.buffers[second]
        what = (
            f"bytes {offsets[first]}-{offsets[first] + a.size} overlap buffer {b.id} "
            f"at {offsets[second]}-{offsets[second] + b.size} while both are alive"
            f"{_first_common_time(problem, a, b, steps)}"
        )
        findings.append(Finding("overlap", f"buffer {a.id}", what, "move one of them"))
    return findings


def _first_common_time(problem: Problem, a: Buffer, b: Buffer, steps: Sequence[str]) -> str:
    """Return ", at TIME" for the first common time of two buffers; "" under a precedence, which has no times."""
    if problem.precedence is not None:
        return ""
    both = (max(one[0], other[0]) for one in a.pieces for other in b.pieces if one[0] < other[1] and other[0] < one[1])
    time = min(both)
    return f", at {time}" + (f" ({steps[time]})" if 0 <= time < len(steps) else "")


def _check_buffer(buffer: Buffer, offset: int, arena_bytes: int) -> Iterator[Finding]:
    if offset < 0 or (buffer.size and offset + buffer.size > arena_bytes):
        what = f"bytes {offset}-{offset + buffer.size} are outside the arena of {arena_bytes} bytes"
        yield Finding("outside", f"buffer {buffer.id}", what, "move it, or enlarge the arena")
    if offset % buffer.alignment:
        what = f"offset {offset} is no multiple of its alignment {buffer.alignment}"
        yield Finding("misaligned", f"buffer {buffer.id}", what, "round the offset up")
    if buffer.pinned is not None and offset != buffer.pinned:
        what = f"at {offset}, but it is pinned to {buffer.pinned}"
        yield Finding("pinned", f"buffer {buffer.id}", what, "place it there")


def _overlaps(problem: Problem, offsets: list[int]) -> list[tuple[int, int]]:
    """Return up to MAX_OVERLAPS pairs of positions, ascending, in conflict and with a common byte."""
    if problem.precedence is not None:
        pairs = _overlaps_in_order(problem, problem.precedence, offsets)
    elif problem.may_overlap or _has_collision(problem, offsets):
        pairs = _colliding_pairs(problem, offsets)
    else:
        return []
    allowed = {(min(pair), max(pair)) for pair in problem.may_overlap}
    return sorted(islice((pair for pair in pairs if pair not in allowed), MAX_OVERLAPS))


def _overlaps_in_order(problem: Problem, order: Precedence, offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of `_overlaps` under a precedence, comparing one buffer with all later buffers at once."""
    ends = [offset + buffer.size for offset, buffer in zip(offsets, problem.buffers, strict=True)]
    # Addresses are only compared, so ranks suffice, and ranks always fit 64 bits.
    rank = {address: rank for rank, address in enumerate(sorted({*offsets, *ends}))}
    begin = np.array([rank[offset] for offset in offsets], dtype=np.int64)
    end = np.array([rank[address] for address in ends], dtype=np.int64)
    for first in range(len(offsets)):
        low, high = np.maximum(begin[first + 1 :], begin[first]), np.minimum(end[first + 1 :], end[first])
        near = first + 1 + np.flatnonzero(low < high)
        apart = (order.distance[first, near] > 0) | (order.distance[near, first] > 0)
        if order.compatible is not None:
            apart |= order.compatible[first, near]
        yield from ((first, int(second)) for second in near[~apart])


def _lifetime_events(problem: Problem) -> list[tuple[int, int, int]]:
    """Return (time, 1 for a begin or 0 for an end, position of the buffer) for all lifetimes, ends first at a time."""
    return sorted(
        event
        for position, buffer in enumerate(problem.buffers)
        if buffer.size
        for begin, end in buffer.pieces
        for event in ((begin, 1, position), (end, 0, position))
    )


def _has_collision(problem: Problem, offsets: list[int]) -> bool:
    """True if two live buffers have a byte in common (sweep over time)."""
    live: list[tuple[int, int]] = []  # (offset, position), sorted
    for _, begins, position in _lifetime_events(problem):
        entry = (offsets[position], position)
        rank = bisect_left(live, entry)
        if not begins:
            del live[rank]
            continue
        end = offsets[position] + problem.buffers[position].size
        if rank < len(live) and live[rank][0] < end:
            return True
        if rank and live[rank - 1][0] + problem.buffers[live[rank - 1][1]].size > offsets[position]:
            return True
        live.insert(rank, entry)
    return False


def _colliding_pairs(problem: Problem, offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield all pairs of live buffers with a byte in common, each pair once (sweep over time).

    The live buffers of each size class, from 2^(k-1) to 2^k - 1 bytes, are sorted by offset. A buffer that reaches into
    a new buffer begins less than 2^k bytes below. At most two other buffers begin there, unless these collide too.
    """
    live: dict[int, list[tuple[int, int]]] = {}
    found: set[tuple[int, int]] = set()
    for _, begins, position in _lifetime_events(problem):
        offset, size = offsets[position], problem.buffers[position].size
        alike = live.setdefault(size.bit_length(), [])
        rank = bisect_left(alike, (offset, position))
        if not begins:
            del alike[rank]
            continue
        for bits, others in live.items():
            near = others[bisect_left(others, (offset - (1 << bits),)) : bisect_left(others, (offset + size,))]
            hit = (other for begin, other in near if begin + problem.buffers[other].size > offset)
            pairs = {(min(other, position), max(other, position)) for other in hit} - found
            found |= pairs
            yield from pairs
        alike.insert(rank, (offset, position))

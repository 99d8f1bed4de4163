"""Liveness of placements: from the write of the bytes to the last possible read.

`must_live` tracks each binding state separately: at these points some run needs the bytes. `may_live` merges the
states of a point. A plan may over-approximate: it may keep bytes live on infeasible paths, but not beyond `may_live`,
and not before the first write (`reachable_from_writes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from sublet.checker.state_space import PointState, StateSpace

Ranges = tuple[tuple[int, int], ...]


def must_live(walk: StateSpace, lasting: Collection[int]) -> dict[int, Ranges]:
    """Return the live ranges of each accessed placement over feasible paths; `lasting` placements are always live."""
    return _with_lasting(_live_ranges(walk.visits), walk, lasting)


def may_live(walk: StateSpace, lasting: Collection[int]) -> dict[int, Ranges]:
    """Return the live ranges of each accessed placement with all states of a point merged."""
    merged = [PointState(point, {}, (), (), list(after)) for point, after in enumerate(walk.timeline.followers)]
    reads: list[set[int]] = [set() for _ in merged]
    for visit in walk.visits:
        reads[visit.point].update(visit.reads)
        merged[visit.point].writes = visit.writes
    for visit in merged:
        visit.reads = tuple(reads[visit.point])
    return _with_lasting(_live_ranges(merged), walk, lasting)


def reachable_from_writes(walk: StateSpace, number: int) -> Ranges:
    """Return the points reachable from a write of a placement, with all states of a point merged."""
    reached = {visit.point for visit in walk.visits if number in visit.writes}
    todo = list(reached)
    while todo:
        after = set(walk.timeline.followers[todo.pop()]) - reached
        reached |= after
        todo += after
    return merge_ranges((point, point + 1) for point in reached)


def _with_lasting(ranges: dict[int, Ranges], walk: StateSpace, lasting: Collection[int]) -> dict[int, Ranges]:
    """Return the live ranges with `lasting` placements live at all points."""
    return {**ranges, **dict.fromkeys(lasting, ((0, len(walk.timeline.moments)),))}


def _live_ranges(visits: Sequence[PointState]) -> dict[int, Ranges]:
    """Return the live ranges of placements by backward liveness over basic blocks."""
    blocks = _basic_blocks(visits)
    first = {block[0]: i for i, block in enumerate(blocks)}
    followers = [[first[after] for after in visits[block[-1]].followers] for block in blocks]
    reads, writes = [0] * len(blocks), [0] * len(blocks)
    for i, block in enumerate(blocks):
        for number in reversed(block):
            written, read = _to_bits(visits[number].writes), _to_bits(visits[number].reads)
            reads[i], writes[i] = reads[i] & ~written | read, writes[i] | written
    before, after = [0] * len(blocks), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            after[i] = 0
            for follower in followers[i]:
                after[i] |= before[follower]
            live_before = reads[i] | after[i] & ~writes[i]
            changed, before[i] = changed or live_before != before[i], live_before
    pieces: dict[int, list[tuple[int, int]]] = {}
    for block, mask in zip(blocks, after, strict=True):
        _scan_block([visits[number] for number in block], mask, pieces)
    return {number: merge_ranges(ranges) for number, ranges in pieces.items()}


def _basic_blocks(visits: Sequence[PointState]) -> list[list[int]]:
    """Return basic blocks: maximal chains of point states at consecutive points."""
    sources = [0] * len(visits)
    for visit in visits:
        for follower in visit.followers:
            sources[follower] += 1
    inner = set()
    for visit in visits:
        only = visit.followers[0] if len(visit.followers) == 1 else None
        if only is not None and sources[only] == 1 and visits[only].point == visit.point + 1:
            inner.add(only)
    blocks = []
    for number in sorted(range(len(visits)), key=lambda number: visits[number].point):
        if number not in inner:
            block = [number]
            while len(after := visits[block[-1]].followers) == 1 and after[0] in inner:
                block.append(after[0])
            blocks.append(block)
    return blocks


def _scan_block(block: Sequence[PointState], after: int, pieces: dict[int, list[tuple[int, int]]]) -> None:
    """Add the live ranges inside a block to `pieces`; `after` is the bit set of placements live after the block."""
    ends = dict.fromkeys(_from_bits(after), block[-1].point + 1)
    for visit in reversed(block):
        for number in visit.writes:
            pieces.setdefault(number, []).append((visit.point, ends.pop(number, visit.point + 1)))
        for number in visit.reads:
            ends.setdefault(number, visit.point + 1)
    for number, end in ends.items():
        pieces.setdefault(number, []).append((block[0].point, end))


def _to_bits(numbers: Iterable[int]) -> int:
    """Return numbers as a bit set."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def _from_bits(mask: int) -> list[int]:
    """Return the numbers in a bit set."""
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    numbers: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return numbers


def merge_ranges(pieces: Iterable[tuple[int, int]]) -> Ranges:
    """Return sorted, disjoint, non-adjacent ranges covering the same points."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def is_covered_by(inner: Ranges, outer: Ranges) -> bool:
    """True if sorted ranges `outer` cover all points of `inner`."""
    i = 0
    for begin, end in inner:
        while i < len(outer) and outer[i][1] < end:
            i += 1
        if i == len(outer) or outer[i][0] > begin:
            return False
    return True

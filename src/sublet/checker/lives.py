"""When the bytes of every placement are needed: from the point that writes them to the last that may read them.

`needed` follows every state of the pointers by itself: at these points some run needs the bytes. `conceivable` knows
the points, but not the states: a planner that keeps bytes along a way that no run takes may say so, but no more, and
not before they are `written`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from sublet.checker.walk import Visit, Walk

Ranges = tuple[tuple[int, int], ...]


def needed(walk: Walk, lasting: Collection[int]) -> dict[int, Ranges]:
    """For each placement that is written or read the points; `lasting` ones are needed always."""
    return _always(_live(walk.visits), walk, lasting)


def conceivable(walk: Walk, lasting: Collection[int]) -> dict[int, Ranges]:
    """The same when the states of a point are not told apart."""
    together = [Visit(point, {}, (), (), list(after)) for point, after in enumerate(walk.timeline.followers)]
    reads: list[set[int]] = [set() for _ in together]
    for visit in walk.visits:
        reads[visit.point].update(visit.reads)
        together[visit.point].writes = visit.writes
    for visit in together:
        visit.reads = tuple(reads[visit.point])
    return _always(_live(together), walk, lasting)


def written(walk: Walk, number: int) -> Ranges:
    """The points that some way leads to from one that writes a placement, when states are not told apart."""
    reached = {visit.point for visit in walk.visits if number in visit.writes}
    todo = list(reached)
    while todo:
        after = set(walk.timeline.followers[todo.pop()]) - reached
        reached |= after
        todo += after
    return union((point, point + 1) for point in reached)


def _always(found: dict[int, Ranges], walk: Walk, lasting: Collection[int]) -> dict[int, Ranges]:
    return {**found, **dict.fromkeys(lasting, ((0, len(walk.timeline.moments)),))}


def _live(visits: Sequence[Visit]) -> dict[int, Ranges]:
    blocks = _blocks(visits)
    first = {block[0]: i for i, block in enumerate(blocks)}
    followers = [[first[after] for after in visits[block[-1]].followers] for block in blocks]
    reads, writes = [0] * len(blocks), [0] * len(blocks)
    for i, block in enumerate(blocks):
        for number in reversed(block):
            written, read = _mask(visits[number].writes), _mask(visits[number].reads)
            reads[i], writes[i] = reads[i] & ~written | read, writes[i] | written
    before, after = [0] * len(blocks), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            after[i] = 0
            for follower in followers[i]:
                after[i] |= before[follower]
            found = reads[i] | after[i] & ~writes[i]
            changed, before[i] = changed or found != before[i], found
    pieces: dict[int, list[tuple[int, int]]] = {}
    for block, mask in zip(blocks, after, strict=True):
        _scan([visits[number] for number in block], mask, pieces)
    return {number: union(several) for number, several in pieces.items()}


def _blocks(visits: Sequence[Visit]) -> list[list[int]]:
    """Visits that follow only one another, at neighbouring points."""
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


def _scan(block: Sequence[Visit], after: int, pieces: dict[int, list[tuple[int, int]]]) -> None:
    ends = dict.fromkeys(_bits(after), block[-1].point + 1)
    for visit in reversed(block):
        for number in visit.writes:
            pieces.setdefault(number, []).append((visit.point, ends.pop(number, visit.point + 1)))
        for number in visit.reads:
            ends.setdefault(number, visit.point + 1)
    for number, end in ends.items():
        pieces.setdefault(number, []).append((block[0].point, end))


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def _bits(mask: int) -> list[int]:
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return found


def union(pieces: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted ranges that do not touch and cover the same points."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def within(inner: Ranges, outer: Ranges) -> bool:
    """Whether the points of sorted ranges are all among those of others."""
    i = 0
    for begin, end in inner:
        while i < len(outer) and outer[i][1] < end:
            i += 1
        if i == len(outer) or outer[i][0] > begin:
            return False
    return True

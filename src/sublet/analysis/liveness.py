"""Liveness of every value, by the dataflow equations (Appel, ch. 10) solved to a fixpoint.

    live_in(n)  = use(n) | (live_out(n) - def(n))
    live_out(n) = union of live_in(s) over the points s that may follow n

The equations are solved on basic blocks with bit sets; a scan inside each block then gives the
ranges. Time is counted in half points: at point t values are read at 2t and written at 2t + 1, so
that "read for the last time" and "written for the first time" at one point can be told apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from sublet.base.ranges import merge

Pieces = tuple[tuple[int, int], ...]
V = TypeVar("V", bound=Hashable)
V_co = TypeVar("V_co", bound=Hashable, covariant=True)


class Moment(Protocol[V_co]):
    """What liveness asks of a point: all `uses` are read, then all `defs` are written, then some are `forgotten`."""

    @property
    def uses(self) -> tuple[V_co, ...]: ...

    @property
    def defs(self) -> tuple[V_co, ...]: ...

    @property
    def forgotten(self) -> tuple[V_co, ...]: ...


class Timeline(Protocol[V_co]):
    """Points, and those that may follow each: of any program, whatever its variables are."""

    @property
    def points(self) -> Sequence[Moment[V_co]]: ...

    @property
    def followers(self) -> Sequence[tuple[int, ...]]: ...


@dataclass(frozen=True)
class LiveRanges(Generic[V]):
    """For every value the half-open ranges of half points during which its bytes are needed.

    Invariant: the pieces of a value are sorted, disjoint and not adjacent. A value written at point
    d and read last at point u lives in [2d + 1, 2u + 1); one that is never read in [2d + 1, 2d + 2).
    """

    halves: dict[V, Pieces]

    def points(self, value: V) -> Pieces:
        """Half-open ranges of whole points at which the bytes are needed, reads and writes included."""
        return whole_points(self.halves.get(value, ()))


def whole_points(halves: Pieces) -> Pieces:
    """Ranges of half points, widened to the points they touch and merged."""
    return merge((begin // 2, (end + 1) // 2) for begin, end in halves)


def liveness(flow: Timeline[V]) -> LiveRanges[V]:
    """Live ranges of every value that any point uses or defines."""
    blocks = _basic_blocks(flow)
    values: dict[V, int] = {}
    for point in flow.points:
        for value in (*point.defs, *point.forgotten, *point.uses):
            values.setdefault(value, len(values))
    live_out = _solve(flow, blocks, values)
    names = list(values)
    pieces: dict[V, list[tuple[int, int]]] = {value: [] for value in values}
    for (begin, end), mask in zip(blocks, live_out, strict=True):
        _scan(flow, begin, end, [names[i] for i in _bits(mask)], pieces)
    return LiveRanges({value: merge(found) for value, found in pieces.items()})


def live_sets(flow: Timeline[V]) -> tuple[tuple[frozenset[V], frozenset[V]], ...]:
    """Of every point what is live-in and what is live-out."""
    into: list[set[V]] = [set() for _ in flow.points]
    for value, pieces in liveness(flow).halves.items():
        for begin, end in pieces:
            for point in range((begin + 1) // 2, (end + 1) // 2):
                into[point].add(value)
    return tuple(
        (frozenset(live), frozenset().union(*(into[follower] for follower in followers)))
        for live, followers in zip(into, flow.followers, strict=True)
    )


def _basic_blocks(flow: Timeline[V]) -> list[tuple[int, int]]:
    """Maximal runs [begin, end) of points that are only ever executed one after another."""
    leaders = {0}
    for i, followers in enumerate(flow.followers):
        if followers != (i + 1,):
            leaders.update(followers)
            leaders.add(i + 1)
    starts = sorted(leader for leader in leaders if leader < len(flow.points))
    return list(zip(starts, [*starts[1:], len(flow.points)], strict=True))


def _solve(flow: Timeline[V], blocks: list[tuple[int, int]], values: dict[V, int]) -> list[int]:
    """The set of values live at the end of each block, as bit sets."""
    use, define = [], []
    for begin, end in blocks:
        used = defined = 0
        for point in reversed(flow.points[begin:end]):
            defs = _mask((*point.defs, *point.forgotten), values)
            used = used & ~defs | _mask(point.uses, values)
            defined |= defs
        use.append(used)
        define.append(defined)
    block_at = {begin: i for i, (begin, _) in enumerate(blocks)}
    followers = [[block_at[f] for f in flow.followers[end - 1]] for _, end in blocks]
    live_in = [0] * len(blocks)
    live_out = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            out = 0
            for follower in followers[i]:
                out |= live_in[follower]
            into = use[i] | out & ~define[i]
            changed = changed or into != live_in[i]
            live_in[i], live_out[i] = into, out
    return live_out


def _scan(flow: Timeline[V], begin: int, end: int, live_out: list[V], pieces: dict[V, list[tuple[int, int]]]) -> None:
    """Add the ranges inside one block, walking it backwards."""
    ends = dict.fromkeys(live_out, 2 * end)
    for t in reversed(range(begin, end)):
        point = flow.points[t]
        for value in point.defs:
            pieces[value].append((2 * t + 1, ends.pop(value, 2 * t + 2)))
        for value in point.forgotten:
            last = ends.pop(value, 0)
            if last > 2 * t + 2:
                pieces[value].append((2 * t + 2, last))
        for value in point.uses:
            ends.setdefault(value, 2 * t + 1)
    for value, last in ends.items():
        pieces[value].append((2 * begin, last))


def _mask(values: tuple[V, ...], index: dict[V, int]) -> int:
    mask = 0
    for value in values:
        mask |= 1 << index[value]
    return mask


def _bits(mask: int) -> list[int]:
    """Positions of the set bits, ascending."""
    packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    positions: list[int] = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
    return positions

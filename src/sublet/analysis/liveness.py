"""Liveness of every value, by the dataflow equations (Appel, ch. 10) solved to a fixpoint.

    live_in(n)  = use(n) | (live_out(n) - def(n))
    live_out(n) = union of live_in(s) over the successors s of n

The equations are solved on basic blocks with bit sets; a scan inside each block then gives the ranges. Time is counted
in slots: point t reads values in slot 2t and writes values in slot 2t + 1 (as LLVM's slot indexes). A last use and a
first write at the same point are therefore distinct times.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from sublet.base.ranges import merge

LiveRange = tuple[tuple[int, int], ...]
V = TypeVar("V", bound=Hashable)
V_co = TypeVar("V_co", bound=Hashable, covariant=True)


class LivenessPoint(Protocol[V_co]):
    """A point as liveness needs it: all `uses` are read, then all `defs` are written, then all `kills` end."""

    @property
    def uses(self) -> tuple[V_co, ...]: ...

    @property
    def defs(self) -> tuple[V_co, ...]: ...

    @property
    def kills(self) -> tuple[V_co, ...]: ...


class LivenessGraph(Protocol[V_co]):
    """Points and their successors, for programs with variables of any hashable type."""

    @property
    def points(self) -> Sequence[LivenessPoint[V_co]]: ...

    @property
    def successors(self) -> Sequence[tuple[int, ...]]: ...


@dataclass(frozen=True)
class LiveRanges(Generic[V]):
    """The live range of every value, as half-open ranges of slots in which the bytes are needed.

    Invariant: the ranges of a value are sorted, disjoint and not adjacent. A value written at point d and last used at
    point u is live in [2d + 1, 2u + 1); a value never read is live in [2d + 1, 2d + 2).
    """

    slot_ranges: dict[V, LiveRange]

    def point_ranges(self, value: V) -> LiveRange:
        """Return the half-open ranges of points at which the bytes are needed, reads and writes included."""
        return to_point_ranges(self.slot_ranges.get(value, ()))


def to_point_ranges(halves: LiveRange) -> LiveRange:
    """Return ranges of slots as merged ranges of all points touched."""
    return merge((begin // 2, (end + 1) // 2) for begin, end in halves)


def compute_live_ranges(flow: LivenessGraph[V]) -> LiveRanges[V]:
    """Return the live range of every value that some point uses or defines."""
    blocks = _basic_blocks(flow)
    values: dict[V, int] = {}
    for point in flow.points:
        for value in (*point.defs, *point.kills, *point.uses):
            values.setdefault(value, len(values))
    live_out = _solve_live_out(flow, blocks, values)
    names = list(values)
    pieces: dict[V, list[tuple[int, int]]] = {value: [] for value in values}
    for (begin, end), mask in zip(blocks, live_out, strict=True):
        _scan_block(flow, begin, end, [names[i] for i in _set_bits(mask)], pieces)
    return LiveRanges({value: merge(ranges) for value, ranges in pieces.items()})


def live_in_out(flow: LivenessGraph[V]) -> tuple[tuple[frozenset[V], frozenset[V]], ...]:
    """Return the sets (live-in, live-out) of every point."""
    into: list[set[V]] = [set() for _ in flow.points]
    for value, pieces in compute_live_ranges(flow).slot_ranges.items():
        for begin, end in pieces:
            for point in range((begin + 1) // 2, (end + 1) // 2):
                into[point].add(value)
    return tuple(
        (frozenset(live), frozenset().union(*(into[follower] for follower in followers)))
        for live, followers in zip(into, flow.successors, strict=True)
    )


def _basic_blocks(flow: LivenessGraph[V]) -> list[tuple[int, int]]:
    """Return the basic blocks: maximal runs [begin, end) of points always executed one after another."""
    leaders = {0}
    for i, followers in enumerate(flow.successors):
        if followers != (i + 1,):
            leaders.update(followers)
            leaders.add(i + 1)
    starts = sorted(leader for leader in leaders if leader < len(flow.points))
    return list(zip(starts, [*starts[1:], len(flow.points)], strict=True))


def _solve_live_out(flow: LivenessGraph[V], blocks: list[tuple[int, int]], values: dict[V, int]) -> list[int]:
    """Return the set of values live at the end of each block, as bit sets."""
    use, define = [], []
    for begin, end in blocks:
        used = defined = 0
        for point in reversed(flow.points[begin:end]):
            defs = _bit_set((*point.defs, *point.kills), values)
            used = used & ~defs | _bit_set(point.uses, values)
            defined |= defs
        use.append(used)
        define.append(defined)
    block_at = {begin: i for i, (begin, _) in enumerate(blocks)}
    followers = [[block_at[f] for f in flow.successors[end - 1]] for _, end in blocks]
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


def _scan_block(
    flow: LivenessGraph[V], begin: int, end: int, live_out: list[V], pieces: dict[V, list[tuple[int, int]]]
) -> None:
    """Add the live ranges inside a block to `pieces`, scanning the block backwards."""
    ends = dict.fromkeys(live_out, 2 * end)
    for t in reversed(range(begin, end)):
        point = flow.points[t]
        for value in point.defs:
            pieces[value].append((2 * t + 1, ends.pop(value, 2 * t + 2)))
        for value in point.kills:
            last = ends.pop(value, 0)
            if last > 2 * t + 2:
                pieces[value].append((2 * t + 2, last))
        for value in point.uses:
            ends.setdefault(value, 2 * t + 1)
    for value, last in ends.items():
        pieces[value].append((2 * begin, last))


def _bit_set(values: tuple[V, ...], index: dict[V, int]) -> int:
    """Return the bit set of `values`."""
    mask = 0
    for value in values:
        mask |= 1 << index[value]
    return mask


def _set_bits(mask: int) -> list[int]:
    """Return the positions of the set bits, ascending."""
    packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    positions: list[int] = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
    return positions

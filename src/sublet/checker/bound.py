"""The check of the lower bound: no placement of the same buffers, in the same order, needs fewer bytes.

Buffers live at one point in some run prove a bound: the bytes needed at the point lie side by side, and take the sum of
the sizes, each rounded up to the alignment except for the topmost. In several streams, where buffers count in whole,
a set of buffers without any allowed overlap proves a bound as well: for each pair, some run needs both buffers at one
point, or no order exists between an access of either. The checker does not repeat the search that refuted every
smaller arena: a bound found by search counts as unproven, unless buffers prove it.

Rule: false-bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from sublet.base.errors import Finding
from sublet.checker.buffers import CheckerBuffer
from sublet.checker.liveness import Ranges
from sublet.checker.state_space import StateSpace
from sublet.plan import MemoryPlan
from sublet.plan.schedule import happens_before, is_serial

SEARCH = "search"
KINDS = ("peak", "antichain", SEARCH)
"""The methods of a lower bound, the values of `MemoryPlan.bound`."""
MOST_PAIRS = 1 << 22
"""Pairs of proving buffers to compare. Beyond the limit the bound stays unproven."""
SEARCHED = "found by a search, which the checker does not repeat"

Blocks = Mapping[int, CheckerBuffer]


@dataclass(frozen=True)
class BoundStatus:
    """The status of a lower bound: the reason for being unproven, "" if proven, and the bytes proven by live buffers.

    `must_live_buffers` are the buffers with the points where some run needs their bytes. `has_exact_live_ranges` is
    True if the plan declares exactly these points: the packing search then solved the exact problem.
    """

    unproven_reason: str = ""
    proven_bytes: int = 0
    proof: tuple[int, ...] = ()
    must_live_buffers: Blocks = field(default_factory=dict)
    has_exact_live_ranges: bool = True


def check_bound(
    plan: MemoryPlan, walk: StateSpace, surely: Blocks, declared: Blocks
) -> tuple[list[Finding], BoundStatus]:
    """Return the findings about the bound, and the bound's status.

    `surely` are the buffers with must-live ranges, `declared` the buffers with the live ranges declared by the plan.
    """
    findings, why = _check_proof(plan, walk, surely, declared)
    proven, proof = _bound_at_peak(plan, surely)
    return findings, BoundStatus(why, proven, proof, surely, all(surely[n].live == declared[n].live for n in declared))


def _check_proof(plan: MemoryPlan, walk: StateSpace, surely: Blocks, declared: Blocks) -> tuple[list[Finding], str]:
    """Return the findings about the bound, and the reason for an unproven bound, "" for a proven bound."""
    findings = [*_malformed_claims(plan, declared)]
    if findings:
        return findings, ""
    claimed, kind = plan.lower_bound_bytes, plan.bound
    if kind == SEARCH:
        return [], "" if claimed <= _bound_at_peak(plan, surely)[0] else SEARCHED
    members = frozenset(plan.proof)
    if is_serial(plan.schedule) and (kind == "peak" or _common_points(declared, members)):
        return _check_proof_at_one_point(plan, surely, declared, members)
    together = stacked_bytes(plan, [declared[number].nbytes for number in members])
    if claimed > together:
        return [_bound_finding(f"claims {claimed} bytes, but the proving buffers take {together}")], ""
    if kind == "peak" and members and not _common_points(declared, members):
        return [_bound_finding("declares its proving buffers live at one point, but they are not")], ""
    if len(members) ** 2 > MOST_PAIRS and not _common_points(surely, members):
        return [], f"{len(members)} buffers are too many to compare all pairs"
    if any(len(declared[number].segments) > 1 for number in members):
        return [], "some proving buffers are needed in part only at some points"
    for number, other in _overlapping_neighbours(declared, members):
        return [_bound_finding(f"is proven by buffers {number} and {other}, which overlap")], ""
    unordered = _ConcurrentAccesses(walk, surely)
    if (pair := _separable_pair(surely, members, unordered)) is None:
        return [], ""
    if _separable_pair(declared, members, unordered) is not None:
        what = f"is proven by buffers {pair[0]} and {pair[1]}, which are never needed at the same time"
        return [_bound_finding(what)], ""
    return [], f"buffers {pair[0]} and {pair[1]} may never be live at the same time in a possible run"


def _check_proof_at_one_point(
    plan: MemoryPlan, surely: Blocks, declared: Blocks, members: frozenset[int]
) -> tuple[list[Finding], str]:
    """Return the same for a program in one stream: the buffers' needs at one point must reach the bound."""
    claimed, together = plan.lower_bound_bytes, _max_common_bytes(plan, declared, members)
    if members and not together:
        return [_bound_finding("declares its proving buffers live at one point, but they are not")], ""
    if claimed > together:
        return [_bound_finding(f"claims {claimed} bytes, but the proving buffers take {together}")], ""
    if claimed > _max_common_bytes(plan, surely, members):
        return [], "no possible run may need that many bytes of the proving buffers at one point"
    return [], ""


def _max_common_bytes(plan: MemoryPlan, known: Blocks, members: frozenset[int]) -> int:
    """Return the most bytes needed by buffers at a point where all of them are live; 0 without a common point."""
    common, points = _common_points(known, members), set[int]()
    for strip in (strip for number in members for strip in known[number].segments):
        points.update(begin for begin, _ in strip.live if common >> begin & 1)
    sizes = ([size for number in members for size in known[number].sizes_needed_at(point)] for point in points)
    return max((stacked_bytes(plan, each) for each in sizes), default=0)


def stacked_bytes(plan: MemoryPlan, sizes: Collection[int]) -> int:
    """Return the bytes of buffers side by side; the topmost needs no padding.

    With several arenas the sizes stay unrounded: each arena has a topmost buffer.
    """
    if len(plan.arenas) != 1 or not sizes:
        return sum(sizes)
    rounded = [-(-size // plan.alignment) * plan.alignment for size in sizes]
    return sum(rounded) - max(whole - size for whole, size in zip(rounded, sizes, strict=True))


def _malformed_claims(plan: MemoryPlan, declared: Blocks) -> Iterator[Finding]:
    """Yield findings for malformed claims about the bound."""
    if plan.bound not in KINDS:
        yield _bound_finding(f"was found by {plan.bound!r}, expected one of {', '.join(KINDS)}")
    if len(set(plan.proof)) != len(plan.proof):
        yield _bound_finding("lists a proving buffer twice")
    for number in plan.proof:
        if number not in declared:
            yield _bound_finding(f"is proven by buffer {number}, which the plan does not have")
    if plan.proof and plan.bound == SEARCH:
        yield _bound_finding("was found by a search, but lists proving buffers")
    if plan.lower_bound_bytes > plan.arena_bytes:
        yield _bound_finding(f"is {plan.lower_bound_bytes} bytes, but the arena has {plan.arena_bytes}")
    if plan.arena_bytes and not plan.lower_bound_bytes:
        yield _bound_finding("is 0 bytes, but the arena has bytes")


def _bound_at_peak(plan: MemoryPlan, surely: Blocks) -> tuple[int, tuple[int, ...]]:
    """Return the largest bound proven by buffers live at one point, and the numbers of the buffers."""
    best: tuple[int, tuple[int, ...]] = (0, ())
    for step in {1, plan.alignment}:
        change: dict[int, int] = {}
        for strip in (strip for block in surely.values() for strip in block.segments):
            weight = -(-(strip.high - strip.low) // step) * step
            for begin, end in strip.live:
                change[begin] = change.get(begin, 0) + weight
                change[end] = change.get(end, 0) - weight
        live = most = 0
        at = -1
        for point in sorted(change):
            live += change[point]
            if live > most:
                most, at = live, point
        needed = {number: sizes for number, block in surely.items() if (sizes := block.sizes_needed_at(at))}
        best = max(best, (stacked_bytes(plan, [size for sizes in needed.values() for size in sizes]), tuple(needed)))
    return best


def _common_points(known: Blocks, members: frozenset[int]) -> int:
    """Return the points where all buffers are live, as a bit set."""
    common = -1
    for number in members:
        common &= _point_mask(known[number].live)
    return common


def _point_mask(ranges: Ranges) -> int:
    """Return the points of ranges as a bit set."""
    mask = 0
    for begin, end in ranges:
        mask |= (1 << end) - (1 << begin)
    return mask


def _overlapping_neighbours(declared: Blocks, members: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of buffers with overlapping bytes, neighbours in address order only."""
    order = sorted(members, key=lambda number: (declared[number].storage, declared[number].low))
    for one, other in pairwise(order):
        if declared[one].storage == declared[other].storage and declared[one].high > declared[other].low:
            yield one, other


def _separable_pair(known: Blocks, members: frozenset[int], unordered: _ConcurrentAccesses) -> tuple[int, int] | None:
    """Return two buffers never live at a common point nor accessed concurrently; None without a pair.

    Such buffers may overlap.
    """
    if _common_points(known, members):
        return None
    points = {number: _point_mask(known[number].live) for number in members}
    for one, other in combinations(sorted(members), 2):
        if not points[one] & points[other] and not unordered.may_coincide(one, other):
            return one, other
    return None


class _ConcurrentAccesses:
    """Concurrent accesses of buffers: accesses by steps without an order, in a program of several streams."""

    def __init__(self, walk: StateSpace, known: Blocks) -> None:
        self._walk = walk
        self._known = known
        self._orders = [happens_before(level) for level in walk.timeline.levels]
        self._serial = all(_is_serial(before) for before in self._orders)
        self._touched: dict[int, int] = {}
        self._beside: dict[int, int] = {}
        self._by_point: dict[int, int] = {}
        self._by_placement: dict[int, int] = {}
        if not self._serial:
            for visit in walk.visits:
                for number in (*visit.reads, *visit.writes):
                    self._by_placement[number] = self._by_placement.get(number, 0) | 1 << visit.point

    def may_coincide(self, one: int, other: int) -> bool:
        """True if an access of buffer `one` may run at the same time as an access of buffer `other`."""
        if self._serial:
            return False
        for number in (one, other):
            if number not in self._touched:
                touched = 0
                for member in self._known[number].members:
                    touched |= self._by_placement.get(member, 0)
                self._touched[number] = touched
                self._beside[number] = self._points_concurrent_with(touched)
        return bool(self._touched[one] & self._beside[other])

    def _points_concurrent_with(self, touched: int) -> int:
        """Return the points concurrent with any point in a bit set."""
        mask = 0
        while touched:
            point = (touched & -touched).bit_length() - 1
            touched &= touched - 1
            if point not in self._by_point:
                self._by_point[point] = self._points_concurrent_with_point(point)
            mask |= self._by_point[point]
        return mask

    def _points_concurrent_with_point(self, point: int) -> int:
        """Return the points of steps without an order relative to the enclosing steps of a point, as a bit set."""
        moments, mask = self._walk.timeline.moments, 0
        for other, moment in enumerate(moments):
            for mine, its in zip(moments[point].path, moment.path, strict=False):
                if mine != its:
                    if mine[0] == its[0] and not self._are_ordered(mine[0], mine[1], its[1]):
                        mask |= 1 << other
                    break
        return mask

    def _are_ordered(self, level: int, one: int, other: int) -> bool:
        """True if an order exists between two steps of a level."""
        before = self._orders[level]
        return bool(before[one] >> other & 1 or before[other] >> one & 1)


def _is_serial(before: list[int]) -> bool:
    """True if every step is ordered after all earlier steps."""
    return all(mask == (1 << i) - 1 for i, mask in enumerate(before))


def _bound_finding(what: str) -> Finding:
    """Return a finding about the lower bound."""
    return Finding("false-bound", "the lower bound", what)

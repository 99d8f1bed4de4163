"""Normal form of a packing problem: the only form known to strategies and search.

    may_overlap              becomes compatible pairs of a precedence, derived from the lifetimes if none is given
    companions, one pinned   all become pinned
    companions at distances  become companions at one offset, the origin of their group: a member of s bytes
                             at d bytes above the origin asks for d + s bytes from the origin on

The last step can ask for unneeded bytes below a member that outlives the members beneath. Every packing of
the normalized problem is then a packing of the original, but a bound need not be (`NormalizedProblem.exact`).
Members live at the same time become one buffer, live whenever any member is live.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.base.ranges import gaps, merge
from sublet.packing import _core
from sublet.packing.conflicts import Conflicts, Mask, clusters_of, conflicts_of
from sublet.packing.problem import MAX_SIZE, Buffer, Companion, Packing, Precedence, Problem

# Rigid groups: buffers with fixed distances between their offsets, and the valid offsets of each group.


@dataclass(frozen=True, slots=True)
class RigidGroup:
    """Buffers with fixed distances: the offset of one member determines the offsets of all.

    members  (position, bytes above the lowest member), ascending by position
    residue  the lowest offset of the group with every member aligned; all valid offsets add multiples of
             the common multiple of the alignments
    pin      the offset of the lowest member if any member is pinned, else None
    """

    members: tuple[tuple[int, int], ...]
    lowest_offset: int
    pin: int | None

    @property
    def has_distances(self) -> bool:
        """True unless all members share one offset valid for all alignments."""
        return self.lowest_offset > 0 or any(distance for _, distance in self.members)


def groups_of(problem: Problem) -> list[RigidGroup]:
    """Return the rigid groups of a problem, ordered by first member.

    Raises ProblemError when distances, alignments or pins in a group contradict each other.
    """
    near: dict[int, list[Companion]] = {}
    for companion in problem.companions:
        near.setdefault(companion.first, []).append(companion)
        near.setdefault(companion.second, []).append(companion)
    groups, grouped = [], set[int]()
    for position in sorted(near):
        if position not in grouped:
            above = _distances_from(problem, near, position)
            grouped.update(above)
            groups.append(_rigid_group(problem, above))
    return groups


def _distances_from(problem: Problem, near: dict[int, list[Companion]], start: int) -> dict[int, int]:
    """Return the distance of every member of the group above `start`, in bytes."""
    above = {start: 0}
    todo = [start]
    for position in todo:
        for companion in near[position]:
            first, second, distance = companion.first, companion.second, companion.distance
            other, there = (second, distance) if position == first else (first, -distance)
            there += above[position]
            if other not in above:
                above[other] = there
                todo.append(other)
            elif above[other] != there or (first == second and distance):
                one, two = problem.buffers[start].id, problem.buffers[other].id
                raise ProblemError(
                    f"companions contradict each other: {two} must lie both {above[other]} and "
                    f"{there} bytes above {one}"
                )
    return above


def _rigid_group(problem: Problem, above: dict[int, int]) -> RigidGroup:
    lowest = min(above.values())
    members = tuple((position, above[position] - lowest) for position in sorted(above))
    residue = _lowest_aligned_offset(problem, members)
    pin, pinned = None, ""
    for position, distance in members:
        buffer = problem.buffers[position]
        if buffer.pinned is None:
            continue
        if pin is None:
            pin, pinned = buffer.pinned - distance, buffer.id
        if buffer.pinned - distance != pin:
            what = f"its companion {pinned} puts it at {pin + distance}"
            raise ProblemError(f"buffer {buffer.id} is pinned to {buffer.pinned}, but {what}")
    if pin is not None:
        _check_pin(problem, members, pin, pinned)
    return RigidGroup(members, residue, pin)


def _lowest_aligned_offset(problem: Problem, members: tuple[tuple[int, int], ...]) -> int:
    """Return the lowest offset of the group with all members aligned (Chinese remainder theorem)."""
    residue, step = 0, 1
    for position, distance in members:
        buffer: Buffer = problem.buffers[position]
        common = gcd(step, buffer.alignment)
        missing = -distance - residue
        if missing % common:
            raise ProblemError(
                f"buffer {buffer.id} lies {distance} bytes above the lowest of its companions, but no offset "
                f"satisfies its alignment {buffer.alignment} and theirs"
            )
        turns = missing // common * pow(step // common, -1, buffer.alignment // common)
        residue += step * (turns % (buffer.alignment // common))
        step = lcm(step, buffer.alignment)
    return residue


def _check_pin(problem: Problem, members: tuple[tuple[int, int], ...], pin: int, pinned: str) -> None:
    """Raise ProblemError if a pin puts a member below 0 or off its alignment."""
    for position, distance in members:
        buffer = problem.buffers[position]
        offset = pin + distance
        if offset < 0 or offset % buffer.alignment:
            why = "below 0" if offset < 0 else f"no multiple of its alignment {buffer.alignment}"
            what = f"its companion {pinned} is pinned, which puts it at {offset}: {why}"
            raise ProblemError(f"buffer {buffer.id}: {what}")


@dataclass(frozen=True)
class NormalizedProblem:
    """A normalized problem with the buffers of `question` at the same positions; original offsets are `shifts` higher.

    pinned_down  the original without pairs in `may_overlap`, with every offset pinned that a pin implies
    exact        True if no packing of the original is smaller than the smallest of the normalized problem
    """

    original: Problem
    with_pins: Problem
    problem: Problem
    shifts: tuple[int, ...]
    exact: bool

    def original_packing(self, packing: Packing) -> Packing:
        """Return a packing of the normalized problem as a packing of the original."""
        if not any(self.shifts):
            return packing
        offsets = tuple(offset + shift for offset, shift in zip(packing.offsets, self.shifts, strict=True))
        placed = zip(offsets, self.original.buffers, strict=True)
        arena = max((offset + buffer.size for offset, buffer in placed if buffer.size), default=0)
        return replace(packing, offsets=offsets, arena_bytes=arena)


def normalize(question: Problem) -> NormalizedProblem:
    """Return the normal form of a problem.

    Raises ProblemError when no packing can exist: companions or pins contradict each other, an
    alignment, or a conflict.
    """
    problem = overlaps_as_precedence(question)
    tied = groups_of(problem)
    free = [group for group in tied if group.pin is None and group.has_distances]
    pins = {member: group.pin + d for group in tied if group.pin is not None for member, d in group.members}
    shifts = [0] * len(problem.buffers)
    if pins:
        problem = replace(
            problem,
            buffers=tuple(replace(b, pinned=pins.get(i, b.pinned)) for i, b in enumerate(problem.buffers)),
            companions=tuple(c for c in problem.companions if c.first not in pins),
        )
    if problem.has_pins:
        _check_pins(problem)
    if not free:
        return NormalizedProblem(question, problem, problem, tuple(shifts), True)
    folding = _GroupFolding(problem)
    for group in free:
        folding.fold_group(group)
        for member, distance in group.members:
            shifts[member] = group.lowest_offset + distance
    return NormalizedProblem(question, problem, folding.folded_problem(), tuple(shifts), folding.exact)


MOST_BUFFERS = 8_192
"""Most buffers of a problem with `may_overlap`: the matrices of all pairs take 320 MiB. More raise ProblemError."""


def overlaps_as_precedence(problem: Problem) -> Problem:
    """Return the problem with `may_overlap` expressed as a precedence. Raises ProblemError above MOST_BUFFERS."""
    if not problem.may_overlap:
        return problem
    count = len(problem.buffers)
    if count > MOST_BUFFERS:
        raise ProblemError(f"{count} buffers with `may_overlap` exceed the limit of {MOST_BUFFERS} buffers")
    precedence = problem.precedence or _precedence_of(problem)
    compatible = np.zeros((count, count), dtype=np.bool_)
    if precedence.compatible is not None:
        compatible |= precedence.compatible
    first, second = np.array(problem.may_overlap, dtype=np.int64).T
    compatible[first, second] = compatible[second, first] = True
    return replace(problem, precedence=Precedence(precedence.distance, compatible), may_overlap=())


def _precedence_of(problem: Problem) -> Precedence:
    """Return the lifetimes as a precedence: hops as in `reuse_order`; lifetimes inside gaps are compatible."""
    count = len(problem.buffers)
    lower = np.array([buffer.lower for buffer in problem.buffers], dtype=np.int64)
    upper = np.array([buffer.upper for buffer in problem.buffers], dtype=np.int64)
    conflicts = conflicts_of(replace(problem, may_overlap=()))
    distance = np.zeros((count, count), dtype=np.int32)
    compatible = np.zeros((count, count), dtype=np.bool_)
    for position in range(count):
        distance[position] = np.clip(lower - upper[position] + 1, 0, np.iinfo(np.int32).max)
        compatible[position] = ~conflicts.row(position)
    np.fill_diagonal(compatible, False)
    return Precedence(distance, compatible)


def _check_pins(problem: Problem) -> None:
    """Raise ProblemError when two pinned buffers conflict and overlap."""
    conflicts = conflicts_of(problem)
    pinned = [(b.pinned, i) for i, b in enumerate(problem.buffers) if b.pinned is not None and b.size]
    active: list[int] = []
    for pin, position in sorted(pinned):
        active = [other for other in active if _pinned_end(problem.buffers[other]) > pin]
        row = conflicts.row(position) if active else None
        for other in active:
            if row is not None and row[other]:
                a, b = problem.buffers[other], problem.buffers[position]
                raise ProblemError(
                    f"buffers {a.id} and {b.id} are alive together but pinned to bytes {a.pinned}-{_pinned_end(a)} and "
                    f"{b.pinned}-{_pinned_end(b)}, which overlap"
                )
        active.append(position)


def _pinned_end(buffer: Buffer) -> int:
    return (buffer.pinned or 0) + buffer.size


class _GroupFolding:
    """Folds groups of companions at distances, one after another, into companions at one offset."""

    def __init__(self, problem: Problem) -> None:
        self.exact = True
        self._problem = problem
        self._conflicts: Conflicts = conflicts_of(problem)
        self._sized = np.array([buffer.size > 0 for buffer in problem.buffers], dtype=np.bool_)
        self._buffers = list(problem.buffers)
        order = problem.precedence
        self._distance = None if order is None else order.distance.copy()
        self._conflicting = None if order is None else order.conflicts()

    def fold_group(self, group: RigidGroup) -> None:
        """Fold one group: each conflict component of its members becomes one buffer at the origin of the group."""
        distance = dict(group.members)
        reach = {member: group.lowest_offset + d + self._problem.buffers[member].size for member, d in group.members}
        if max(reach.values()) > MAX_SIZE:
            raise ProblemError(f"buffer {self._buffers[max(reach, key=reach.__getitem__)].id}: ends beyond 2^62")
        rows = {member: self._conflicts.row(member) for member in distance if self._sized[member]}
        self._refuse_overlaps(distance, rows)
        outside = self._sized.copy()
        outside[list(distance)] = False
        for parts in _components(rows):
            merged_row = np.logical_or.reduce([rows[part] for part in parts]) & outside
            size = max(reach[part] for part in parts)
            self.exact &= any(
                distance[m] + group.lowest_offset == 0
                and self._problem.buffers[m].size >= size
                and not (merged_row & ~row).any()
                for m, row in rows.items()
            )
            self._merge_parts(parts, size)

    def _refuse_overlaps(self, distance: dict[int, int], rows: dict[int, Mask]) -> None:
        """Raise ProblemError when two conflicting members of a group overlap."""
        for a, row in rows.items():
            for b in rows:
                one, other = self._problem.buffers[a], self._problem.buffers[b]
                if a < b and row[b] and -one.size < distance[a] - distance[b] < other.size:
                    raise ProblemError(
                        f"buffers {one.id} and {other.id} are companions but conflict: {other.id} lies "
                        f"{distance[b] - distance[a]} bytes above {one.id}, so they overlap while both are alive "
                        "(declare the pair in `may_overlap` if overlap is intended)"
                    )

    def _merge_parts(self, parts: list[int], size: int) -> None:
        """Merge the live ranges of all parts into the first part; the other parts shrink to 0 bytes."""
        first, *others = parts
        for part in others:
            self._buffers[part] = replace(self._buffers[part], size=0)
        if self._distance is not None and self._conflicting is not None and others:
            after, before = self._distance[parts], self._distance[:, parts]
            self._distance[first] = np.where((after > 0).all(axis=0), after.max(axis=0), 0)
            self._distance[:, first] = np.where((before > 0).all(axis=1), before.max(axis=1), 0)
            merged: Mask = np.logical_or.reduce(self._conflicting[parts])
            merged[first] = False
            self._conflicting[first] = self._conflicting[:, first] = merged
        pieces = merge(piece for part in parts for piece in self._problem.buffers[part].pieces)
        self._buffers[first] = replace(
            self._buffers[first], size=size, lower=pieces[0][0], upper=pieces[-1][1], gaps=gaps(pieces)
        )

    def folded_problem(self) -> Problem:
        """Return the problem with all folded groups at one offset."""
        precedence = None
        if self._distance is not None and self._conflicting is not None:
            compatible = ~self._conflicting
            np.fill_diagonal(compatible, False)
            precedence = Precedence(self._distance, compatible)
        companions = tuple(replace(companion, distance=0) for companion in self._problem.companions)
        return replace(self._problem, buffers=tuple(self._buffers), precedence=precedence, companions=companions)


def _components(rows: dict[int, Mask]) -> list[list[int]]:
    """Return the connected components of the conflict graph of the members, ordered by first member."""
    waiting = list(rows)
    components = []
    while waiting:
        parts = [waiting.pop(0)]
        for part in parts:
            neighbours = [other for other in waiting if rows[part][other]]
            parts.extend(neighbours)
            waiting = [other for other in waiting if other not in neighbours]
        components.append(sorted(parts))
    return components


# Conversion of packing problems to the form of the C++ core.
#
# The core runs the inner loops: greedy placement and the search. The core counts bytes in 64 bits, so the conversion
# refuses a problem whose buffers could reach beyond 2^62 bytes.

Numbers = NDArray[np.int64]

_latest: tuple[weakref.ref[Problem], _core.Problem] | None = None
"""Cache of one entry: the strategies of one `pack` convert the same problem in turn."""


def core_of(problem: Problem) -> _core.Problem:
    """Return a normalized problem in the form of the core. Raises ProblemError when offsets could exceed 2^62."""
    global _latest
    if _latest is not None and _latest[0]() is problem:
        return _latest[1]
    check_reach(problem)
    if problem.may_overlap or any(companion.distance for companion in problem.companions):
        raise ProblemError("the core takes normalized problems: pass `normalize(problem).problem`")
    if problem.companions:
        clusters_of(problem, conflicts_of(problem))  # raises ProblemError for companions in conflict
    core = _new_core_problem(problem)
    _latest = (weakref.ref(problem), core)
    return core


def core_with_shifts(problem: Problem, shifts: Sequence[int]) -> _core.Problem:
    """Return a problem whose companions lie at `shifts` bytes above a common offset; greedy placement only."""
    core = _new_core_problem(problem)
    core.set_shifts(_int64_array(shifts))
    return core


def check_reach(problem: Problem) -> None:
    """Raise ProblemError unless all buffers stacked on top of each other end below 2^62.

    The bound counts the common multiple of all alignments, to which some strategies round.
    """
    common = lcm(*(buffer.alignment for buffer in problem.buffers))
    reach = sum(buffer.size for buffer in problem.buffers) + common * (len(problem.buffers) + 1)
    reach += max((buffer.pinned or 0 for buffer in problem.buffers), default=0)
    if reach > MAX_SIZE:
        what = f"{reach} bytes with their alignments, whose common multiple is {common}"
        raise ProblemError(f"the buffers together may need {what}; the limit is 2^62")


def _new_core_problem(problem: Problem) -> _core.Problem:
    buffers = problem.buffers
    pieces = [list(buffer.pieces) for buffer in buffers] if any(b.gaps for b in buffers) else None
    if pieces is None:
        first_piece = np.arange(len(buffers) + 1, dtype=np.int64)
        begins, ends = _int64_array([b.lower for b in buffers]), _int64_array([b.upper for b in buffers])
    else:
        first_piece = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        begins = _int64_array([begin for ranges in pieces for begin, _ in ranges])
        ends = _int64_array([end for ranges in pieces for _, end in ranges])
    core = _core.problem(
        sizes=_int64_array([buffer.size for buffer in buffers]),
        alignments=_int64_array([buffer.alignment for buffer in buffers]),
        pinned=_int64_array([-1 if buffer.pinned is None else buffer.pinned for buffer in buffers]),
        first_piece=first_piece,
        begins=begins,
        ends=ends,
        companions=np.array([(c.first, c.second) for c in problem.companions], dtype=np.int32).reshape(-1, 2),
    )
    if problem.precedence is not None:
        pairs = np.argwhere(np.triu(problem.precedence.conflicts()))
        core.set_conflicts(np.ascontiguousarray(pairs, dtype=np.int32))
    return core


def _int64_array(numbers: Sequence[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)

"""Rigid groups: buffers with fixed distances between their offsets, and the valid offsets of each group."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from sublet.base.errors import ProblemError
from sublet.packing.problem import Buffer, Companion, Problem


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

"""Small random problems of every kind, and the best packing of them by trying everything."""

from __future__ import annotations

from math import lcm

import numpy as np
from hypothesis import strategies as st

from sublet.packing import Buffer, Companion, Precedence, Problem

SMALL_SIZES = st.integers(0, 12)
SMALL_ALIGNMENTS = st.sampled_from([1, 1, 2, 3, 4, 8])


def conflict_pairs(problem: Problem) -> set[tuple[int, int]]:
    """Ascending pairs of positions that need bytes at the same time, one pair after another."""
    pairs = set()
    for j, b in enumerate(problem.buffers):
        for i, a in enumerate(problem.buffers[:j]):
            if problem.precedence is not None:
                order = problem.precedence
                alive = not order.distance[i, j] and not order.distance[j, i]
                alive = alive and not (order.compatible is not None and order.compatible[i, j])
            else:
                times = set(range(a.lower, a.upper)) - {t for begin, end in a.gaps for t in range(begin, end)}
                alive = any(
                    t in times and not any(begin <= t < end for begin, end in b.gaps) for t in range(b.lower, b.upper)
                )
            if alive:
                pairs.add((i, j))
    return pairs


def smallest_arena(problem: Problem) -> int:
    """The optimum: in the order of their offsets, every group of companions lies as low as the earlier allow."""
    conflicts = conflict_pairs(problem)
    groups: list[list[int]] = []
    ties = [(companion.first, companion.second) for companion in problem.companions]
    for position in range(len(problem.buffers)):
        linked = {other for pair in ties if position in pair for other in pair}
        joined = [group for group in groups if linked & set(group)]
        groups = [group for group in groups if group not in joined]
        groups.append(sorted([position, *(member for group in joined for member in group)]))
    sizes = [buffer.size for buffer in problem.buffers]
    apart = [
        [other for other, size in enumerate(sizes) if size and (min(p, other), max(p, other)) in conflicts]
        if sizes[p]
        else []
        for p in range(len(sizes))
    ]
    steps = [lcm(*(problem.buffers[member].alignment for member in group)) for group in groups]
    best = sum(sizes) + sum(steps)

    def stack(offsets: dict[int, int], left: list[int], arena: int) -> None:
        nonlocal best
        if not left:
            best = arena
        for index in left:
            below = [offsets[o] + sizes[o] for member in groups[index] for o in apart[member] if o in offsets]
            offset = -(-max(below, default=0) // steps[index]) * steps[index]
            top = max(arena, *(offset + sizes[member] for member in groups[index]))
            if top < best:
                placed = {**offsets, **dict.fromkeys(groups[index], offset)}
                stack(placed, [other for other in left if other != index], top)

    stack({}, list(range(len(groups))), 0)
    return best


@st.composite
def buffers(draw: st.DrawFn, index: int, sizes: st.SearchStrategy[int], alignments: st.SearchStrategy[int]) -> Buffer:
    times = sorted(draw(st.sets(st.integers(0, 12), min_size=2, max_size=6)))
    if len(times) % 2:
        times.pop()
    gaps = tuple(zip(times[1:-1:2], times[2:-1:2], strict=True))
    return Buffer(f"b{index}", draw(sizes), times[0], times[-1], draw(alignments), gaps)


@st.composite
def problems(
    draw: st.DrawFn,
    most: int = 6,
    sizes: st.SearchStrategy[int] = SMALL_SIZES,
    alignments: st.SearchStrategy[int] = SMALL_ALIGNMENTS,
) -> Problem:
    """Lifetimes with gaps, or a partial order with compatible pairs; with companions that do not conflict."""
    count = draw(st.integers(0, most))
    items = tuple(draw(buffers(index, sizes, alignments)) for index in range(count))
    problem = Problem(items, draw(precedences(count)) if draw(st.booleans()) else None)
    conflicts = conflict_pairs(problem)
    free = [(i, j) for j in range(count) for i in range(j) if (i, j) not in conflicts]
    companions: list[tuple[int, int]] = []
    for pair in draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else []:
        members = {p for other in companions if set(other) & set(pair) for p in other} | set(pair)
        if not any((i, j) in conflicts for i in members for j in members):
            companions.append(pair)
    return Problem(items, problem.precedence, tuple(Companion(*pair) for pair in companions))


@st.composite
def precedences(draw: st.DrawFn, count: int) -> Precedence:
    """i precedes j when i ends before j begins on both of two clocks; distances are longest chains."""
    lives = []
    for _ in range(count):
        clocks = [sorted(draw(st.tuples(st.integers(0, 8), st.integers(0, 8)))) for _ in range(2)]
        lives.append([(begin, end + 1) for begin, end in clocks])
    distance = np.zeros((count, count), dtype=np.int32)
    order = sorted(range(count), key=lambda i: lives[i][0][0])
    for j in order:
        for i in order:
            if all(lives[i][clock][1] <= lives[j][clock][0] for clock in range(2)):
                between = [distance[i, k] + distance[k, j] for k in range(count) if distance[i, k] and distance[k, j]]
                distance[i, j] = max(between, default=1)
    marks = draw(st.lists(st.booleans(), min_size=count * count, max_size=count * count))
    compatible = np.array(marks, dtype=np.bool_).reshape(count, count) if draw(st.booleans()) else None
    if compatible is not None:
        compatible = (compatible & compatible.T) & (distance == 0) & (distance.T == 0)
        np.fill_diagonal(compatible, False)
    return Precedence(distance, compatible)

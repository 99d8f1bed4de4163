"""Small problems: what `pack` proves to be the smallest arena is what trying everything finds."""

from __future__ import annotations

import random
from operator import add

from sublet.packing import Buffer, Problem, check_packing, pack

MOMENTS = range(8)


def random_problem(seed: int) -> Problem:
    rng = random.Random(seed)
    largest, alignments = rng.choice([3, 9, 40]), rng.choice([(1,), (1, 2, 4), (4,), (3, 8)])
    buffers = []
    for index in range(rng.randrange(5, 11)):
        times = sorted(rng.sample(range(len(MOMENTS) + 1), rng.choice([2, 2, 2, 4])))
        gaps = ((times[1], times[2]),) if len(times) == 4 else ()
        size = rng.randrange(1, largest + 1)
        buffers.append(Buffer(str(index), size, times[0], times[-1], rng.choice(alignments), gaps))
    return Problem(tuple(buffers))


def smallest_arena(problem: Problem) -> int:
    """In the order of their offsets, every buffer lies on what lies below it; so all orders are tried.

    What is taken at each moment says all about the buffers placed; an order is given up when the bytes
    still to place at some moment do not fit under the best arena.
    """
    alive = [[t for begin, end in b.pieces for t in range(begin, end)] for b in problem.buffers]
    best = sum(b.size + b.alignment for b in problem.buffers)
    seen: set[tuple[tuple[int, ...], frozenset[int]]] = set()

    def place(taken: tuple[int, ...], rest: tuple[int, ...], left: frozenset[int]) -> None:
        """`rest` is what is still to place at each moment."""
        nonlocal best
        if best == peak or max(map(add, taken, rest)) >= best or (taken, left) in seen:
            return
        seen.add((taken, left))
        if not left:
            best = max(taken)
        for i in sorted(left):
            step = problem.buffers[i].alignment
            offset = -(-max(taken[t] for t in alive[i]) // step) * step
            size = problem.buffers[i].size
            higher, less = list(taken), list(rest)
            for t in alive[i]:
                higher[t] = offset + size
                less[t] -= size
            place(tuple(higher), tuple(less), left - {i})

    everything = tuple(sum(b.size for b, at in zip(problem.buffers, alive, strict=True) if t in at) for t in MOMENTS)
    peak = max(everything)
    place((0,) * len(MOMENTS), everything, frozenset(range(len(problem.buffers))))
    return best


def test_the_arena_is_the_smallest_and_the_bound_says_so() -> None:
    """The core alone is held against thousands of these in `tests/core/check.cpp`."""
    for seed in range(30):
        problem = random_problem(seed)
        report = pack(problem)
        check_packing(problem, report.packing)
        assert report.packing.arena_bytes == report.bound.bytes == smallest_arena(problem), seed

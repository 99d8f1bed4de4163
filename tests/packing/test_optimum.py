"""Small problems: what `pack` proves to be the smallest arena is what trying everything finds."""

from __future__ import annotations

import random

import pytest

from sublet.packing import Buffer, Problem, check_packing, pack

MOMENTS = 8


def random_problem(seed: int) -> Problem:
    rng = random.Random(seed)
    largest, alignments = rng.choice([3, 9, 40]), rng.choice([(1,), (1, 2, 4), (4,), (3, 8)])
    buffers = []
    for index in range(rng.randrange(5, 11)):
        times = sorted(rng.sample(range(MOMENTS + 1), rng.choice([2, 2, 2, 4])))
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

    def least(taken: tuple[int, ...], left: frozenset[int]) -> int:
        return max(taken[t] + sum(problem.buffers[i].size for i in left if t in alive[i]) for t in range(MOMENTS))

    def place(taken: tuple[int, ...], left: frozenset[int]) -> None:
        nonlocal best
        if best == peak or least(taken, left) >= best or (taken, left) in seen:
            return
        seen.add((taken, left))
        if not left:
            best = max(taken)
        for i in sorted(left):
            step = problem.buffers[i].alignment
            offset = -(-max(taken[t] for t in alive[i]) // step) * step
            top = offset + problem.buffers[i].size
            place(tuple(top if t in alive[i] else taken[t] for t in range(MOMENTS)), left - {i})

    everything = (0,) * MOMENTS, frozenset(range(len(problem.buffers)))
    peak = least(*everything)
    place(*everything)
    return best


@pytest.mark.parametrize("chunk", range(4))
def test_the_arena_is_the_smallest_and_the_bound_says_so(chunk: int) -> None:
    for seed in range(20 * chunk, 20 * chunk + 20):
        problem = random_problem(seed)
        report = pack(problem)
        check_packing(problem, report.packing)
        assert report.packing.arena_bytes == report.bound.bytes == smallest_arena(problem), seed

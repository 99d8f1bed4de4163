"""Live bytes over points, against a sum at every point."""

from __future__ import annotations

import random

import pytest

from sublet.base.ranges import LiveCurve, Ranges, merge, union_length

Sizes = list[tuple[Ranges, int]]


def random_sizes(rng: random.Random) -> Sizes:
    """Return up to 8 sizes, live in up to 3 ranges each, between -4 and 12."""
    begins = [[rng.randrange(-4, 9) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(9))]
    return [(merge((at, at + rng.randrange(4)) for at in some), rng.randrange(5)) for some in begins]


def bytes_by_point(sizes: Sizes) -> list[int]:
    """Return the live bytes at each point from -5 to 13."""
    return [
        sum(nbytes for ranges, nbytes in sizes if any(begin <= point < end for begin, end in ranges))
        for point in range(-5, 14)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_a_curve_is_the_sum_at_every_point(seed: int) -> None:
    rng = random.Random(seed)
    sizes = random_sizes(rng)
    curve, expected = LiveCurve.from_sizes(sizes), bytes_by_point(sizes)
    steps = [[level for at, level in curve if at <= point][-1:] for point in range(-5, 14)]
    assert [sum(step) for step in steps] == expected
    assert curve.peak_bytes == max(expected)
    assert curve.peak == ((0, 0) if not curve else (expected.index(max(expected)) - 5, max(expected)))
    assert [before[1] for before in curve][-1:] in ([], [0])
    part = [(ranges, rng.randrange(nbytes + 1)) for ranges, nbytes in sizes if rng.random() < 0.5]
    removed = bytes_by_point(part)
    assert curve.peak_without(part) == max(a - b for a, b in zip(expected, removed, strict=True))
    ranges = merge((at, at + rng.randrange(1, 4)) for at in rng.sample(range(-5, 11), rng.randrange(4)))
    inside = {point: expected[point + 5] for begin, end in ranges for point in range(begin, end)}
    if most := max(inside.values(), default=0):
        assert curve.peak_within(ranges) == (min(point for point, level in inside.items() if level == most), most)
    columns = rng.choice((1, 3, 6, 18, 36))
    highest = [
        max(expected[i * 18 // columns : max(-(-(i + 1) * 18 // columns), i * 18 // columns + 1)])
        for i in range(columns)
    ]
    assert curve.peak_by_column(-5, 13, columns) == highest


def test_the_union_of_ranges_counts_each_number_once() -> None:
    assert union_length([(0, 4), (2, 6), (8, 9), (5, 5)]) == 7
    assert union_length([]) == 0

"""Expressions over ranges: comparisons hold at every point, or are not made."""

from __future__ import annotations

import itertools
import random

import pytest

from sublet.base.boxes import Box, Range
from sublet.base.errors import RunError, SubletError
from sublet.base.extents import (
    Extent,
    Undecided,
    bounds_of,
    exact_quotient,
    extent_at,
    greatest,
    least,
    upper_bound,
)

RANGES = (Range("x", 0, 5), Range("y", 1, 4), Range("z", 2, 7))
POINTS = [
    dict(zip("xyz", numbers, strict=True))
    for numbers in itertools.product(*(range(each.low, each.high + 1) for each in RANGES))
]


def expression(rng: random.Random, depth: int) -> Extent | int:
    """A random expression over x, y and z."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice([*(each.extent for each in RANGES), rng.randint(-3, 6)])
    left, right = expression(rng, depth - 1), expression(rng, depth - 1)
    way = rng.choice("++-**/mM")
    if way == "/":
        return left // rng.randint(1, 5)
    if way in "mM":
        return least(left, right) if way == "m" else greatest(left, right)
    return left + right if way == "+" else left - right if way == "-" else left * right


def test_a_decided_comparison_holds_at_every_point() -> None:
    rng, decided = random.Random(1), 0
    for _ in range(600):
        left, right = expression(rng, 3), expression(rng, 3)
        numbers = [(extent_at(left, point), extent_at(right, point)) for point in POINTS]
        try:
            found = left < right
        except Undecided:
            continue
        decided += 1
        assert all((one < other) == found for one, other in numbers), (left, right)
    assert decided > 200


def test_expressions_compute_like_their_numbers() -> None:
    rng = random.Random(2)
    for _ in range(600):
        left, right = expression(rng, 3), expression(rng, 3)
        for point in rng.sample(POINTS, 5):
            one, other = extent_at(left, point), extent_at(right, point)
            assert extent_at(left + right, point) == one + other
            assert extent_at(left * right, point) == one * other
            assert extent_at(left // 3, point) == one // 3
            assert extent_at(left % 4, point) == one % 4
            assert (left == right) <= (one == other)


def test_bounds_hold_and_are_exact_for_one_dimension() -> None:
    rng = random.Random(3)
    for _ in range(400):
        found = expression(rng, 3)
        numbers = [extent_at(found, point) for point in POINTS]
        low, high = bounds_of(found)
        assert low <= min(numbers) <= max(numbers) <= high
        if isinstance(found, Extent) and len(found.dimensions) == 1:
            assert (low, high) == (min(numbers), max(numbers))


def test_sizes_of_whole_bytes_keep_no_division() -> None:
    x, y = RANGES[0].extent, RANGES[1].extent
    assert str((x * y * 32 + 7) // 8) == "4*x*y"
    assert (64 * x * y) % 64 == 0
    assert str(((x - 1) // 2 - 1) // 4) == "((x - 3)//8)"


def test_equality_is_false_where_it_is_not_proven() -> None:
    x, y = Range("x", 1, 8).extent, Range("y", 1, 8).extent
    assert x != y
    assert x + y == y + x
    with pytest.raises(Undecided):
        bool(x - y)


def test_a_quotient_needs_a_divisor_of_every_term() -> None:
    x, y = Range("x", 1, 8).extent, Range("y", 1, 8).extent
    assert (x * y * 6) // (y * 2) == 3 * x
    with pytest.raises(Undecided):
        exact_quotient(x * y + 1, y)


def test_a_box_is_cut_where_the_sign_changes() -> None:
    box = Box((Range("x", 0, 9).dimension, Range("y", 1, 4).dimension))
    x = Range("x", 0, 9).extent
    assert isinstance(x, Extent)
    halves = box.split(x)
    assert halves is not None
    assert [str(each) for each in halves] == ["x=0..0, y=1..4", "x=1..9, y=1..4"]
    assert [extent_at(each.substitution_from(box)(3 * x + 1), {"x": 2}) for each in halves] == [1, 7]


def test_ranges_have_steps_and_refuse_extents_outside() -> None:
    wide = Range("w", 64, 960, 32)
    assert upper_bound(wide.extent) == 960
    assert wide.number_of(128) == 4
    for extent in (32, 100, 992):
        with pytest.raises(RunError, match="w ranges from 64 to 960, in multiples of 32"):
            wide.number_of(extent)
    for wrong in ((3, 2), (-1, 4), (60, 960, 32)):
        with pytest.raises(SubletError, match="w="):
            Range("w", *wrong)

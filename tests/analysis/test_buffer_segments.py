"""What buffers need at each point: strips of bytes, held against every byte at every point."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sublet.base.ranges import LiveSegment, holds, merge, single_segment, split_into_segments

POINTS = 12


def members(rng: random.Random, alignment: int) -> list[LiveSegment]:
    """Values that begin at aligned places of a buffer; some never live."""
    found = []
    for _ in range(rng.randrange(1, 9)):
        begin = alignment * rng.randrange(6)
        lives = [(first, rng.randrange(first + 1, POINTS + 1)) for first in rng.sample(range(POINTS), rng.randrange(3))]
        found.append(LiveSegment(begin, begin + rng.randrange(1, 4 * alignment), merge(lives)))
    return found


@pytest.mark.parametrize("alignment", [1, 4])
def test_a_byte_is_needed_when_a_value_in_its_cell_is_needed(alignment: int) -> None:
    for seed in range(300):
        several = members(random.Random(seed), alignment)
        found = split_into_segments(several, alignment)
        assert all(strip.begin % alignment == 0 and strip.live for strip in found)
        assert all(one.end <= other.begin for one, other in pairwise(found))
        for cell in range(10):
            low, high = cell * alignment, (cell + 1) * alignment
            for point in range(POINTS):
                needed = any(m.begin < high and low < m.end and holds(m.live, point) for m in several)
                lies = [s for s in found if s.begin < high and low < s.end and holds(s.live, point)]
                assert len(lies) == needed, (seed, cell, point)
        for member in several:
            assert all(
                any(s.begin <= byte < s.end for s in found) for byte in range(member.begin, member.end) if member.live
            )


def test_neighbours_of_the_same_life_are_one_strip() -> None:
    parts = [
        LiveSegment(0, 4, ((1, 3),)),
        LiveSegment(4, 8, ((1, 3),)),
        LiveSegment(8, 12, ((2, 3),)),
        LiveSegment(0, 12, ((3, 4),)),
    ]
    assert split_into_segments(parts, 4) == (LiveSegment(0, 8, ((1, 4),)), LiveSegment(8, 12, ((2, 4),)))


def test_a_block_is_needed_from_its_first_byte_to_its_last_as_long_as_any_is() -> None:
    assert single_segment([LiveSegment(4, 8, ((1, 2),)), LiveSegment(12, 13, ((3, 5),)), LiveSegment(0, 99, ())]) == (
        LiveSegment(4, 13, ((1, 2), (3, 5))),
    )
    assert single_segment([LiveSegment(0, 4, ())]) == split_into_segments([LiveSegment(0, 4, ())], 4) == ()

"""Lower bounds: what proves them, and that they are as high as they can be."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from sublet.packing import Buffer, Precedence, Problem, lower_bound
from sublet.packing.bounds import heaviest_antichain
from tests.packing.random_problems import conflict_pairs, precedences, problems


@given(problems(most=8))
@settings(max_examples=200, deadline=None)
def test_the_members_conflict_pairwise(problem: Problem) -> None:
    members = lower_bound(problem).members
    assert set(combinations(members, 2)) <= conflict_pairs(problem)


@given(precedences(7), st.lists(st.integers(0, 9), min_size=7, max_size=7))
@settings(max_examples=150, deadline=None)
def test_the_antichain_is_the_heaviest(precedence: Precedence, weights: list[int]) -> None:
    before = precedence.distance > 0
    subsets = (subset for size in range(8) for subset in combinations(range(7), size))
    free = (subset for subset in subsets if not before[np.ix_(subset, subset)].any())
    found = heaviest_antichain(before, weights)
    assert not before[np.ix_(found, found)].any()
    assert sum(weights[i] for i in found) == max(sum(weights[i] for i in subset) for subset in free)


@pytest.mark.parametrize("count", [10, 40, 200])
def test_the_antichain_weighs_what_the_flow_of_scipy_leaves(count: int) -> None:
    """Weighted Dilworth: of all weights, the maximum flow from the sources through the related pairs to the targets."""
    rng = np.random.default_rng(count)
    begins, lengths = rng.integers(0, count, count), rng.integers(1, count // 3, count)
    related = begins[:, None] + lengths[:, None] <= begins[None, :]
    weights = rng.integers(0, 1000, count)
    network = np.zeros((2 * count + 2, 2 * count + 2), np.int32)
    network[-2, :count] = network[count : 2 * count, -1] = weights
    network[:count, count : 2 * count] = related * (1 << 30)
    found = heaviest_antichain(related, weights.tolist())
    assert not related[np.ix_(found, found)].any()
    flow = maximum_flow(csr_array(network), 2 * count, 2 * count + 1).flow_value
    assert sum(weights[i] for i in found) == weights.sum() - flow


def test_weights_beyond_64_bits() -> None:
    before = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=np.bool_)
    assert heaviest_antichain(before, [(1 << 62) - 1, 1 << 62, 1]) == (1,)  # 1 byte of 2^63 is rounded away
    assert heaviest_antichain(before, [3 << 60, 5 << 60, 1 << 60]) == (1, 2)


def test_gaps_are_not_alive() -> None:
    problem = Problem((Buffer("a", 8, 0, 9, gaps=((3, 6),)), Buffer("b", 5, 3, 6), Buffer("c", 1, 0, 9)))
    bound = lower_bound(problem)
    assert (bound.bytes, bound.kind, bound.members) == (9, "peak", (0, 2))


def test_all_but_the_topmost_are_rounded_up_to_the_alignment() -> None:
    assert lower_bound(Problem((Buffer("a", 1, 0, 1, 64), Buffer("b", 65, 0, 1, 64)))).bytes == 64 + 65
    assert lower_bound(Problem((Buffer("a", 1, 0, 1, 64), Buffer("b", 65, 0, 1, 96)))).bytes == 32 + 65
    assert lower_bound(Problem((Buffer("a", 1, 0, 1, 64), Buffer("b", 65, 0, 1, 1)))).bytes == 66


def test_buffers_of_one_alignment_may_prove_more_than_all_that_live_with_them() -> None:
    """Three buffers at multiples of 64 take 2 * 64 + 1 bytes, and the fourth fits between them."""
    three = tuple(Buffer(name, 1, 0, 1, 64) for name in "abc")
    bound = lower_bound(Problem((*three, Buffer("d", 60, 0, 1, 1))))
    assert (bound.bytes, bound.members) == (129, (0, 1, 2))


def test_compatible_buffers_are_not_counted_together() -> None:
    """x conflicts with both arms a and b, which are compatible: 4 + max(3, 2), where a flow alone says 9."""
    compatible = np.zeros((3, 3), dtype=np.bool_)
    compatible[1, 2] = compatible[2, 1] = True
    buffers = (Buffer("x", 4, 0, 4), Buffer("a", 3, 0, 2), Buffer("b", 2, 2, 4))
    bound = lower_bound(Problem(buffers, Precedence(np.zeros((3, 3), dtype=np.int32), compatible)))
    assert (bound.bytes, bound.kind, bound.members) == (7, "antichain", (0, 1))


def test_a_clique_is_found_beside_a_larger_compatible_buffer() -> None:
    """a (5) is compatible with b, c and d (4 each), which conflict: keeping the largest would stop at 5."""
    compatible = np.zeros((4, 4), dtype=np.bool_)
    compatible[0, 1:] = compatible[1:, 0] = True
    buffers = tuple(Buffer(name, 5 if name == "a" else 4, time, time + 1) for time, name in enumerate("abcd"))
    bound = lower_bound(Problem(buffers, Precedence(np.zeros((4, 4), dtype=np.int32), compatible)))
    assert (bound.bytes, bound.members) == (12, (1, 2, 3))


def test_an_antichain_may_be_heavier_than_any_time_of_the_serial_order() -> None:
    """Two streams: a before b, c before d, nothing else ordered; serially a, b, c, d one at a time."""
    distance = np.zeros((4, 4), dtype=np.int32)
    distance[0, 1] = distance[2, 3] = 1
    buffers = tuple(
        Buffer(name, size, time, time + 1) for time, (name, size) in enumerate(zip("abcd", (1, 2, 4, 3), strict=True))
    )
    bound = lower_bound(Problem(buffers, Precedence(distance)))
    assert (bound.bytes, bound.members) == (6, (1, 2))

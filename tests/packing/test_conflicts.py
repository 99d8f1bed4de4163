"""The conflicts of a problem, held against one pair after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.base.errors import ProblemError
from sublet.packing import Buffer, Companion, Precedence, Problem
from sublet.packing.conflicts import clusters_of, conflicts_of
from tests.packing.random_problems import conflict_pairs, problems


@given(problems(most=8))
@settings(max_examples=150, deadline=None)
def test_rows_and_degrees_agree_with_all_pairs(problem: Problem) -> None:
    conflicts = conflicts_of(problem)
    count = len(problem.buffers)
    found = {(i, j) for j in range(count) for i in np.flatnonzero(conflicts.row(j)) if i < j}
    assert found == conflict_pairs(problem)
    assert conflicts.degrees().tolist() == [int(conflicts.row(i).sum()) for i in range(count)]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 5)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_plain_lifetimes(lives: list[tuple[int, int]]) -> None:
    problem = Problem(tuple(Buffer(str(i), 1, begin, begin + length) for i, (begin, length) in enumerate(lives)))
    pairs = conflict_pairs(problem)
    assert conflicts_of(problem).degrees().tolist() == [sum(i in pair for pair in pairs) for i in range(len(lives))]


def test_companions_of_companions_are_one_cluster() -> None:
    buffers = tuple(
        Buffer(str(i), size, i, i + 1, alignment) for i, (size, alignment) in enumerate([(3, 4), (0, 6), (5, 1)])
    )
    problem = Problem(buffers, companions=(Companion(0, 2), Companion(2, 1)))
    (cluster,) = clusters_of(problem, conflicts_of(problem))
    assert (cluster.members, cluster.sized, cluster.size, cluster.alignment) == ((0, 1, 2), (0, 2), 5, 12)


@pytest.mark.parametrize(
    ("distance", "message"),
    [
        (np.zeros((1, 1), np.int32), "shape .* cannot order 2 buffers"),
        (np.array([[0, 1], [1, 0]], np.int32), "0 and 1 each precede the other"),
        (np.array([[1, 0], [0, 0]], np.int32), "0 and 0 each precede the other"),
    ],
)
def test_a_precedence_that_is_no_order_is_refused(distance: np.ndarray, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Problem((Buffer("a", 1, 0, 1), Buffer("b", 1, 0, 1)), Precedence(distance))


def test_companions_must_be_positions() -> None:
    with pytest.raises(ProblemError, match="two positions below 1"):
        Problem((Buffer("a", 1, 0, 1),), companions=(Companion(0, 1),))

"""Disjoint sets, against SciPy's."""

from __future__ import annotations

import random

import pytest
from scipy.cluster.hierarchy import DisjointSet

from sublet.base.disjoint_sets import DisjointSets


@pytest.mark.parametrize("seed", range(50))
def test_sets_are_the_sets_of_scipy(seed: int) -> None:
    rng = random.Random(seed)
    sets, expected = DisjointSets[int](), DisjointSet(range(1000, 1020))
    for _ in range(rng.randrange(20)):
        some = [rng.randrange(1000, 1020) for _ in range(rng.randrange(1, 4))]
        first = sets.find(some[0])
        sets.union(*some)
        for other in some:
            expected.merge(some[0], other)
        assert {sets.find(each) for each in some} == {first}
    for each in range(1000, 1020):
        together = {other for other in range(1000, 1020) if sets.find(other) == sets.find(each)}
        assert together == expected.subset(each)


def test_no_elements_are_no_set() -> None:
    sets = DisjointSets[str]()
    sets.union()
    assert sets.find("a") == "a"

"""A few random training steps in every test run; `make fuzz` goes on for longer."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.training.steps import check_step

SEEDS = (*range(10), 20)
"""Of small steps; `make fuzz` draws more."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_step(seed: int) -> None:
    """Its plans run right, and so do those of their mutants that the checker accepts."""
    judged = Counter(accepted for _, accepted in check_step(seed))
    assert judged[False] > judged[True]

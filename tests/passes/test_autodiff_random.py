"""Gradients and second gradients of random programs with loops and branches, nested, beside finite differences."""

from __future__ import annotations

import pytest

from tests.passes.differences import check
from tests.passes.differentiable import program


@pytest.mark.parametrize("seed", [0, 3, 5, 51, 59, 222])
def test_random_programs(seed: int) -> None:
    graph, feeds = program(seed, size=3)
    check(graph, [value.name for value in graph.outputs], ["x", "y", "w"], feeds, tolerance=1e-5)

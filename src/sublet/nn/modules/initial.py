"""What parameters are drawn from at first: functions of a generator and a shape."""

from __future__ import annotations

from math import prod, sqrt

from sublet.nn.content import Draw


def uniform(bound: float) -> Draw:
    """Numbers in [-bound, bound)."""
    return lambda random, shape: random.uniform(-bound, bound, shape)


def normal(deviation: float) -> Draw:
    """Numbers around 0."""
    return lambda random, shape: random.normal(0, deviation, shape)


def by_fan_in(extents: tuple[int, ...]) -> Draw:
    """Uniform in +-1/sqrt(fan in), as PyTorch's layers start."""
    return uniform(1 / sqrt(max(1, prod(extents))))

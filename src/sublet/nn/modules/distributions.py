"""Initial distributions of parameters: functions of a generator and a shape."""

from __future__ import annotations

from math import prod, sqrt

from sublet.nn.initial_values import Draw


def uniform(bound: float) -> Draw:
    """Return a function drawing numbers uniformly from [-bound, bound)."""
    return lambda random, shape: random.uniform(-bound, bound, shape)


def normal(deviation: float) -> Draw:
    """Return a function drawing numbers from a normal distribution with mean 0 and the given standard deviation."""
    return lambda random, shape: random.normal(0, deviation, shape)


def uniform_by_fan_in(extents: tuple[int, ...]) -> Draw:
    """Return a function drawing uniformly from +-1/sqrt(fan in), as PyTorch's layers do.

    `extents` are the factors of the fan in.
    """
    return uniform(1 / sqrt(max(1, prod(extents))))

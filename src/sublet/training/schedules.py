"""Learning rates as functions of the step, counted from 0 by the optimiser: `Adam(schedules.cosine(0.1, 1000))`.

A schedule is any function of a scalar f32 tensor, or of a number: `cosine(0.1, 1000)(500)` is 0.05.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi
from typing import Any

from sublet.base.errors import SpecError
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Tensor

Schedule = Callable[[Any], Any]
"""A function from the number of the step to the rate: tensor to tensor, number to number, or to a plain number."""


def constant(rate: float) -> Schedule:
    """Return a schedule with the same rate in each step."""
    return lambda step: rate


def piecewise(rates: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """Return a schedule with rate `rates[0]` before step `boundaries[0]`, then `rates[1]` before `boundaries[1]`, etc.

    The last rate holds from the last boundary on. Raises SpecError unless the boundaries are ascending, and one fewer
    than the rates.
    """
    if len(rates) != len(boundaries) + 1 or sorted(boundaries) != list(boundaries):
        raise SpecError(
            at_line(f"{len(rates)} rates need {len(rates) - 1} ascending boundaries, got {list(boundaries)}")
        )

    def rate(step: Any) -> Any:
        selected: Any = rates[-1]
        for limit, before in zip(reversed(boundaries), reversed(rates[:-1]), strict=True):
            selected = _where(step < limit, before, selected)
        return selected

    return rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """Return a schedule from `start` to `end`, linear over `steps` steps and constant afterwards."""
    return lambda step: start + (end - start) * _completed_share(step, steps)


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """Return a schedule from `rate` to `end`, along half a cosine wave over `steps` steps and constant afterwards.

    Source: Loshchilov and Hutter, SGDR, 2017.
    """
    return lambda step: end + (rate - end) * 0.5 * (1 + _cos(_completed_share(step, steps) * pi))


def warmup(steps: int, then: Schedule | float) -> Schedule:
    """Return a schedule growing linearly over `steps` steps to the first rate of `then`, followed by `then`.

    Step k < `steps` has the rate then(0) * (k + 1) / (steps + 1); later steps have then(step - steps). A number for
    `then` is a constant rate.
    """
    after: Schedule = then if callable(then) else constant(then)
    first = after(0)
    return lambda step: _where(step < steps, first * ((step + 1) * (1 / (steps + 1))), after(_maximum(step - steps, 0)))


def _completed_share(step: Any, steps: int) -> Any:
    """Return the completed share of the steps, from 0 to 1."""
    part = step * (1 / steps)
    return part.graph.apply("nn.minimum", part, 1.0)[0] if isinstance(part, Tensor) else min(part, 1.0)


def _maximum(one: Any, other: float) -> Any:
    return one.graph.apply("nn.maximum", one, other)[0] if isinstance(one, Tensor) else max(one, other)


def _cos(angle: Any) -> Any:
    return angle.graph.apply("nn.cos", angle)[0] if isinstance(angle, Tensor) else cos(angle)


def _where(condition: Any, one: Any, other: Any) -> Any:
    if not isinstance(condition, Tensor):
        return one if condition else other
    graph: Any = condition.graph
    chosen = (each if isinstance(each, Tensor) else graph.constant(each, "f32") for each in (one, other))
    return graph.apply("nn.where", condition, *chosen)[0]

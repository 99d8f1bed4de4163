"""Ring alignment: the choice of one period for all delay lines and rotations of a loop (Lam 1988, section 3.3).

A rotation of n carries returns to its first binding after n iterations. A delay line writes its places in turn, a ring,
and repeats after as many iterations as the ring has places. The body versions of a loop repeat after the least common
multiple of all these periods, which may be far more versions than a plan can list. Additional places lengthen a ring,
so that one short period fits: rings of 5, 6 and 7 places repeat after 210 iterations, three rings of 7 places after 7.
A rotation cannot be lengthened; a rotation that fits no short period is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.graph import Value


@dataclass(frozen=True, slots=True)
class CarryPeriod:
    """The period of the binding of a renamed parameter, after at most `delay` iterations.

    `ring` is the value of the body that enters the delay line, None for a rotation or a constant.
    """

    parameter: Value
    period: int
    delay: int
    ring: Value | None = None


@dataclass(frozen=True)
class RingAlignment:
    """The number of places of each ring to lengthen, and the parameters to copy, because they fit no short period."""

    places: Mapping[Value, int] = field(default_factory=dict)
    copied: tuple[Value, ...] = ()


def carry_periods(
    updates: Mapping[Value, Value], renamed: Sequence[Value], ring_sizes: Mapping[Value, int]
) -> list[CarryPeriod] | None:
    """Return the period of every renamed parameter of a loop; None if a branch or an inner loop decides a binding.

    `updates` maps every parameter of the loop to its update. `ring_sizes` maps every value of the body with bytes, and
    every value of the enclosing graphs, to the number of places; a value missing there is itself renamed.
    """
    periods: list[CarryPeriod] = []
    for parameter in renamed:
        position = {parameter: 0}
        source = updates[parameter]
        while source in updates and source not in position:
            position[source] = len(position)
            source = updates[source]
        if source in position:
            periods.append(CarryPeriod(parameter, len(position) - position[source], position[source]))
        elif source in ring_sizes:
            size = ring_sizes[source]
            periods.append(CarryPeriod(parameter, size, len(position), source if size > 1 else None))
        else:
            return None
    return periods


def align_rings(carries: Sequence[CarryPeriod], most_versions: int) -> RingAlignment:
    """Return the alignment with the fewest copied bytes, then the fewest bytes of additional places.

    Prologue and period together have at most `most_versions` body versions.
    """
    candidates = (_alignment_to(carries, period, most_versions - period) for period in range(1, most_versions + 1))
    return min(candidates, key=_cost)


def _alignment_to(carries: Sequence[CarryPeriod], period: int, most_delay: int) -> RingAlignment:
    """Return the alignment of all carries to one period, with at most `most_delay` prologue versions."""
    places: dict[Value, int] = {}
    copied: list[Value] = []
    for carry in carries:
        fits = carry.period <= period if carry.ring else period % carry.period == 0
        if not fits or carry.delay > most_delay:
            copied.append(carry.parameter)
        elif carry.ring:
            places[carry.ring] = next(n for n in range(carry.period, period + 1) if period % n == 0)
    return RingAlignment(places, tuple(copied))


def _cost(alignment: RingAlignment) -> tuple[int, int]:
    """Return the bytes copied in each iteration, and the bytes of all places."""
    return (
        sum(value.nbytes for value in alignment.copied),
        sum(ring.nbytes * count for ring, count in alignment.places.items()),
    )

"""Loops as pictures and words tell them: the copies of a body on the time axis, and which rounds they run in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublet.plan import Context, MemoryPlan, Placement, Rolled

TOLD = 6
"""Copies whose rounds are told for one place; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Band:
    """Points [begin, end) at which one copy of a loop's body lies; the loop is left from it at point `exit`, or -1.

    depth    how many other bands it lies in
    kept     whether it stays when the loop is folded: it is the first of its ring, or the only copy
    repeats  whether more than one round runs it
    """

    loop: str
    label: str
    begin: int
    end: int
    exit: int = -1
    depth: int = 0
    kept: bool = True
    repeats: bool = True


def bands(plan: MemoryPlan) -> tuple[Band, ...]:
    """The bands of all loops, in the order of time."""
    around: list[int] = []
    placed: list[Band] = []
    for band in sorted(_bands(plan), key=lambda band: (band.begin, -band.end)):
        while around and around[-1] <= band.begin:
            around.pop()
        placed.append(replace(band, depth=len(around)))
        around.append(band.end)
    return tuple(placed)


def _bands(plan: MemoryPlan) -> Iterator[Band]:
    """One band for each copy of each body, from the first point of a round to its last."""
    records = {(record.loop, record.within): record for record in plan.rolled}
    at: dict[tuple[str, str, Context], int] = {}
    for i, point in enumerate(plan.points):
        at.setdefault((point.kind, point.node, point.copies), i)
    for (kind, loop, copies), begin in at.items():
        end = at.get(("next", loop, copies), -1) + 1
        if kind != "round" or end <= begin:
            continue
        (_, copy), within = copies[-1] if copies else ("", 0), copies[:-1]
        record = records.get((loop, within))
        if record is None:
            yield Band(loop, f"{loop}: every round", begin, end)
            continue
        left = at.get(("exit", loop, within), -1)  # by the first copy; by the others right after
        label, first = f"{loop}: {rounds_of(record, copy)}", record.first
        exit_ = left + copy if left >= 0 else -1
        yield Band(loop, label, begin, end, exit_, kept=copy == first, repeats=copy >= first)


def rounds_of(record: Rolled, copy: int) -> str:
    """Which rounds run a copy: "round 0", "round 3 and all later ones", "rounds 1, 3, 5, …".

    Where the run decides which copy comes next, "state 2 of 5".
    """
    if record.jumps:
        return f"state {copy + 1} of {record.copies}"
    if copy < record.first:
        return f"round {copy}"
    if record.ring == 1:
        return f"round {copy} and all later ones" if copy else "every round"
    return f"rounds {', '.join(str(copy + i * record.ring) for i in range(3))}, …"


def turns(record: Rolled) -> str:
    """How the values of a loop take turns, in words."""
    within = f" in {' of '.join(f'copy {copy} of {loop}' for loop, copy in reversed(record.within))}"
    where = f"loop {record.loop}{within if record.within else ''}"
    if record.jumps:
        return f"{where}: its values take turns; {record.copies} states, and each round decides which comes next"
    ring = f"a ring of {record.ring}" if record.ring > 1 else "every round alike"
    if record.first:
        before = f"{record.first} round{'s' if record.first > 1 else ''}, then "
        return f"{where}: its values take turns; {before}{ring}"
    return f"{where}: its values take turns in {ring}" if record.ring > 1 else f"{where}: {ring}"


def when(place: Placement, plan: MemoryPlan) -> str:
    """In which rounds of the loops around it a value is at this place; "" for always."""
    records = {(record.loop, record.within): record for record in plan.rolled}
    told = []
    for context in place.copies[:TOLD]:
        parts = []
        for depth, (loop, copy) in enumerate(context):
            record = records.get((loop, context[:depth]))
            parts.append(f"{rounds_of(record, copy) if record else f'copy {copy}'} of {loop}")
        told.append(" in ".join(reversed(parts)))
    more = len(place.copies) - len(told)
    return "; ".join([*told, f"and {more} more"] if more > 0 else told)

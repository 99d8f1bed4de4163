"""Loops as pictures and words tell them: the copies of a body on the time axis, and which rounds they run in."""

from __future__ import annotations

import re
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
    """The bands of all loops, in the order of time; found by the names of the points."""
    found = sorted((*_rolled(plan), *_plain(plan)), key=lambda band: (band.begin, -band.end))
    around: list[int] = []
    placed: list[Band] = []
    for band in found:
        while around and around[-1] <= band.begin:
            around.pop()
        placed.append(replace(band, depth=len(around)))
        around.append(band.end)
    return tuple(placed)


def _rolled(plan: MemoryPlan) -> Iterator[Band]:
    position = {name: i for i, name in reversed(list(enumerate(plan.points)))}
    for record in plan.rolled:
        name = record.loop + _marks(record.within)
        leave = position.get(f"exit {name}", -1)
        for copy in range(record.first + record.ring):
            begin, end = (position.get(f"{kind} {name} @{copy}") for kind in ("round", "next"))
            if begin is not None and end is not None:
                label = f"{record.loop}: {rounds_of(record, copy)}"
                exit_ = leave + copy if leave >= 0 else -1
                first = record.first
                yield Band(record.loop, label, begin, end + 1, exit_, kept=copy == first, repeats=copy >= first)


def _plain(plan: MemoryPlan) -> Iterator[Band]:
    """Loops whose body is there once, or once in each copy of a body around it."""
    unrolled = {f"round {record.loop}{_marks(record.within)} @" for record in plan.rolled}
    for begin, name in enumerate(plan.points):
        if not name.startswith("round ") or any(name.startswith(start) for start in unrolled):
            continue
        last = f"next {name.removeprefix('round ')}"
        end = next((i for i in range(begin, len(plan.points)) if plan.points[i] == last), None)
        if end is not None:
            loop = re.sub(r"( @\d+)*$", "", name.removeprefix("round "))
            yield Band(loop, f"{loop}: every round", begin, end + 1)


def _marks(context: Context) -> str:
    return "".join(f" @{copy}" for _, copy in context)


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

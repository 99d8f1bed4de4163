"""Loops in pictures and texts: the body versions on the time axis, and the iterations running each version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublet.plan import Context, MemoryPlan, Placement, RolledLoop

MAX_LISTED = 6
"""Maximum of listed body versions of one placement; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Band:
    """The points [begin, end) of one body version; the loop exits from the version at point `exit`, or -1.

    depth    the number of enclosing bands
    kept     True if the band stays visible when the loop is folded: first version of the period, or only version
    repeats  True if more than one iteration runs the version
    """

    loop: str
    label: str
    begin: int
    end: int
    exit: int = -1
    depth: int = 0
    kept: bool = True
    repeats: bool = True


def loop_bands(plan: MemoryPlan) -> tuple[Band, ...]:
    """Return the bands of all loops in order of time."""
    enclosing_ends: list[int] = []
    placed: list[Band] = []
    for band in sorted(_flat_bands(plan), key=lambda band: (band.begin, -band.end)):
        while enclosing_ends and enclosing_ends[-1] <= band.begin:
            enclosing_ends.pop()
        placed.append(replace(band, depth=len(enclosing_ends)))
        enclosing_ends.append(band.end)
    return tuple(placed)


def _flat_bands(plan: MemoryPlan) -> Iterator[Band]:
    """Yield a band for each version of each body, from the first point of an iteration to the last, with depth 0."""
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
            yield Band(loop, f"{loop}: every iteration", begin, end)
            continue
        first_exit = at.get(("exit", loop, within), -1)  # of version 0; the other versions exit at the next points
        label, first = f"{loop}: {iterations_of_version(record, copy)}", record.first
        exit_ = first_exit + copy if first_exit >= 0 else -1
        yield Band(loop, label, begin, end, exit_, kept=copy == first, repeats=copy >= first)


def iterations_of_version(record: RolledLoop, copy: int) -> str:
    """Return the iterations running a body version: "iteration 0", "iterations 1, 3, 5, …", or "every iteration".

    If one version runs the rest, "iteration 3 and all later ones". If the run selects the next version, "version 2 of
    5".
    """
    if record.jumps:
        return f"version {copy + 1} of {record.copies}"
    if copy < record.first:
        return f"iteration {copy}"
    if record.ring == 1:
        return f"iteration {copy} and all later ones" if copy else "every iteration"
    return f"iterations {', '.join(str(copy + i * record.ring) for i in range(3))}, …"


def describe_versions(record: RolledLoop) -> str:
    """Return a sentence on the body versions of a loop: prologue and period, or states selected by the run."""
    within = f" in {' of '.join(f'version {copy} of {loop}' for loop, copy in reversed(record.within))}"
    where = f"loop {record.loop}{within if record.within else ''}"
    if record.jumps:
        return f"{where}: {record.copies} body versions; the run selects the version of each next iteration"
    period = f"a period of {record.ring} body versions" if record.ring > 1 else "one body version"
    if record.first:
        prologue = f"{record.first} prologue iteration{'s' if record.first > 1 else ''}"
        return f"{where}: {prologue}, then {period}"
    return f"{where}: {period}"


def iterations_at(place: Placement, plan: MemoryPlan) -> str:
    """Return the iterations during which a value lies at a placement, as text; "" for always."""
    records = {(record.loop, record.within): record for record in plan.rolled}
    descriptions = []
    for context in place.copies[:MAX_LISTED]:
        parts = []
        for depth, (loop, copy) in enumerate(context):
            record = records.get((loop, context[:depth]))
            parts.append(f"{iterations_of_version(record, copy) if record else f'version {copy}'} of {loop}")
        descriptions.append(" in ".join(reversed(parts)))
    omitted = len(place.copies) - len(descriptions)
    return "; ".join([*descriptions, f"and {omitted} more"] if omitted > 0 else descriptions)

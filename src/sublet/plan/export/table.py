"""A plan as a table for a design review: a row for each place of each tensor, as Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from sublet.plan.export.loops import pointers, rounds
from sublet.plan.export.told import Told
from sublet.plan.records import POINTER, MemoryPlan, Placement

COLUMNS = (
    *("tensor", "role", "type", "bytes", "memory", "offset", "end", "alive", "copies"),
    *("why there", "written by"),
)


def markdown(plan: MemoryPlan, told: Told) -> str:
    """The table in Markdown, under a heading with what the plan needs; below it what happens at each point of time."""
    lines = [f"# Memory of {_cell(plan.graph)}", ""]
    lines += [f"- {storage.name}: {storage.nbytes} bytes" for storage in plan.arenas]
    lines += [
        f"- offsets are multiples of {plan.alignment} bytes",
        f"- order and graph: fingerprint {plan.fingerprint}",
    ]
    lines += [f"- **not counted**: {_cell(value.value)} ({_cell(value.reason)})" for value in plan.not_counted]
    lines += [f"- {_cell(line)}" for record in plan.rolled for line in rounds(record)]
    lines += ["", _row(COLUMNS), _row("---" for _ in COLUMNS)]
    lines += [_row(map(_cell, row)) for row in rows(plan, told)]
    lines += ["", _row(("point", "what happens")), _row(("---", "---"))]
    lines += [_row((str(at), _cell(str(point)))) for at, point in enumerate(plan.points)]
    return "\n".join(lines) + "\n"


def comma_separated(plan: MemoryPlan, told: Told) -> str:
    """The table as CSV, values that are not counted among them, with empty offsets."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(plan, told))
    for value in plan.not_counted:
        empty = ("",) * (COLUMNS.index("why there") - 3)
        writer.writerow((value.value, told.roles(value.value), value.type, *empty, f"not counted: {value.reason}", ""))
    return written.getvalue()


def rows(plan: MemoryPlan, told: Told) -> Iterator[tuple[str, ...]]:
    """One row for each placement, in the order of memory and offset."""
    arenas = [storage.name for storage in plan.arenas]
    for place in sorted(plan.in_arenas, key=lambda place: (arenas.index(place.region.storage), place.region.offset)):
        region = place.region
        where = map(str, (region.nbytes, region.storage, region.offset, region.end))
        yield (place.value, told.roles(place.value), place.spec, *where, alive(place), copies(place), why(place),
               place.producer)  # fmt: skip
    standing = pointers(plan, told.graph)
    for place in plan.placements:
        if place.how == POINTER:
            yield (place.value, told.roles(place.value), place.spec, "0", "", "", "", alive(place), copies(place),
                   standing[place.value], "")  # fmt: skip


def alive(place: Placement) -> str:
    """The points at which a value is needed, first and last included."""
    return " ".join(f"{begin}-{end - 1}" for begin, end in place.live)


def copies(place: Placement) -> str:
    """The copies of the bodies of loops in which a value lies there; empty for all."""
    return " ".join("/".join(f"{loop}@{copy}" for loop, copy in context) for context in place.copies)


def why(place: Placement) -> str:
    """Why a value shares bytes, for people; empty for one that has its own."""
    moving = "".join(f", {stride.step:+d} bytes a round of {stride.loop}" for stride in place.strides)
    return (f"{place.how} of {place.shares}" if place.shares else "") + moving


def _cell(text: str) -> str:
    """Text that ends no row and is no mark-up: names come from a stranger's file."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

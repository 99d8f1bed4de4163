"""A plan as a table for a design review: a row for each place of each tensor, as Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from sublet.plan.records import POINTER, MemoryPlan, Placement

COLUMNS = ("tensor", "type", "bytes", "memory", "offset", "end", "alive", "copies", "why there", "written by")


def markdown(plan: MemoryPlan) -> str:
    """The table in Markdown, under a heading with what the plan needs."""
    lines = [f"# Memory of {plan.graph}", ""]
    lines += [f"- {storage.name}: {storage.nbytes} bytes" for storage in plan.arenas]
    lines += [
        f"- offsets are multiples of {plan.alignment} bytes",
        f"- order and graph: fingerprint {plan.fingerprint}",
    ]
    lines += [f"- **not counted**: {value.value} ({value.reason})" for value in plan.not_counted]
    lines += ["", _row(COLUMNS), _row("---" for _ in COLUMNS)]
    lines += [_row(cell.replace("|", "\\|") for cell in row) for row in rows(plan)]
    return "\n".join(lines) + "\n"


def comma_separated(plan: MemoryPlan) -> str:
    """The table as CSV, values that are not counted among them, with empty offsets."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(plan))
    writer.writerows(
        [v.value, v.type, "", "", "", "", "", "", f"not counted: {v.reason}", ""] for v in plan.not_counted
    )
    return written.getvalue()


def rows(plan: MemoryPlan) -> Iterator[tuple[str, ...]]:
    """One row for each placement, in the order of memory and offset."""
    arenas = [storage.name for storage in plan.arenas]
    for place in sorted(plan.in_arenas, key=lambda place: (arenas.index(place.region.storage), place.region.offset)):
        region = place.region
        yield (place.value, place.spec, *map(str, (region.nbytes, region.storage, region.offset, region.end)),
               alive(place), copies(place), why(place), place.producer)  # fmt: skip
    for place in plan.placements:
        if place.how == POINTER:
            names = ", ".join(place.stands_for)
            yield (place.value, place.spec, "0", "", "", "", alive(place), copies(place), f"stands for {names}", "")


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


def _row(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"

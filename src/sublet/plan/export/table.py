"""A plan as a table for a design review: one row for each placement of each tensor, as Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from sublet.plan.export.context import ExportContext
from sublet.plan.export.loops import binding_descriptions, iteration_lines
from sublet.plan.records import POINTER, MemoryPlan, Placement

COLUMNS = (
    *("tensor", "role", "type", "bytes", "memory", "offset", "end", "alive", "copies"),
    *("why there", "written by"),
)


def markdown_table(plan: MemoryPlan, context: ExportContext) -> str:
    """Return the table in Markdown, below a summary of the plan's memory, and followed by the event of each point."""
    lines = [f"# Memory of {_cell(plan.graph)}", ""]
    lines += [f"- {storage.name}: {storage.nbytes} bytes" for storage in plan.arenas]
    lines += [
        f"- offsets are multiples of {plan.alignment} bytes",
        f"- order and graph: fingerprint {plan.fingerprint}",
    ]
    lines += [f"- **not counted**: {_cell(value.value)} ({_cell(value.reason)})" for value in plan.not_counted]
    lines += [f"- {_cell(line)}" for record in plan.rolled for line in iteration_lines(record)]
    lines += ["", _row(COLUMNS), _row("---" for _ in COLUMNS)]
    lines += [_row(map(_cell, row)) for row in table_rows(plan, context)]
    lines += ["", _row(("point", "what happens")), _row(("---", "---"))]
    lines += [_row((str(at), _cell(str(point)))) for at, point in enumerate(plan.points)]
    return "\n".join(lines) + "\n"


def csv_table(plan: MemoryPlan, context: ExportContext) -> str:
    """Return the table as CSV; uncounted values follow with empty offsets."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(table_rows(plan, context))
    for value in plan.not_counted:
        empty = ("",) * (COLUMNS.index("why there") - 3)
        writer.writerow(
            (value.value, context.roles_of(value.value), value.type, *empty, f"not counted: {value.reason}", "")
        )
    return written.getvalue()


def table_rows(plan: MemoryPlan, context: ExportContext) -> Iterator[tuple[str, ...]]:
    """Yield one row for each placement, ordered by memory and offset; rows of renamed values follow."""
    arenas = [storage.name for storage in plan.arenas]
    for place in sorted(plan.in_arenas, key=lambda place: (arenas.index(place.region.storage), place.region.offset)):
        region = place.region
        where = map(str, (region.nbytes, region.storage, region.offset, region.end))
        yield (place.value, context.roles_of(place.value), place.spec, *where, live_points(place),
               body_versions(place), sharing_reason(place), place.producer)  # fmt: skip
    standing = binding_descriptions(plan, context.graph)
    for place in plan.placements:
        if place.how == POINTER:
            yield (place.value, context.roles_of(place.value), place.spec, "0", "", "", "", live_points(place),
                   body_versions(place), standing[place.value], "")  # fmt: skip


def live_points(place: Placement) -> str:
    """Return the live ranges of a placement, first and last points included."""
    return " ".join(f"{begin}-{end - 1}" for begin, end in place.live)


def body_versions(place: Placement) -> str:
    """Return the body versions of a placement; empty for all versions."""
    return " ".join("/".join(f"{loop}@{copy}" for loop, copy in context) for context in place.copies)


def sharing_reason(place: Placement) -> str:
    """Return the reason for sharing bytes, for people; empty for a value with own bytes."""
    moving = "".join(f", {stride.step:+d} bytes an iteration of {stride.loop}" for stride in place.strides)
    return (f"{place.how} of {place.shares}" if place.shares else "") + moving


def _cell(text: str) -> str:
    """Return text safe in a table cell: names come from an untrusted file and may hold row ends or mark-up."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

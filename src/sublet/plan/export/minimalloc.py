"""A plan as MiniMalloc's CSV: one row a buffer, with half-open lifetimes in points of the plan, and the offset.

A buffer with several live segments takes one row a segment: companions at fixed distances.
`sublet check FILE.csv` checks the offsets against these lifetimes; `sublet pack FILE.csv` packs the same buffers again.
"""

from __future__ import annotations

import csv
import io

from sublet.base.ranges import gaps
from sublet.plan.intervals import planned_buffers, require_counted
from sublet.plan.records import MemoryPlan


def minimalloc(plan: MemoryPlan) -> str:
    """Return the CSV of a plan's buffers, named after the owners. Raises PlanError for uncounted values."""
    require_counted(plan, "MiniMalloc's CSV")
    many_arenas, aligned = len(plan.arenas) > 1, plan.alignment > 1
    buffers = list(planned_buffers(plan))
    segmented = any(len(block.segments) > 1 for block in buffers)
    columns = ["id", "lower", "upper", "size", *(["alignment"] if aligned else []), "gaps"]
    columns += ["companion", "distance"] if segmented else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "offset", *(["region"] if many_arenas else [])])
    taken: set[str] = set()
    for block in buffers:
        lowest = block.segments[0]
        first = _unused_name(block.owner.value, taken)
        for strip in block.segments:
            name = first if strip is lowest else _unused_name(first, taken)
            distance = ["", ""] if strip is lowest else [first, strip.begin - lowest.begin]
            row = [name, strip.live[0][0], strip.live[-1][1], strip.nbytes, *([plan.alignment] if aligned else [])]
            row += [" ".join(f"{begin}-{end}" for begin, end in gaps(strip.live)), *(distance if segmented else [])]
            writer.writerow([*row, block.offset + strip.begin, *([block.arena] if many_arenas else [])])
    return text.getvalue()


def _unused_name(base: str, taken: set[str]) -> str:
    """Return a name without a row, and add the name to `taken`: one value may have several rows."""
    name = base
    while name in taken:
        name = f"{base}@{len(taken)}"
    taken.add(name)
    return name

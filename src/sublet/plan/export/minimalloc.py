"""A plan as MiniMalloc's CSV: a row for each buffer, half-open lifetimes in points of the plan, and its offset.

A buffer of which not all bytes are needed as long as any are is a row for each strip of them: companions at distances.
`sublet check FILE.csv` judges it by these lifetimes; `sublet pack FILE.csv` packs the same buffers anew.
"""

from __future__ import annotations

import csv
import io

from sublet.base.ranges import gaps
from sublet.plan.records import MemoryPlan
from sublet.plan.slots import require_counted, slots


def minimalloc(plan: MemoryPlan) -> str:
    """The buffers of a plan, by the values whose bytes they are. Raises PlanError where something is not counted."""
    require_counted(plan, "MiniMalloc's CSV")
    several, aligned = len(plan.arenas) > 1, plan.alignment > 1
    known = list(slots(plan))
    tied = any(len(block.strips) > 1 for block in known)
    columns = ["id", "lower", "upper", "size", *(["alignment"] if aligned else []), "gaps"]
    columns += ["companion", "distance"] if tied else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "offset", *(["region"] if several else [])])
    taken: set[str] = set()
    for block in known:
        lowest = block.strips[0]
        first = _free(block.first.value, taken)
        for strip in block.strips:
            name = first if strip is lowest else _free(first, taken)
            distance = ["", ""] if strip is lowest else [first, strip.begin - lowest.begin]
            row = [name, strip.live[0][0], strip.live[-1][1], strip.nbytes, *([plan.alignment] if aligned else [])]
            row += [" ".join(f"{begin}-{end}" for begin, end in gaps(strip.live)), *(distance if tied else [])]
            writer.writerow([*row, block.offset + strip.begin, *([block.arena] if several else [])])
    return text.getvalue()


def _free(base: str, taken: set[str]) -> str:
    """A name that no row has: a value may lie in several places in turn, and be several strips."""
    name = base
    while name in taken:
        name = f"{base}@{len(taken)}"
    taken.add(name)
    return name

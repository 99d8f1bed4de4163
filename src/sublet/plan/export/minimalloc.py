"""A plan as MiniMalloc's CSV: a row for each buffer, half-open lifetimes in points of the plan, and its offset.

`sublet check FILE.csv` judges it by these lifetimes; `sublet pack FILE.csv` packs the same buffers anew.
"""

from __future__ import annotations

import csv
import io
from itertools import pairwise

from sublet.plan.records import MemoryPlan
from sublet.plan.slots import require_counted, slots


def minimalloc(plan: MemoryPlan) -> str:
    """The buffers of a plan, by the values whose bytes they are. Raises PlanError where something is not counted."""
    require_counted(plan, "MiniMalloc's CSV")
    several, aligned = len(plan.arenas) > 1, plan.alignment > 1
    columns = ["id", "lower", "upper", "size", *(["alignment"] if aligned else []), "gaps", "offset"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *(["region"] if several else [])])
    taken: set[str] = set()
    for block in slots(plan):
        name = base = block.first.value
        while name in taken:  # a value may lie in several places in turn
            name = f"{base}@{len(taken)}"
        taken.add(name)
        gaps = " ".join(f"{one[1]}-{other[0]}" for one, other in pairwise(block.live))
        row = [name, block.live[0][0], block.live[-1][1], block.nbytes, *([plan.alignment] if aligned else [])]
        writer.writerow([*row, gaps, block.offset, *([block.arena] if several else [])])
    return text.getvalue()

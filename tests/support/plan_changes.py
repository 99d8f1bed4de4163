"""Plans with something else said: lines `where = JSON`, such as `%m[1].region.offset = 24` or `peak.nbytes = 7`.

`%m[1]` is the second placement of value %m, `drop %m[1]` takes it out.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sublet.plan import MemoryPlan
from sublet.plan.file import from_json, to_json


def changed(plan: MemoryPlan, lines: str) -> MemoryPlan:
    """The plan with these changes, in order."""
    raw = json.loads(to_json(plan))
    dropped = []
    for line in lines.splitlines():
        if line.startswith("drop "):
            dropped.append(_found(raw, _steps(line[5:])))
            continue
        where, _, value = line.partition(" = ")
        *around, last = _steps(where)
        _found(raw, around)[last] = json.loads(value)
    raw["placements"] = [place for place in raw["placements"] if not any(place is gone for gone in dropped)]
    return from_json(json.dumps(raw))


def _steps(where: str) -> list[str | int]:
    return [int(step) if step.isdigit() else step for step in re.findall(r"%?\w+", where)]


def _found(raw: Any, steps: list[str | int]) -> Any:
    found = raw
    for step in steps:
        if isinstance(step, str) and step.startswith("%"):
            found = [place for place in raw["placements"] if place["value"] == step[1:]]
        else:
            found = found[step]
    return found

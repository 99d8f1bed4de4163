"""Plans in forms that others read: C for a device, tables for a review, timelines and snapshots for viewers.

`api.exporting` has the one table of forms, those that need more than a plan among them, and those that packages add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sublet.plan.export.c import c_sources
from sublet.plan.export.minimalloc import minimalloc
from sublet.plan.export.names import identifier
from sublet.plan.export.perfetto import perfetto
from sublet.plan.export.snapshot import snapshot
from sublet.plan.export.table import comma_separated, markdown
from sublet.plan.records import MemoryPlan


@dataclass(frozen=True)
class Told:
    """What is told beside a plan: the linker sections of its memories by name, and the file of its model."""

    sections: Mapping[str, str] = field(default_factory=dict)
    model: Path | None = None


Exporter = Callable[[MemoryPlan, Told], Mapping[str, str | bytes]]
"""Makes the files of a plan, by their names."""

FORMS: Mapping[str, Exporter] = MappingProxyType(
    {
        "c": lambda plan, told: c_sources(plan, told.sections),
        "markdown": lambda plan, _: {f"{identifier(plan.graph)}_memory.md": markdown(plan)},
        "csv": lambda plan, _: {f"{identifier(plan.graph)}_memory.csv": comma_separated(plan)},
        "minimalloc": lambda plan, _: {f"{identifier(plan.graph)}_minimalloc.csv": minimalloc(plan)},
        "perfetto": lambda plan, _: {f"{identifier(plan.graph)}_trace.json": perfetto(plan)},
        "pytorch-snapshot": lambda plan, _: {f"{identifier(plan.graph)}_snapshot.pickle": snapshot(plan)},
    }
)
"""The forms that need nothing but a plan."""

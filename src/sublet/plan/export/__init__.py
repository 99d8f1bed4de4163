"""Exports of plans: C for a device, tables for a review, timelines and snapshots for viewers.

`api.exporting` has the full table of export forms: the forms below, forms that need more than a plan, and forms added
by other packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sublet.plan.export.c import c_sources
from sublet.plan.export.minimalloc import minimalloc
from sublet.plan.export.perfetto import perfetto
from sublet.plan.export.snapshot import snapshot
from sublet.plan.export.table import comma_separated, markdown
from sublet.plan.export.told import Told
from sublet.plan.records import MemoryPlan

Exporter = Callable[[MemoryPlan, Told], Mapping[str, str | bytes]]
"""A function from a plan and its context to the content of files, by file name."""

FORMS: Mapping[str, Exporter] = MappingProxyType(
    {
        "c": c_sources,
        "markdown": lambda plan, told: {f"{told.named(plan)}_memory.md": markdown(plan, told)},
        "csv": lambda plan, told: {f"{told.named(plan)}_memory.csv": comma_separated(plan, told)},
        "minimalloc": lambda plan, told: {f"{told.named(plan)}_minimalloc.csv": minimalloc(plan)},
        "perfetto": lambda plan, told: {f"{told.named(plan)}_trace.json": perfetto(plan)},
        "pytorch-snapshot": lambda plan, told: {f"{told.named(plan)}_snapshot.pickle": snapshot(plan)},
    }
)
"""The export forms that need only a plan."""

__all__ = ["FORMS", "Exporter", "Told"]

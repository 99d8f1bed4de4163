"""Exports of plans: C for a device, tables for a review, timelines and snapshots for viewers.

`api.plans` has the full table of export forms: the forms below, forms that need more than a plan, and forms added
by other packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sublet.plan.export.c import c_sources
from sublet.plan.export.table import ExportContext, csv_table, markdown_table
from sublet.plan.export.viewers import minimalloc, perfetto, snapshot
from sublet.plan.records import MemoryPlan

Exporter = Callable[[MemoryPlan, ExportContext], Mapping[str, str | bytes]]
"""A function from a plan and its context to the content of files, by file name."""

FORMS: Mapping[str, Exporter] = MappingProxyType(
    {
        "c": c_sources,
        "markdown": lambda plan, told: {f"{told.base_name(plan)}_memory.md": markdown_table(plan, told)},
        "csv": lambda plan, told: {f"{told.base_name(plan)}_memory.csv": csv_table(plan, told)},
        "minimalloc": lambda plan, told: {f"{told.base_name(plan)}_minimalloc.csv": minimalloc(plan)},
        "perfetto": lambda plan, told: {f"{told.base_name(plan)}_trace.json": perfetto(plan)},
        "pytorch-snapshot": lambda plan, told: {f"{told.base_name(plan)}_snapshot.pickle": snapshot(plan)},
    }
)
"""The export forms that need only a plan."""

__all__ = ["FORMS", "ExportContext", "Exporter"]

"""Plans in forms that others read: C for a device, tables for a review.

A package can add forms of its own under the entry-point group "sublet.exporters" (name -> function of a plan and of
what is told beside it, which gives the texts of files by their names).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from sublet.errors import PlanError
from sublet.plan.export.c import c_sources
from sublet.plan.export.names import identifier
from sublet.plan.export.table import comma_separated, markdown
from sublet.plan.records import MemoryPlan

Exporter = Callable[[MemoryPlan, Mapping[str, str]], Mapping[str, str]]
"""Makes the files of a plan; the second argument are the linker sections of its memories, by name."""

ENTRY_POINTS = "sublet.exporters"

EXPORTERS: Mapping[str, Exporter] = MappingProxyType(
    {
        "c": c_sources,
        "markdown": lambda plan, _: {f"{identifier(plan.graph)}_memory.md": markdown(plan)},
        "csv": lambda plan, _: {f"{identifier(plan.graph)}_memory.csv": comma_separated(plan)},
    }
)


def exported(plan: MemoryPlan, form: str, sections: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The files of a plan in one of the forms, by name. Raises PlanError for a form that nobody knows."""
    exporter = EXPORTERS.get(form)
    if exporter is None:
        for point in entry_points(group=ENTRY_POINTS, name=form):
            exporter = point.load()
    if exporter is None:
        foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
        raise PlanError(f"there is no form {form!r} to export to; known: {', '.join(sorted({*EXPORTERS, *foreign}))}")
    return exporter(plan, sections or {})

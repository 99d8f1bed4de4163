"""The table of all export forms of plans.

A package adds a form under the entry-point group "sublet.exporters": the name of the form, and a function from a plan
and its context (`plan.export.ExportContext`) to the content of files, by file name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from sublet.base.errors import PlanError
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.plan import MemoryPlan
from sublet.plan.export import FORMS, ExportContext, Exporter

ENTRY_POINTS = "sublet.exporters"


def export_forms() -> tuple[str, ...]:
    """Return the names of all export forms but those of plug-ins."""
    return (*FORMS, *(form for each in installed_integrations() for form in each.exporters))


def export_plan(plan: MemoryPlan, form: str, told: ExportContext | None = None) -> Mapping[str, str | bytes]:
    """Return the files of a plan in the export form `form`: the content by file name.

    Raises PlanError for an unknown form.
    """
    exporter: Exporter | None = FORMS.get(form) or resolve_entry("exporters", form)
    if exporter is None:
        for point in entry_points(group=ENTRY_POINTS, name=form):
            exporter = point.load()
    if exporter is None:
        foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
        raise PlanError(f"unknown export form {form!r}; known: {', '.join(sorted({*export_forms(), *foreign}))}")
    return exporter(plan, told or ExportContext())

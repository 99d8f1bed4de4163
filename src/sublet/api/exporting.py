"""The table of all export forms of plans.

A package adds a form under the entry-point group "sublet.exporters": the name of the form, and a function from a plan
and its context (`plan.export.ExportContext`) to the content of files, by file name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from sublet.base.errors import PlanError
from sublet.foreign.onnx_export import embed_plan
from sublet.plan import MemoryPlan
from sublet.plan.export import FORMS, ExportContext, Exporter

ENTRY_POINTS = "sublet.exporters"

EXPORTERS: Mapping[str, Exporter] = MappingProxyType({**FORMS, "onnx": embed_plan})


def export_plan(plan: MemoryPlan, form: str, told: ExportContext | None = None) -> Mapping[str, str | bytes]:
    """Return the files of a plan in the export form `form`: the content by file name.

    Raises PlanError for an unknown form.
    """
    exporter = EXPORTERS.get(form)
    if exporter is None:
        for point in entry_points(group=ENTRY_POINTS, name=form):
            exporter = point.load()
    if exporter is None:
        foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
        raise PlanError(f"unknown export form {form!r}; known: {', '.join(sorted({*EXPORTERS, *foreign}))}")
    return exporter(plan, told or ExportContext())

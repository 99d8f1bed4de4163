"""Plans in forms that others read, all in one table.

A package adds forms of its own under the entry-point group "sublet.exporters": name -> function of a plan and of what
is told beside it (`plan.export.Told`), which gives the content of files by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from sublet.base.errors import PlanError
from sublet.foreign.onnx_export import with_plan
from sublet.plan import MemoryPlan
from sublet.plan.export import FORMS, Exporter, Told

ENTRY_POINTS = "sublet.exporters"

EXPORTERS: Mapping[str, Exporter] = MappingProxyType({**FORMS, "onnx": with_plan})


def exported(plan: MemoryPlan, form: str, told: Told | None = None) -> Mapping[str, str | bytes]:
    """The files of a plan in one of the forms, by name. Raises PlanError for a form that nobody knows."""
    exporter = EXPORTERS.get(form)
    if exporter is None:
        for point in entry_points(group=ENTRY_POINTS, name=form):
            exporter = point.load()
    if exporter is None:
        foreign = {point.name for point in entry_points(group=ENTRY_POINTS)}
        raise PlanError(f"there is no form {form!r} to export to; known: {', '.join(sorted({*EXPORTERS, *foreign}))}")
    return exporter(plan, told or Told())

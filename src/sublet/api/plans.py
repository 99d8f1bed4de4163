"""Finished plans: the check against the model, and the table of all export forms."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from sublet.api.sources import model_of_plan
from sublet.base.errors import PlanError
from sublet.checker import CheckResult, judge
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.plan import MemoryPlan
from sublet.plan.export import FORMS, ExportContext, Exporter
from sublet.planning.checker_fallback import reprove_bound


def check_plan(model: str | Path, plan: MemoryPlan, *, search: bool = False) -> CheckResult:
    """Return the violations and the unproven claims of a plan, checked against its model.

    model   the path of the model; the recipe of the plan reproduces the planned graph
    search  repeat the search that proved the lower bound, if a search did

    Raises PlanError for a plan of another model, and the errors of `read_model` for an unreadable model.
    """
    result = judge(model_of_plan(model, plan).graph, plan.schedule, plan)
    return reprove_bound(plan, result) if search else result


# The table of all export forms of plans.
#
# A package adds a form under the entry-point group "sublet.exporters": the name of the form, and a function from a plan
# and its context (`plan.export.ExportContext`) to the content of files, by file name.

ENTRY_POINTS = "sublet.exporters"


def export_forms() -> tuple[str, ...]:
    """Return the names of all export forms but those of plug-ins."""
    return (*FORMS, *(form for each in installed_integrations() for form in each.exporters))


def export_plan(plan: MemoryPlan, form: str, context: ExportContext | None = None) -> Mapping[str, str | bytes]:
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
    return exporter(plan, context or ExportContext())

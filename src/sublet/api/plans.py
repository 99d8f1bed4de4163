"""Finished plans: the check against the model, the table of all export forms, and assertions for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.console import Console

from sublet.analysis.options import Options, options_of
from sublet.api.model_files import default_alignment
from sublet.api.ranges import judge_over_ranges
from sublet.api.sources import model_of_plan, read_source
from sublet.base.errors import PlanError
from sublet.base.formatting import parse_bytes
from sublet.checker import CheckResult, judge
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.plan import MemoryPlan
from sublet.plan.export import FORMS, ExportContext, Exporter
from sublet.plan.file import load, save
from sublet.plan.statistics import growth
from sublet.plan.verdict import Extents, verdict
from sublet.planning.pipeline import plan_memory, reprove_bound
from sublet.viz.summary import render_summary, render_verdict


def check_plan(model: str | Path, plan: MemoryPlan, *, search: bool = False) -> CheckResult:
    """Return the violations and the unproven claims of a plan, checked against its model.

    model   the path of the model; the recipe of the plan reproduces the planned graph
    search  repeat the search that proved the lower bound, if a search did

    Raises PlanError for a plan of another model, and the errors of `read_model` for an unreadable model.
    """
    if plan.ranges:
        result = judge_over_ranges(model, plan)[1]
    else:
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


# Assertions on the memory of a model, for tests: the model fits a budget, and has not grown over a saved plan.

UPDATE = "SUBLET_UPDATE_PLANS"
"""The environment variable by which `assert_no_growth` writes the baselines instead of comparing."""

COLUMNS = 100
"""The width of a table in the message of an assertion."""


def assert_fits(
    model: Any,
    budget: int | str,
    *,
    max_dim: Extents = None,
    options: Options | None = None,
    **reading: Any,
) -> MemoryPlan:
    """Assert that a model fits a budget, such as "256 KiB" or 262144; return the plan.

    `model` is a path, an ONNX ModelProto, a graph or a `Model`; `reading` are the options of `read_model` (`dims`,
    `const`, `state`, `max_trips`, `optimize`, `assume`). `max_dim` bounds the extents of values of unknown size.

    Raises AssertionError, with the proof and the table of the plan, if the plan does not fit, or if unknown sizes
    leave the verdict open. Raises the errors of `read_model` and `plan_memory`.
    """
    plan = plan_memory(read_source(model, **reading), options or Options(alignment=default_alignment(model)))
    decision = verdict(plan, parse_bytes(budget) if isinstance(budget, str) else budget, max_dim)
    if decision.fits is not True:
        raise AssertionError(_as_text(render_verdict(decision, plan), render_summary(plan)))
    return plan


def assert_no_growth(model: Any, baseline: str | Path, *, options: Options | None = None, **reading: Any) -> MemoryPlan:
    """Assert that arena and peak of a model need no more bytes than in the plan file `baseline`; return the plan.

    The arguments are those of `assert_fits`. Without options, the plan has the alignment, the order, the optimiser and
    the storage of inputs and outputs of the baseline. With the environment variable `SUBLET_UPDATE_PLANS=1` the plan is
    written to `baseline` instead, as by `sublet plan --out`.

    Raises AssertionError, with the values that grew, and the errors of `load`, `read_model` and `plan_memory`.
    """
    updating = os.environ.get(UPDATE) == "1"
    before = load(baseline) if not updating or Path(baseline).exists() else None
    if before is not None and options is None:
        options = options_of(before)
        reading = {"optimize": before.recipe.optimize, **reading}
    plan = plan_memory(read_source(model, **reading), options or Options(alignment=default_alignment(model)))
    if updating or before is None:
        save(plan, baseline)
        return plan
    found = growth(plan, before)
    if found.is_grown:
        accept = f"Accept the growth: run the test with {UPDATE}=1, and commit {baseline}"
        raise AssertionError(f"grown over {baseline}: {found.description}\n{accept}")
    return plan


def _as_text(*parts: Any) -> str:
    console = Console(width=COLUMNS, color_system=None, force_terminal=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()

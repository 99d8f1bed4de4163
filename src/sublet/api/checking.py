"""The check of a plan against the model that the plan was made for, for Python and for the command line."""

from __future__ import annotations

from pathlib import Path

from sublet.api.sources import model_of_plan
from sublet.checker import CheckResult, judge
from sublet.plan import MemoryPlan
from sublet.planning.reprove_bound import reprove_bound


def check_plan(model: str | Path, plan: MemoryPlan, *, search: bool = False) -> CheckResult:
    """Return the violations and the unproven claims of a plan, checked against its model.

    model   the path of the model; the recipe of the plan reproduces the planned graph
    search  repeat the search that proved the lower bound, if a search did

    Raises PlanError for a plan of another model, and the errors of `read_model` for an unreadable model.
    """
    result = judge(model_of_plan(model, plan).graph, plan.schedule, plan)
    return reprove_bound(plan, result) if search else result

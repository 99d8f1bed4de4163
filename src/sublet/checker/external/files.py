"""Readers of foreign plans from files. The suffix or the content of a file decides its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sublet.base.errors import PlanError, ProblemError
from sublet.base.files import parse_json, read_text
from sublet.base.formatting import known_names
from sublet.checker.external.against_model import judge_by_replay
from sublet.checker.external.by_lifetimes import judge_by_lifetimes, judge_packing
from sublet.checker.external.external_plan import (
    FORMAT,
    VERSION,
    ForeignPlan,
    ForeignVerdict,
    has_plan_format,
    plan_from_json,
)
from sublet.integrations.registry import Integration, installed_integrations, integration_of_file, resolve
from sublet.ir.model import Model
from sublet.packing import Problem
from sublet.packing.csv_format import Lifetimes, read_placed
from sublet.packing.files import read_problem

CSV_SUFFIX = ".csv"

PLAN_FORMS = (
    "Plans of other tools: JSON such as "
    f'{{"format": "{FORMAT}", "version": {VERSION}, "tensors": [{{"name": "a", "offset": 0}}]}}, .csv with offsets, '
    "and .onnx, .tflite, .pte and .pickle with a plan inside (docs/foreign.md)"
)
"""A note on the known forms of plans, for the error on a file in another form."""


def is_foreign_json(path: Path) -> bool:
    """Return True if the file is JSON of a foreign plan, see `has_plan_format`. A plan file of Sublet gives False.

    Raises PlanError for JSON in another form.
    """
    raw = _decode_json(path)
    if raw is None:
        return False
    is_foreign = has_plan_format(raw)
    if not is_foreign and (not isinstance(raw, dict) or "version" not in raw or "format" in raw):
        found = f"the fields {known_names(name[:40] for name in raw)}" if isinstance(raw, dict) else "no object"
        raise PlanError(f"{path} is no plan in a known form: found {found}. {PLAN_FORMS}")
    return is_foreign


def _decode_json(path: Path) -> Any:
    """Return the decoded content of a JSON file; None for another file, and for invalid JSON."""
    if path.suffix.lower() != ".json":
        return None
    text = read_text(path, PlanError)
    try:
        return parse_json(text, str(path), PlanError)
    except PlanError:  # the next reader of the file reports the error
        return None


def read_plan_file(path: Path) -> ForeignPlan:
    """Read a foreign plan from a file beside the model. Raises PlanError if the file cannot be read."""
    try:
        return plan_from_json(read_text(path, PlanError), str(path))
    except PlanError as error:  # errors of the whole plan name the tool, but not the file
        raise error if str(path) in str(error) else PlanError(f"{path}: {error}") from None


def judge_embedded_plan(model: Model, path: Path, capacity: int | None = None) -> ForeignVerdict:
    """Return the verdict on the plan embedded in a model's file: ONNX metadata, or an offline plan for TFLM.

    `capacity` is the size in bytes of the plan's single memory. Raises PlanError if the file has no plan.
    """
    integration = integration_of_file(path)
    if integration is None or not integration.embedded_plan:
        raise PlanError(f"{path} contains no plan: pass the plan as a second file. {PLAN_FORMS}")
    model, plan = resolve(integration.embedded_plan)(model, path)
    return judge_by_replay(model, plan.with_capacity(capacity))


def embedded_options(path: Path) -> dict[str, Any]:
    """Return the options of reading that the plan in a model's file was made with, as arguments of `read_source`.

    Raises PlanError for a malformed record.
    """
    integration = integration_of_file(path)
    if integration is None or not integration.embedded_options:
        return {}
    options: dict[str, Any] = resolve(integration.embedded_options)(path)
    return options


def packing_problem(path: Path, lifetimes: Lifetimes = Lifetimes.half_open) -> Problem:
    """Read a packing problem: MiniMalloc's CSV, a partial order, or the allocations in a PyTorch snapshot.

    Raises ProblemError or ModelError if the file cannot be read, or is a snapshot of several devices.
    """
    recorder = _recorder_of(path)
    if recorder is None:
        return read_problem(path, lifetimes)
    problem: Problem = resolve(recorder.read_problem)(path)
    return problem


def is_snapshot(path: Path) -> bool:
    """Return True if an integration reads recorded allocations from the file."""
    return _recorder_of(path) is not None


def _recorder_of(path: Path) -> Integration | None:
    """Return the integration that reads recorded allocations from the file, by suffix or, for JSON, by content."""
    recorder = _integration_with_suffix("problem_suffixes", path)
    raw = _decode_json(path) if recorder is None else None
    if raw is None:
        return recorder
    recognisers = (each for each in installed_integrations() if each.problem_json)
    return next((each for each in recognisers if resolve(each.problem_json)(raw)), None)


def _integration_with_suffix(table: str, path: Path) -> Integration | None:
    """Return the integration with the suffix of the path in the field `table`; else None."""
    return next((each for each in installed_integrations() if path.suffix.lower() in getattr(each, table)), None)


def is_judged_without_model(path: Path) -> bool:
    """Return True if the file can be judged without a model, because it has lifetimes or instructions."""
    return (
        _integration_with_suffix("plan_suffixes", path) is not None
        or path.suffix.lower() == CSV_SUFFIX
        or is_foreign_json(path)
    )


def judge_plan_file(
    path: Path, lifetimes: Lifetimes = Lifetimes.half_open, capacity: int | None = None
) -> ForeignVerdict:
    """Return the verdict on a plan with lifetimes or instructions.

    `capacity` is the size in bytes of the plan's single memory, if the caller knows the size; a `.pte` file declares
    sizes. Raises PlanError, ProblemError or ModelError if the file cannot be read.
    """
    judge = _integration_with_suffix("plan_suffixes", path)
    if judge is not None:
        if capacity is not None:
            raise PlanError(f"{path} declares the sizes of its memories: drop --capacity")
        verdict: ForeignVerdict = resolve(judge.judge_plan)(path)
        return verdict
    if path.suffix.lower() != CSV_SUFFIX:
        return judge_by_lifetimes(read_plan_file(path).with_capacity(capacity))
    problem, places = read_placed(path, lifetimes)
    if problem.buffers and not any(places):
        raise ProblemError(f"{path} has no offsets to check: add a column `offset` (`sublet pack` computes offsets)")
    regions = {place[0] for place in places if place is not None}
    if capacity is not None and len(regions) > 1:
        raise ProblemError(f"{path} has {len(regions)} regions, each with its own size: drop --capacity")
    sizes = {} if capacity is None else dict.fromkeys(regions, capacity)
    return judge_packing(problem, places, path.name, sizes)

"""Assertions on the memory of a model, for tests: the model fits a budget, and has not grown over a saved plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console

from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.base.formatting import parse_bytes
from sublet.plan import MemoryPlan
from sublet.plan.file import load, save
from sublet.plan.statistics import growth
from sublet.plan.verdict import Extents, verdict
from sublet.planning.pipeline import plan_memory
from sublet.viz.summary import render_summary, render_verdict

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
    plan = plan_memory(read_source(model, **reading), options or Options())
    decision = verdict(plan, parse_bytes(budget) if isinstance(budget, str) else budget, max_dim)
    if decision.fits is not True:
        raise AssertionError(_as_text(render_verdict(decision, plan), render_summary(plan)))
    return plan


def assert_no_growth(model: Any, baseline: str | Path, *, options: Options | None = None, **reading: Any) -> MemoryPlan:
    """Assert that arena and peak of a model need no more bytes than in the plan file `baseline`; return the plan.

    The arguments are those of `assert_fits`. With the environment variable `SUBLET_UPDATE_PLANS=1` the plan is written
    to `baseline` instead, as by `sublet plan --out`.

    Raises AssertionError, with the values that grew, and the errors of `load`, `read_model` and `plan_memory`.
    """
    plan = plan_memory(read_source(model, **reading), options or Options())
    if os.environ.get(UPDATE) == "1":
        save(plan, baseline)
        return plan
    found = growth(plan, load(baseline))
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

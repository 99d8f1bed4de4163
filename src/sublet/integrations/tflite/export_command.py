"""`sublet export --to tflm`: a .tflite file with offsets in the metadata, chosen for the smallest arena of TFLM.

TFLM is TensorFlow Lite for Microcontrollers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError, PlanError
from sublet.base.files import read_bytes, write
from sublet.cli.console import refuse_overwriting
from sublet.cli.export import WrittenPlan
from sublet.integrations.tflite import plan_offsets as tflm
from sublet.integrations.tflite.offline_plan import Offsets, encode_offsets, with_offline_plan
from sublet.integrations.tflite.plan_offsets import (
    RUNS_PER_TRIAL,
    OffsetSelection,
    in_planned_order,
    offsets_of_plan,
    select_offsets,
)
from sublet.integrations.tflite.program import decode
from sublet.plan import MemoryPlan

TFLM = "tflm"


def export_tflm(model: Path, plan: MemoryPlan, out: Path, plan_path: Path | None) -> WrittenPlan:
    """Write the file; return the memory needed by TFLM, unknown without a measurement.

    Raises PlanError for a plan or model not usable by TFLM.
    """
    if model.suffix.lower() != ".tflite":
        raise PlanError(f"--to {TFLM} writes a plan into a .tflite file; {model} is of another format")
    if plan.recipe.split or plan.recipe.again:
        raise PlanError(f"the plan is for the graph {plan.recipe.description}, not for the graph in {model}")
    refuse_overwriting([path for path in (model, plan_path) if path is not None], out)
    raw = read_bytes(model, ModelError)
    program = decode(raw, model.name)
    offsets, reordered = offsets_of_plan(program, plan), in_planned_order(raw, program, plan)
    choice = select_offsets(raw, program, offsets, reordered) if tflm.is_available() else None
    if choice is not None:
        write(out, choice.raw)
        needed = choice.with_plan.smallest
        return WrittenPlan((out,), needed, needed, tuple(_measured_lines(choice)), _measured_content(choice))
    write(out, with_offline_plan(reordered, program.where, encode_offsets(offsets)))
    return WrittenPlan((out,), plan.arena_bytes, None, tuple(_unmeasured_lines(plan, offsets)))


def _measured_content(choice: OffsetSelection) -> dict[str, Any]:
    """Return the measured bytes for JSON."""
    trials = {"own_plan": choice.without_plan, "written": choice.with_plan}
    measured = {
        name: {"head_bytes": trial.head, "arena_used_bytes": trial.total, "smallest_arena_bytes": trial.smallest}
        for name, trial in trials.items()
    }
    return {"offsets": choice.how, "measured_with": f"{tflm.PACKAGE} {tflm.version()}", **measured}


def _measured_lines(choice: OffsetSelection) -> Iterator[str]:
    """Yield lines on the arenas measured with TFLM: planned by TFLM, and with the chosen offsets."""
    own, ours = choice.without_plan, choice.with_plan
    yield f"measured with {tflm.PACKAGE} {tflm.version()}, on this machine, in fresh interpreters:"
    if choice.offsets is None:
        yield f"  TFLM's own plan, the smallest, is kept: tensors and scratch {own.head:,} B, arena {own.total:,} B"
        return
    yield f"  tensors and scratch {ours.head:,} B instead of {own.head:,} B"
    yield f"  arena used          {ours.total:,} B instead of {own.total:,} B"
    yield f"  smallest arena      {ours.smallest:,} B instead of {own.smallest:,} B"
    yield f"  outputs             equal bit for bit in {RUNS_PER_TRIAL} runs on random inputs"
    yield f"  {_describe_offsets(choice.offsets)}{_describe_selection(choice.how)}"


def _describe_selection(how: str) -> str:
    """Return a remark if only some offsets are prescribed."""
    return "; the arena is smaller with some tensors left to TFLM" if how == "some" else ""


def _describe_offsets(offsets: Offsets) -> str:
    """Return a line with the number of prescribed offsets."""
    count = sum(offset is not None for subgraph in offsets for offset in subgraph)
    return f"offsets of {count} tensors are prescribed; TFLM places all others, and scratch, around them"


def _unmeasured_lines(plan: MemoryPlan, offsets: Offsets) -> Iterator[str]:
    """Yield lines on offsets written without a measurement: without the TFLM package, or without its kernels."""
    yield _describe_offsets(offsets)
    remedy = (
        f"{tflm.PACKAGE} has no kernel for a custom operator of the model: measure on the device"
        if tflm.is_available()
        else f"Install 'sublet[{tflm.EXTRA}]' to have both measured"
    )
    yield (
        f"not proven: that the kernels' scratch fits beside the {plan.arena_bytes:,} B of tensors, and that TFLM needs "
        f"no more than with its own plan. {remedy}"
    )

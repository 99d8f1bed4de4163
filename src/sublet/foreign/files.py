"""Readers of foreign plans from files. The suffix or the content of a file decides its format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sublet.base.errors import PlanError, ProblemError
from sublet.base.files import read_text
from sublet.base.json_text import parse_json
from sublet.foreign.against_model import judge_by_replay
from sublet.foreign.by_lifetimes import judge_by_lifetimes, judge_packing
from sublet.foreign.constant_nodes import with_constant_nodes
from sublet.foreign.executorch import is_pte, judge_pte
from sublet.foreign.foreign_plan import ForeignPlan
from sublet.foreign.json_form import has_plan_format, plan_from_json
from sublet.foreign.onnx_metadata import plan_from_onnx
from sublet.foreign.snapshot import read_snapshot
from sublet.foreign.tflite_offline import plan_from_tflite
from sublet.foreign.verdict import ForeignVerdict
from sublet.frontends.model_formats import is_onnx, is_tflite
from sublet.frontends.onnx.model_file import read_model, require_utf8
from sublet.frontends.tflite.model import read_program
from sublet.ir.model import Model
from sublet.packing import Problem
from sublet.packing.csv_format import Lifetimes, read_placed
from sublet.packing.files import read_problem

CSV_SUFFIX = ".csv"
PICKLE_SUFFIXES = (".pickle", ".pkl")


def is_foreign_json(path: Path) -> bool:
    """Return True if the file is the documented JSON of a foreign plan. A plan file of Sublet gives False."""
    if path.suffix.lower() != ".json":
        return False
    text = read_text(path, PlanError)
    try:
        return has_plan_format(parse_json(text, str(path), PlanError))
    except PlanError:  # the next reader of the file reports the error
        return False


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
    if is_onnx(path):
        proto = read_model(path)
        require_utf8(proto, path.name)
        foreign = plan_from_onnx(proto, path.name).with_capacity(capacity)
        names = {tensor.name for tensor in foreign.tensors}
        return judge_by_replay(replace(model, graph=with_constant_nodes(model.graph, proto, names)), foreign)
    if is_tflite(path):
        return judge_by_replay(model, plan_from_tflite(read_program(path)).with_capacity(capacity))
    raise PlanError(f"{path} contains no plan: pass the plan as a second file (docs/foreign.md has its form)")


def packing_problem(path: Path, lifetimes: Lifetimes = Lifetimes.half_open) -> Problem:
    """Read a packing problem: MiniMalloc's CSV, a partial order, or the allocations in a PyTorch snapshot.

    Raises ProblemError or ModelError if the file cannot be read, or is a snapshot of several devices.
    """
    if not is_snapshot(path):
        return read_problem(path, lifetimes)
    devices = read_snapshot(path)
    if len(devices) > 1:
        raise ProblemError(f"{path} has {len(devices)} devices, each a separate problem (`sublet check` replays all)")
    return devices[0].problem


def is_snapshot(path: Path) -> bool:
    """Return True if the suffix of `path` is that of a pickle."""
    return path.suffix.lower() in PICKLE_SUFFIXES


def is_judged_without_model(path: Path) -> bool:
    """Return True if the file can be judged without a model, because it has lifetimes or instructions."""
    return is_pte(path) or path.suffix.lower() == CSV_SUFFIX or is_foreign_json(path)


def judge_plan_file(
    path: Path, lifetimes: Lifetimes = Lifetimes.half_open, capacity: int | None = None
) -> ForeignVerdict:
    """Return the verdict on a plan with lifetimes or instructions.

    `capacity` is the size in bytes of the plan's single memory, if the caller knows the size; a `.pte` file declares
    sizes. Raises PlanError, ProblemError or ModelError if the file cannot be read.
    """
    if is_pte(path):
        if capacity is not None:
            raise PlanError(f"{path} declares the sizes of its memories: drop --capacity")
        return judge_pte(path)
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

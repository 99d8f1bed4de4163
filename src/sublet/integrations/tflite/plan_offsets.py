"""Conversion of a memory plan to TFLM offsets: an offset per tensor with a single place in the first subgraph.

TFLM copies operands of IF and WHILE into the called subgraphs, and results back, tensor by tensor. Sublet's plan moves
all operands at once, or shares the bytes. So tensors of called subgraphs get no offset (-1): TFLM places the tensors
around the planned tensors. Operands and results overwritten by TFLM's copies get no offset either.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from sublet.base.errors import Finding, MissingExtraError, PlanError
from sublet.base.optional_imports import is_installed, version_of
from sublet.base.tensor import TensorSpec
from sublet.checker.external.external_plan import ForeignPlan, PlacedTensor
from sublet.integrations.tflite.offline_plan import (
    METADATA,
    Offsets,
    encode_offsets,
    offline_plan,
    with_offline_plan,
    with_operator_order,
)
from sublet.integrations.tflite.program import Operator, TFLiteProgram, decode
from sublet.integrations.tflite.reader import ALIGNMENT, ConvertedModel, convert_program, read_program
from sublet.ir.dataflow import captures
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.plan import MemoryPlan
from sublet.plan.records import Placement
from sublet.plan.schedule import serial_schedule

# Measurement of models in TensorFlow Lite Micro, in a separate process: needed memory and computed outputs.

PACKAGE, MODULE, EXTRA = "tflite-micro", "tflite_micro", "tflm"
SCRIPT = Path(__file__).with_name("interpreter.py")
TIMEOUT_SECONDS = 300
CRASHED = f"the process ended, or took more than {TIMEOUT_SECONDS} seconds"


@dataclass(frozen=True, slots=True)
class Trial:
    """A file to run with random inputs in each run; `smallest` requests the smallest sufficient arena."""

    raw: bytes
    inputs: int
    outputs: int
    runs: int = 2
    seed: int = 0
    smallest: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial.

    refused   the reason TFLM cannot run the model; "" on success
    outputs   a hash of the outputs of all runs
    head      bytes of tensors and scratch memory
    total     bytes of `head` and of TFLM's records
    smallest  bytes of the smallest sufficient arena; 0 if not requested
    """

    refused: str = ""
    outputs: str = ""
    head: int = 0
    total: int = 0
    smallest: int = 0


def is_available() -> bool:
    """True if TFLM's package is installed."""
    return is_installed(MODULE)


def version() -> str:
    """Return the version of TFLM's package; "" if not installed."""
    return version_of(PACKAGE)


def run_trials(trials: Sequence[Trial]) -> list[TrialResult]:
    """Run all trials and return the results. Raises MissingExtraError without TFLM's package."""
    if not is_available():
        raise MissingExtraError(f"this needs the package {PACKAGE!r}: pip install 'sublet[{EXTRA}]'")
    results: list[TrialResult] = []
    while len(results) < len(trials):
        answers = _results_before_crash(trials[len(results) :])
        results += answers
        if len(results) < len(trials):
            results.append(TrialResult(refused=CRASHED))
    return results


def _results_before_crash(trials: Sequence[Trial]) -> list[TrialResult]:
    """Return the results up to the first trial that crashes the process."""
    with tempfile.TemporaryDirectory() as folder:
        requests = []
        for i, trial in enumerate(trials):
            (Path(folder) / f"{i}.tflite").write_bytes(trial.raw)
            options = {name: getattr(trial, name) for name in ("inputs", "outputs", "runs", "seed", "smallest")}
            requests.append({"file": f"{i}.tflite", **options})
        (Path(folder) / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
        command = [sys.executable, str(SCRIPT), folder]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS, check=False
            )
        answers = Path(folder) / "answers.txt"
        lines = answers.read_text(encoding="utf-8").splitlines() if answers.exists() else []
    fields = TrialResult.__dataclass_fields__
    return [TrialResult(**{k: v for k, v in json.loads(line).items() if k in fields}) for line in lines]


# Tensors overwritten by TFLM while copying the operands and results of IF and WHILE, one tensor after another.
#
# Both operators copy their operands into the called subgraph, whose tensors TFLM places apart from the caller's, and
# copy the subgraph's outputs into their results. WHILE first copies the operands into the results, where the
# loop-carried values lie between iterations.

ByteInterval = tuple[int, int]
"""The half-open byte interval [begin, end)."""


@dataclass(frozen=True, slots=True)
class LostTensor:
    """A tensor `lost`, overwritten by the copy of `written` at operator `position`, and read afterwards."""

    position: int
    written: int
    lost: int


def lost_tensors(program: TFLiteProgram, offsets: Sequence[int | None]) -> Iterator[LostTensor]:
    """Yield the tensors lost when the tensors of the first subgraph lie at `offsets`."""
    places = {}
    for i, (tensor, at) in enumerate(zip(program.subgraphs[0].tensors, offsets, strict=True)):
        if at is not None and isinstance(tensor.spec, TensorSpec):
            places[i] = at, at + tensor.spec.nbytes
    for position, operator in enumerate(program.subgraphs[0].operators):
        if operator.name in ("IF", "WHILE"):
            for written, lost in (*_overlapping_results(operator, places), *_overwritten_operands(operator, places)):
                yield LostTensor(position, written, lost)


def _overlapping_results(operator: Operator, places: dict[int, ByteInterval]) -> Iterator[tuple[int, int]]:
    """Yield pairs of overlapping results, even if a result has no reader."""
    for first, second in combinations([i for i in operator.outputs if i in places], 2):
        if _intervals_overlap(places[first], places[second]):
            yield second, first


def _overwritten_operands(operator: Operator, places: dict[int, ByteInterval]) -> Iterator[tuple[int, int]]:
    """Yield pairs of a WHILE result and an operand overwritten before the copy of the operand."""
    if operator.name != "WHILE":
        return
    for i, (operand, result) in enumerate(zip(operator.inputs, operator.outputs, strict=False)):
        if result in places and places[result] != places.get(operand):
            behind = (other for other in operator.inputs[i:] if other in places)
            yield from ((result, other) for other in behind if _intervals_overlap(places[result], places[other]))


def _intervals_overlap(one: ByteInterval, other: ByteInterval) -> bool:
    """True if the byte intervals overlap."""
    return one[0] < other[1] and other[0] < one[1]


MAX_OFFSET = (1 << 31) - 1
MIN_ELEMENT_BITS = 8
"""The smallest element size for which TFLM and Sublet agree on tensor sizes, in bits."""


def offsets_of_plan(program: TFLiteProgram, plan: MemoryPlan) -> Offsets:
    """Return the offsets of the tensors of each subgraph. Raises PlanError for a plan unsupported by TFLM."""
    conversion = convert_program(program)
    require_plan_for_tflm(plan)
    places: dict[str, list[Placement]] = {}
    for place in plan.in_arenas:
        places.setdefault(place.value, []).append(place)
    main = program.subgraphs[0]
    offsets: list[int | None] = []
    for index, tensor in enumerate(main.tensors):
        placements = places.get(conversion.value_names.get(index, ""), [])
        is_single = len(placements) == 1 and not placements[0].strides and not placements[0].copies
        is_counted = (
            isinstance(tensor.spec, TensorSpec) and tensor.spec.nbytes and tensor.spec.dtype.bits >= MIN_ELEMENT_BITS
        )
        offsets.append(
            placements[0].region.offset if is_single and is_counted and placements[0].region.end <= MAX_OFFSET else None
        )
    for each in list(lost_tensors(program, offsets)):
        operator = main.operators[each.position]
        for index in {*operator.inputs, *operator.outputs} - {-1}:
            offsets[index] = None
    return tuple(offsets), *(tuple(None for _ in subgraph.tensors) for subgraph in program.subgraphs[1:])


def require_plan_for_tflm(plan: MemoryPlan) -> None:
    """Raise PlanError for a plan unsupported by TFLM: several arenas, alignment below 16 bytes."""
    if plan.alignment % ALIGNMENT:
        raise PlanError(
            f"the plan is aligned to {plan.alignment} bytes, and TensorFlow Lite Micro requires {ALIGNMENT}: "
            f"plan with --align {ALIGNMENT}"
        )
    if len(plan.arenas) > 1:
        raise PlanError("TensorFlow Lite Micro has one arena for tensors: plan without --region")


# Order of operators: TFLM runs the operators in the order of the file, so a plan in another order needs another file.


def in_planned_order(raw: bytes, program: TFLiteProgram, plan: MemoryPlan) -> bytes:
    """Return the file with the operators of the first subgraph in the order of a plan.

    Raises PlanError for a plan with several streams or another order within a called subgraph, and for an order in
    which an operator would read other values.
    """
    conversion = convert_program(program)
    graph = conversion.model.graph
    nodes = {node.name: node for node in graph.nodes}
    scheduled = replace(graph, nodes=tuple(nodes[step.node] for step in plan.schedule.steps))
    if plan.schedule != serial_schedule(scheduled):
        raise PlanError(
            "TensorFlow Lite Micro runs operators one after another, and those of called subgraphs in the order of the "
            "file: plan without --streams, or without --order"
        )
    positions = (_operator_position(node) for node in scheduled.nodes)
    order = list(dict.fromkeys(each for each in positions if each is not None))
    for position in sorted({*range(len(program.subgraphs[0].operators))}.difference(order)):
        # an operator without a node, such as an empty CALL_ONCE, stays behind its predecessor
        order.insert(order.index(position - 1) + 1 if position else 0, position)
    if order == sorted(order):
        return raw
    reordered = with_operator_order(raw, program.where, order)
    after = convert_program(decode(reordered, program.where))
    if _values_read(after, order) != _values_read(conversion, range(len(order))):
        raise PlanError(f"{program.where}: in the order of the plan, operators read other values: no file is written")
    return reordered


def _operator_position(node: Node) -> int | None:
    """Return the position in the first subgraph of the operator of a node; None for a node without an operator."""
    match = re.match(r"operator (\d+)", node.source)
    return None if match is None else int(match[1])


def _values_read(converted: ConvertedModel, order: Sequence[int]) -> dict[Any, Any]:
    """Return the values read by each operator, by the outputs, and by the updates of the variables.

    An operator has its position in the file before the change; `order` lists these positions by position in the
    converted file. A value is the pair (operator, number of the output), the key of a variable, a constant of the file,
    or the name of an input.
    """
    graph, constants = converted.model.graph, converted.model.weights
    positions = {node.name: _operator_position(node) for node in graph.nodes}
    place = {name: name if position is None else order[position] for name, position in positions.items()}
    values: dict[Value | None, Any] = {value: value.name for value in graph.inputs}
    for value in graph.weights:
        stored = constants.get(value.name)
        values[value] = (value.spec, value.literal) if stored is None else (value.spec, stored.array().tobytes())
    for value in graph.values():
        if value.name in converted.persistent:
            values[value] = converted.persistent[value.name]
    for node in graph.nodes:
        values.update({value: (place[node.name], node.op, i) for i, value in enumerate(node.outputs) if value})
    found: dict[Any, Any] = {"outputs": [values[value] for value in graph.outputs]}
    found["updates"] = {values[target]: values[source] for target, source in graph.updates}
    for node in graph.nodes:
        inner = [value for sub in node.subgraphs for value in captures(sub)]
        found.setdefault(place[node.name], []).append((node.op, [values.get(v) for v in (*node.inputs, *inner)]))
    return found


# Selection of the plan offsets to pass to TensorFlow Lite Micro (TFLM): the subset with the lowest measured need.
#
# TFLM places the scratch memory of kernels around the passed offsets. Where a plan leaves no room for scratch memory,
# fewer offsets may be better, or no offset. TFLM's interpreter measures each subset. The selected file needs no more
# memory than TFLM's own plan, and computes the same outputs.

NO_KERNEL = "Failed to get registration from op code CUSTOM"
"""TFLM's message for a custom operator without a kernel, such as an operator for an NPU."""

RUNS_PER_TRIAL = 8
MAX_ROUNDS = 6
MAX_OFFSETS_TRIED = 64
"""The number of offsets tried for removal per round; offsets of most tensors first."""


@dataclass(frozen=True)
class OffsetSelection:
    """The selected file, and the measured memory with and without Sublet's plan.

    raw             the file to write
    offsets         the selected offsets; None for TFLM's own plan
    how             "all" offsets of the plan, "some" (without harmful offsets), or "none" (TFLM's own plan is no worse)
    without_plan    the measurement with TFLM's own plan
    with_plan       the measurement of the selected file
    """

    raw: bytes
    offsets: Offsets | None
    how: str
    without_plan: TrialResult
    with_plan: TrialResult


def select_offsets(
    raw: bytes, program: TFLiteProgram, offsets: Offsets, reordered: bytes | None = None
) -> OffsetSelection | None:
    """Return the best subset of `offsets` for a file; None if TFLM lacks a kernel for a custom operator.

    The offsets are for the file `reordered`, with the operators in the order of the plan, if given. TFLM's own plan is
    that of `raw`.

    Raises PlanError when TFLM cannot run the model, or computes different outputs with the plan.
    """
    main = program.subgraphs[0]
    bare = with_offline_plan(raw, program.where, None)

    def file_with(choice: Offsets) -> bytes:
        return with_offline_plan(reordered or raw, program.where, encode_offsets(choice))

    def measure(raws: Sequence[bytes], runs: int = RUNS_PER_TRIAL, smallest: bool = False) -> list[TrialResult]:
        return run_trials([Trial(raw, len(main.inputs), len(main.outputs), runs, smallest=smallest) for raw in raws])

    unplanned, planned = measure([bare, file_with(offsets)], smallest=True)
    if NO_KERNEL in unplanned.refused:
        return None
    if unplanned.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro cannot run this model: {unplanned.refused}")
    _require_same_outputs(program, unplanned, planned)
    best, how = offsets, "all"
    fewer = _drop_harmful_offsets(
        offsets, planned, lambda choices, runs: measure([file_with(choice) for choice in choices], runs)
    )
    if fewer != offsets:
        (other,) = measure([file_with(fewer)], smallest=True)
        _require_same_outputs(program, unplanned, other)
        if _bytes_needed(other) < _bytes_needed(planned):
            best, how, planned = fewer, "some", other
    if _is_no_better(planned, unplanned):
        return OffsetSelection(bare, None, "none", unplanned, unplanned)
    return OffsetSelection(file_with(best), best, how, unplanned, planned)


def _require_same_outputs(program: TFLiteProgram, unplanned: TrialResult, planned: TrialResult) -> None:
    """Raise PlanError if TFLM refuses the planned file or computes different outputs."""
    if planned.refused:
        raise PlanError(f"{program.where}: TensorFlow Lite Micro refuses the model with this plan: {planned.refused}")
    if planned.outputs != unplanned.outputs:
        raise PlanError(
            f"{program.where}: with this plan TensorFlow Lite Micro computes other outputs: no file is written"
        )


def _bytes_needed(measured: TrialResult) -> tuple[int, int]:
    """Return the bytes needed by a measured file: of the arena in total, and of the smallest arena."""
    return measured.total, measured.smallest


def _is_no_better(planned: TrialResult, unplanned: TrialResult) -> bool:
    """True if a plan needs more than TFLM's own plan, or equally much in both measures."""
    return (
        planned.total > unplanned.total
        or planned.smallest > unplanned.smallest
        or _bytes_needed(planned) == _bytes_needed(unplanned)
    )


def _drop_harmful_offsets(
    offsets: Offsets, current: TrialResult, measure: Callable[[Sequence[Offsets], int], list[TrialResult]]
) -> Offsets:
    """Drop offsets greedily, at most `MAX_ROUNDS` times, while a drop reduces the total bytes of TFLM.

    TFLM allocates before the first run, so choices are measured without a run: a run may take seconds. Only choices
    with fewer bytes run, until the outputs of one are right.
    """
    best, fewest_bytes = offsets, current.total
    for _ in range(MAX_ROUNDS):
        choices = [_without_offset(best, at) for at in _distinct_offsets(best)]
        needs = [(fits.total, i) for i, fits in enumerate(measure(choices, 0)) if not fits.refused]
        smaller = (choices[i] for total, i in sorted(needs) if total < fewest_bytes)
        runs = ((choice, measure([choice], RUNS_PER_TRIAL)[0]) for choice in smaller)
        right = next(((choice, run) for choice, run in runs if run.outputs == current.outputs), None)
        if right is None:
            break
        best, fewest_bytes = right[0], right[1].total
    return best


def _distinct_offsets(offsets: Offsets) -> list[int]:
    """Return the distinct offsets passed to TFLM, most frequent first, at most `MAX_OFFSETS_TRIED`."""
    passed = [offset for subgraph in offsets for offset in subgraph if offset is not None]
    return sorted(set(passed), key=lambda offset: (-passed.count(offset), offset))[:MAX_OFFSETS_TRIED]


def _without_offset(offsets: Offsets, at: int) -> Offsets:
    """Return the offsets without the tensors at offset `at`."""
    return tuple(tuple(None if offset == at else offset for offset in subgraph) for subgraph in offsets)


# The offline plan of a .tflite file, as a foreign plan of the first subgraph.
#
# TFLM itself places the tensors at -1, and all tensors of a file without an offline plan. The plan leaves out these
# tensors, constants (stored in the file), and tensors of further subgraphs. A replay of the model copies all operands
# of IF and WHILE at once, so operands overwritten during TFLM's copies are found here. Variable tensors keep their
# content between runs, in separate memory.

OWN_PLAN = "TensorFlow Lite Micro's own plan"
"""The tool of a file without an offline plan, as `sublet export --to tflm` leaves a file if no offsets help."""


def plan_from_tflite(program: TFLiteProgram) -> ForeignPlan:
    """Return the plan in a .tflite file; a plan without any place if TFLM places all tensors itself."""
    offsets = offline_plan(program)
    conversion = convert_program(program)
    tensors = [
        PlacedTensor(conversion.value_names[index], offset)
        for index, offset in enumerate(offsets[0] if offsets else ())
        if offset is not None and index in conversion.value_names
    ]
    if offsets is not None:
        variables = conversion.persistent.items()
        tensors += [PlacedTensor(name, 0, f"variable {'/'.join(key[1:])}") for name, key in variables]
    placed_names = {tensor.name for tensor in tensors} | {weight.name for weight in conversion.model.graph.weights}
    left_out = (
        value.name for value in conversion.model.graph.values() if value.nbytes and value.name not in placed_names
    )
    findings = _overwrite_findings(program, offsets[0]) if offsets else ()
    tool = METADATA if offsets else OWN_PLAN
    return ForeignPlan(tuple(tensors), tool, alignment=ALIGNMENT, left_out=tuple(left_out), findings=tuple(findings))


def _overwrite_findings(program: TFLiteProgram, offsets: Sequence[int | None]) -> Iterator[Finding]:
    """Yield a finding for each operand overwritten before TFLM has copied it."""
    main = program.subgraphs[0]
    for overwrite in lost_tensors(program, offsets):
        operator = main.operators[overwrite.position]
        names = [main.tensors[index].name[:80] for index in (overwrite.lost, overwrite.written)]
        yield Finding(
            "clobbered",
            f"operator {overwrite.position}: {operator.name}",
            f"TensorFlow Lite Micro copies one tensor after another: {names[0]!r} is overwritten by {names[1]!r}",
            "place the two apart",
        )


def read_embedded_plan(model: Model, path: Path) -> tuple[Model, ForeignPlan]:
    """Return the model and the plan in its file, see `plan_from_tflite`."""
    return model, plan_from_tflite(read_program(path))

"""The command `sublet run`: plan a model, run the model in exactly the planned arena, and report memory and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest
from sublet.api.compiling import compile_request
from sublet.base.errors import KernelError, PlanError, RunError
from sublet.base.formatting import human, printable
from sublet.base.optional_imports import version_of
from sublet.cli import options as shared
from sublet.cli.array_io import (
    given_names,
    input_paths,
    missing_inputs_message,
    random_arrays,
    read_inputs,
    write_arrays,
)
from sublet.cli.budget_options import read_smaller_graph
from sublet.cli.console import (
    answer_console,
    exit_with_verdict,
    packing_progress,
    print_json,
    print_warnings,
    refuse_overwriting,
    warnings_json,
)
from sublet.cli.options import (
    BudgetQuestion,
    command_from,
    option_name,
    parse_assumed_shapes,
    parse_constants,
    parse_dims,
    parse_max_trips,
    parse_state,
)
from sublet.ir.graph import Value
from sublet.ir.model import CONTRADICTION
from sublet.ir.model import Model as Source
from sublet.ir.recipe import OPEN_DEFAULT
from sublet.plan import MemoryPlan
from sublet.plan.file import load, save
from sublet.plan.statistics import assumptions, update_statistics
from sublet.plan.verdict import Verdict
from sublet.runtime.backends import AUTO, backend_factories
from sublet.runtime.differential import compare, equal_bits, watch_steps
from sublet.runtime.executable import Executable
from sublet.runtime.poison import run_poisoned
from sublet.runtime.profile import Cost, Profile
from sublet.viz.report import recipe_json, verdict_json
from sublet.viz.summary import NameCell, figures_table, plain_table, render_verdict

# The report of `sublet run`: a flat JSON object, or tables for a terminal.

MAX_LISTED = 12
"""Maximum of listed steps and differences."""


@dataclass(frozen=True)
class RunReport:
    """An executable that has run, with the measurements.

    seconds    the time of each timed run, copies of inputs and outputs included
    versions   of the packages in use
    verdicts   "compare" and "poison", if requested: the differences between the runs; empty if the runs agree
    slowest    the points of a profiled run, the longest first
    decision   the verdict on the executed plan under the requested budget
    """

    executable: Executable
    seconds: Sequence[float]
    versions: dict[str, str]
    verdicts: dict[str, tuple[str, ...]]
    slowest: Sequence[Cost] = ()
    decision: Verdict | None = None

    @property
    def is_equal(self) -> bool:
        """True if all compared runs agree."""
        return not any(self.verdicts.values())


def run_json(report: RunReport) -> dict[str, Any]:
    """Return bytes, seconds and verdicts as a JSON object; figures unknown on the machine are None."""
    executable, memory = report.executable, report.executable.memory
    content: dict[str, Any] = {
        "graph": executable.plan.graph,
        "arena_bytes": memory.arena,
        "arenas": {storage.name: storage.nbytes for storage in executable.plan.arenas},
        "lower_bound_bytes": executable.plan.lower_bound_bytes,
        "input_bytes": memory.inputs,
        "output_bytes": memory.outputs,
        "weight_bytes": memory.weights,
        "scratch_bytes": memory.scratch,
        "outside_values": memory.outside_values,
        "outside_bytes": memory.outside,
        "updated": list(executable.updated),
        "updated_bytes": update_statistics(executable.plan).nbytes,
        "workspace_bytes": memory.allocated.total_bytes,
        "held_bytes": memory.allocated.held_bytes,
        "peak_bytes": memory.allocated.peak_bytes,
        "workspace_unknown": memory.allocated.reason,
        "copied_bytes": executable.copied_bytes,
        "seconds": median(report.seconds),
        "least_seconds": min(report.seconds),
        "runs": len(report.seconds),
        "streams": executable.plan.schedule.streams,
        "steps": len(executable.plan.points),
        "nodes": {name or "moves bytes only": count for name, count in executable.nodes_of_backends.items()},
        "remark": executable.remark,
        "versions": report.versions,
        "recipe": recipe_json(executable.plan.recipe),
        "dims": dict(executable.plan.dims),
    }
    if report.decision is not None:
        content |= verdict_json(report.decision)
    for verdict, differences in report.verdicts.items():
        content[verdict] = list(differences)
    if report.verdicts:
        content["equal"] = report.is_equal
    if report.slowest:
        content["slowest"] = [
            {"point": str(cost.point), "op": _op_at(cost), "runs": cost.runs, "seconds": cost.seconds}
            for cost in report.slowest[:MAX_LISTED]
        ]
    return content


def render_run(report: RunReport) -> RenderableType:
    """Return the budget verdict, the figures, the slowest steps of a profile, and the comparison of the runs."""
    parts: list[RenderableType] = []
    if report.decision is not None:
        parts.append(render_verdict(report.decision, report.executable.plan))
    parts.append(_figures_table(report))
    if report.slowest:
        parts += [Text(), _slowest_table(report.slowest)]
    for verdict, differences in report.verdicts.items():
        if not differences:
            parts.append(Text(f"{verdict}: equal, bit for bit", "green"))
        parts += [Text(f"{verdict}: {printable(difference)}", "red") for difference in differences[:MAX_LISTED]]
    return Group(*parts)


def _figures_table(report: RunReport) -> Table:
    executable, memory = report.executable, report.executable.memory
    statistics = update_statistics(executable.plan)
    table = figures_table()
    rows = [
        ("arena", human(memory.arena), f"{memory.arena:,} bytes: all planned tensors"),
        ("scratch", human(memory.scratch), "of that: the most requested by one kernel"),
        ("inputs", human(memory.inputs), "bound to memory outside the arena"),
        ("outputs", human(memory.outputs), "bound to memory outside the arena"),
        ("weights", human(memory.weights), "bound to memory outside the arena"),
        ("outside", human(memory.outside), f"{memory.outside_values} values that could not be planned"),
        ("workspace", *_describe_workspace(report)),
        ("updated", human(statistics.nbytes), f"of the above, kept for the next run: {statistics.description}"),
        ("copied", human(executable.copied_bytes), "moved by loops, branches and updates"),
        ("graph", "", printable(executable.plan.recipe.description)),
        ("time", f"{median(report.seconds):.4g} s", _describe_times(report.seconds)),
        ("steps", str(len(executable.plan.points)), _describe_backends(report)),
        ("remark", "", executable.remark),
        ("assumed", "", assumptions(executable.plan)),
    ]
    optional = {"scratch": memory.scratch, "outside": memory.outside_values}
    optional |= {"inputs": memory.inputs, "outputs": memory.outputs, "copied": executable.copied_bytes}
    optional |= {
        "remark": len(executable.remark),
        "assumed": len(executable.plan.assumed_types),
        "updated": statistics.count,
    }
    for name, figure, remark in rows:
        if optional.get(name, 1):
            table.add_row(name, figure, remark)
    return table


def _describe_workspace(report: RunReport) -> tuple[str, str]:
    allocated = report.executable.memory.allocated
    if allocated.total_bytes is None or allocated.held_bytes is None or allocated.peak_bytes is None:
        return "unknown", allocated.reason
    parts = f"{human(allocated.held_bytes)} kept, {human(allocated.peak_bytes)} at times"
    return human(allocated.total_bytes), f"allocated by libraries: {parts}"


def _describe_times(seconds: Sequence[float]) -> str:
    return "one run" if len(seconds) == 1 else f"median of {len(seconds)} runs, the fastest {min(seconds):.4g} s"


def _describe_backends(report: RunReport) -> str:
    streams = report.executable.plan.schedule.streams
    nodes = [
        f"{count} nodes by {name}" if name else f"{count} that only move bytes"
        for name, count in report.executable.nodes_of_backends.items()
    ]
    return ", ".join([*nodes, *([f"{streams} streams"] if streams > 1 else [])])


def _slowest_table(costs: Sequence[Cost]) -> Table:
    total_seconds = sum(cost.seconds for cost in costs) or 1.0
    table = plain_table()
    for name in ("ms", "share", "runs"):
        table.add_column(name, justify="right")
    for name in ("step", "op"):
        table.add_column(name)
    for cost in costs[:MAX_LISTED]:
        figures = f"{cost.seconds * 1e3:.3f}", f"{cost.seconds / total_seconds:.1%}", str(cost.runs)
        table.add_row(*figures, NameCell(str(cost.point)), NameCell(_op_at(cost)))
    return table


def _op_at(cost: Cost) -> str:
    return cost.point.node.op if cost.point.node else ""


PACKAGES = {"reference": ("onnx", "numpy"), "numpy": ("numpy",), "onnxruntime": ("onnxruntime",)}
"""The packages computing the results, by backend."""

WITHOUT_REUSE = Options(strategy="no_reuse", share=False)


@dataclass(frozen=True)
class RunOptions:
    """The argument and the options of `sublet run`."""

    model: shared.Model
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Use a plan written by `sublet plan --out`.")
    ] = None
    dim: shared.Dim = None
    const: shared.Const = None
    state: shared.State = None
    max_trips: shared.MaxTrips = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=FILE",
            help="An input from .npy or .npz, or a number; FILE.npz alone gives several inputs.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option("--random", min=0, metavar="SEED", help="Fill missing inputs and weights with random numbers."),
    ] = None
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Compare with a run without reuse, also in a poisoned arena; exit 1 if different."
        ),
    ] = False
    poison: Annotated[
        bool, typer.Option("--poison", help="Run again with all dead bytes poisoned; exit 1 if the outputs differ.")
    ] = False
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Give every tensor separate bytes.")] = False
    backend: Annotated[
        str, typer.Option("--backend", metavar="B", help=f"{AUTO}, or one of {', '.join(backend_factories())}.")
    ] = AUTO
    optimize: shared.Optimizer = AUTO
    order: Annotated[shared.Order | None, typer.Option("--order")] = None
    patches: shared.Patches = None
    autotune: Annotated[
        bool, typer.Option("--autotune", help="Time the backends on this machine and use the fastest.")
    ] = False
    streams: Annotated[int | None, typer.Option(min=1, help="Number of concurrent streams.")] = None
    repeat: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Number of timed runs.")] = 1
    budget: shared.Budget = None
    max_dim: shared.MaxDim = None
    assume: shared.Assume = None
    save_plan: Annotated[
        Path | None, typer.Option("--save-plan", metavar="PLAN", help="Write the executed plan as JSON.")
    ] = None
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="TRACE", help="Write a trace for Perfetto, as JSON.")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the outputs as .npz.")] = None
    in_json: shared.Json = False

    @property
    def planning_options(self) -> Options:
        """The options of planning, before `--no-reuse`."""
        return Options(streams=self.streams or 1, order=(self.order or shared.Order.given).value)


@command_from(RunOptions)
def run(options: RunOptions) -> None:
    """Plan a model, run the model in exactly the planned arena, and report memory and time.

    Exit status: 0 success; 1 runs differ (--compare, --poison) or the budget is exceeded; 2 bad input; 3 the budget
    verdict is unknown.
    """
    question, assume = BudgetQuestion(options.budget, options.max_dim), parse_assumed_shapes(options.assume)
    sources = [options.model, *([options.plan] if options.plan else []), *input_paths(options.inputs or [])]
    refuse_overwriting(sources, options.out, options.save_plan, options.profile)
    saved_plan = _load_plan(options)
    source = _read_model(options, assume, saved_plan)
    inputs, weights = _inputs_and_weights(source, options)
    request = CompileRequest(
        source, backend=options.backend, optimize=options.optimize, autotune=options.autotune, weights=weights
    )
    planning_options = WITHOUT_REUSE if options.no_reuse else options.planning_options
    executable = _compile(replace(request, options=planning_options, plan=saved_plan))
    if options.save_plan is not None:
        save(executable.plan, options.save_plan)
    outputs = _measured_run(executable, inputs, source)
    seconds = _time_runs(executable, inputs, options.repeat)
    unplanned = _compile(replace(request, options=WITHOUT_REUSE)) if options.compare else None
    report = RunReport(
        executable,
        seconds=seconds,
        versions=_package_versions(executable),
        verdicts=_compare_runs(executable, unplanned, inputs, options.poison),
        slowest=() if options.profile is None else _profile_run(executable, inputs, options.profile),
        decision=question.verdict_on(executable.plan),
    )
    if options.out is not None:
        write_arrays(outputs, options.out)
    _print_run(report, source, in_json=options.in_json)
    if not report.is_equal:
        raise typer.Exit(1)
    exit_with_verdict(report.decision)


def _read_model(options: RunOptions, assume: Mapping[str, str], plan: MemoryPlan | None) -> Source:
    """Return the model to run, with dimensions and trip counts of a saved plan, or with the front in patches.

    An input with a default in the file is open if passed. Raises RunError for an input that is a constant.
    """
    const = parse_constants(options.const)
    request = CompileRequest(
        options.model,
        dims=parse_dims(options.dim) if plan is None else dict(plan.dims),
        const=const if plan is None else None,
        state=parse_state(options.state) if plan is None else None,
        max_trips=parse_max_trips(options.max_trips) if plan is None else dict(plan.max_trips),
        backend=options.backend,
        optimize=options.optimize,
        assume=assume,
        plan=plan,
    )
    source = read_smaller_graph(request, options.planning_options, options.patches, for_run=True)
    given = given_names(options.inputs or [], source.fixed)
    refused = given if plan is not None else given & const.keys()
    if refused:
        raise RunError(f"--input {printable(min(refused))}: {source.fixed[min(refused)]}")
    if given:
        request = replace(request, const={**const, **dict.fromkeys(sorted(given), OPEN_DEFAULT)})
        source = read_smaller_graph(request, options.planning_options, options.patches, for_run=True)
    return source


def _measured_run(executable: Executable, inputs: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Run once, and measure. Nodes that contradict the file, known since the file was read, are a note of an error."""
    try:
        return executable.measured(inputs)
    except KernelError as error:
        for finding in source.warnings:
            if finding.rule == CONTRADICTION:
                error.add_note(f"known before the run: {finding}")
        raise


def _compile(request: CompileRequest) -> Executable:
    with packing_progress() as progress:
        return compile_request(replace(request, progress=progress))


def _print_run(report: RunReport, source: Source, *, in_json: bool) -> None:
    if in_json:
        print_json({**run_json(report), **warnings_json(source)})
    else:
        answer_console().print(render_run(report))
        print_warnings(source)


def _load_plan(options: RunOptions) -> MemoryPlan | None:
    """Return the plan in the file; None without a file. Raises PlanError for an option already decided by the plan."""
    if options.plan is None:
        return None
    for name in ("dim", "const", "state", "max_trips", "no_reuse", "streams", "order", "assume", "patches"):
        if getattr(options, name):
            raise PlanError(
                f"{option_name(name)} cannot be combined with --plan: {options.plan} fixes it. Drop one of the options"
            )
    return load(options.plan)


def _inputs_and_weights(source: Source, options: RunOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of all inputs, and of the weights stored without content in the model, by name.

    Missing contents are drawn at random with the seed. Raises RunError for missing contents without a seed.
    """
    graph = source.graph
    inputs = source.inputs_by_name
    without_content = [value for value in graph.weights if value.name not in source.weights and value.literal is None]
    weights = {value.name: value for value in without_content}
    wanted: dict[str, Value] = {**inputs, **weights}
    provided = read_inputs(options.inputs or [], wanted)
    missing = {name: value for name, value in wanted.items() if name not in provided and name not in source.defaults}
    if missing and options.seed is None:
        raise RunError(f"{options.model}: {missing_inputs_message(missing, len(wanted))}")
    contents = provided | random_arrays(missing, options.seed or 0)
    return {name: contents[name] for name in inputs if name in contents}, {name: contents[name] for name in weights}


def _time_runs(executable: Executable, inputs: Mapping[str, Any], repeat: int) -> list[float]:
    """Return the seconds of each of `repeat` runs."""
    seconds = []
    for _ in range(repeat):
        started = perf_counter()
        executable(inputs)
        seconds.append(perf_counter() - started)
    return seconds


def _compare_runs(
    executable: Executable, unplanned: Executable | None, inputs: Mapping[str, Any], poison: bool
) -> dict[str, tuple[str, ...]]:
    """Return the differences of the requested runs ("compare", "poison") from the plain run; empty for equal runs.

    The plain run has succeeded before. A RunError of a requested run is recorded under "poison".
    """
    verdicts: dict[str, tuple[str, ...]] = {}
    try:
        if unplanned is not None:
            verdicts["compare"] = compare(unplanned, executable, inputs).differences
        if poison:
            plain, poisoned = executable.run_watched(inputs, watch_steps, serial=True), run_poisoned(executable, inputs)
            wrong = [name for name in plain if not equal_bits(plain[name], poisoned[name])]
            verdicts["poison"] = tuple(f"output {name}: the poisoned run differs" for name in wrong)
    except RunError as error:
        verdicts["poison"] = (str(error),)
    return verdicts


def _profile_run(executable: Executable, inputs: Mapping[str, Any], path: Path) -> tuple[Cost, ...]:
    """Profile one more run and return the steps, slowest first. The trace is saved even after an interrupt."""
    profile = Profile(executable)
    try:
        executable.run_watched(inputs, profile.watch)
    finally:
        profile.save(path)
    return profile.slowest()


def _package_versions(executable: Executable) -> dict[str, str]:
    """Return the versions of Sublet and of the packages of the backends in use."""
    names = ["sublet", *(name for backend in executable.nodes_of_backends for name in PACKAGES.get(backend, ()))]
    return {name: version_of(name) or "unknown" for name in names}

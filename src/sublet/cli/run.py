"""The command `sublet run`: plan a model, run the model in exactly the planned arena, and report memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from sublet.analysis.options import Options
from sublet.api.binding import model_to_run
from sublet.api.compiling import compile
from sublet.base.errors import PlanError, RunError
from sublet.base.optional_imports import version_of
from sublet.cli import options
from sublet.cli.array_io import input_paths, missing_inputs_message, random_arrays, read_inputs, write_arrays
from sublet.cli.console import (
    answer_console,
    exit_with_verdict,
    packing_progress,
    print_json,
    print_warnings,
    refuse_overwriting,
    reports_errors,
    warnings_json,
)
from sublet.cli.options import BudgetQuestion, parse_assumed_shapes, parse_dims, parse_max_trips
from sublet.cli.patch_option import apply_patches_option
from sublet.cli.run_report import RunReport, render_run, run_json
from sublet.ir.graph import Value
from sublet.ir.model import Model as Source
from sublet.plan import MemoryPlan
from sublet.plan.file import load, save
from sublet.runtime.backends.registry import AUTO, BACKENDS
from sublet.runtime.differential import compare, equal_bits, watch_steps
from sublet.runtime.executable import Executable
from sublet.runtime.poison import run_poisoned
from sublet.runtime.profile import Cost, Profile

PACKAGES = {"reference": ("onnx", "numpy"), "numpy": ("numpy",), "onnxruntime": ("onnxruntime",)}
"""The packages computing the results, by backend."""

WITHOUT_REUSE = Options(strategy="no_reuse", share=False)

BackendName = Annotated[str, typer.Option("--backend", metavar="B", help=f"{AUTO}, or one of {', '.join(BACKENDS)}.")]
Autotune = Annotated[bool, typer.Option("--autotune", help="Time the backends on this machine and use the fastest.")]
Feed = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE",
        help="An input from .npy or .npz, or a number; FILE.npz alone gives several inputs.",
    ),
]
Planned = Annotated[
    Path | None, typer.Option("--plan", metavar="PLAN", help="Use a plan written by `sublet plan --out`.")
]


Chance = Annotated[
    int | None,
    typer.Option("--random", min=0, metavar="SEED", help="Fill missing inputs and weights with random numbers."),
]
Poison = Annotated[
    bool, typer.Option("--poison", help="Run again with all dead bytes poisoned; exit 1 if the outputs differ.")
]
NoReuse = Annotated[bool, typer.Option("--no-reuse", help="Give every tensor separate bytes.")]
Compared = Annotated[
    bool,
    typer.Option("--compare", help="Compare with a run without reuse, also in a poisoned arena; exit 1 if different."),
]
SavePlan = Annotated[Path | None, typer.Option("--save-plan", metavar="PLAN", help="Write the executed plan as JSON.")]
Trace = Annotated[Path | None, typer.Option("--profile", metavar="TRACE", help="Write a trace for Perfetto, as JSON.")]


@reports_errors
def run(
    model: options.Model,
    plan: Planned = None,
    dim: options.Dim = None,
    max_trips: options.MaxTrips = None,
    input_: Feed = None,
    random: Chance = None,
    compare_: Compared = False,
    poison: Poison = False,
    no_reuse: NoReuse = False,
    backend: BackendName = AUTO,
    optimize: options.Optimizer = AUTO,
    order: options.Orders | None = None,
    patches: options.Patches = None,
    autotune: Autotune = False,
    streams: Annotated[int | None, typer.Option(min=1, help="Number of concurrent streams.")] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Number of timed runs.")] = 1,
    budget: options.Budget = None,
    max_dim: options.MaxDim = None,
    assume: options.Assume = None,
    save_plan: SavePlan = None,
    profile: Trace = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the outputs as .npz.")] = None,
    as_json_: options.Json = False,
) -> None:
    """Plan a model, run the model in exactly the planned arena, and report memory and time.

    Exit status: 0 success; 1 runs differ (--compare, --poison) or the budget is exceeded; 2 bad input; 3 the budget
    verdict is unknown.
    """
    feeds, question, shapes = input_ or [], BudgetQuestion(budget, max_dim), parse_assumed_shapes(assume)
    refuse_overwriting([model, *([plan] if plan else []), *input_paths(feeds)], out, save_plan, profile)
    conflicting = {"dim": dim, "max-trips": max_trips, "no-reuse": no_reuse, "streams": streams, "order": order}
    saved_plan = _load_plan(plan, {**conflicting, "assume": assume, "patches": patches})
    dims, trips = (
        (parse_dims(dim), parse_max_trips(max_trips))
        if saved_plan is None
        else (dict(saved_plan.dims), dict(saved_plan.max_trips))
    )
    compile_options: dict[str, Any] = {"backend": backend, "optimize": optimize, "autotune": autotune}
    source = model_to_run(
        model, dims, max_trips=trips, backend=backend, optimize=optimize, assume=shapes, plan=saved_plan
    )
    source = apply_patches_option(source, _planning_options(streams, order), patches)
    inputs, weights = _inputs_and_weights(source, model, feeds, random)

    def compile_source(options: Options, plan: MemoryPlan | None = None) -> Executable:
        with packing_progress() as progress:
            return compile(source, **compile_options, options=options, plan=plan, weights=weights, progress=progress)

    executable = compile_source(WITHOUT_REUSE if no_reuse else _planning_options(streams, order), saved_plan)
    if save_plan is not None:
        save(executable.plan, save_plan)
    outputs = executable.measured(inputs)
    report = RunReport(
        executable,
        seconds=_time_runs(executable, inputs, repeat),
        versions=_package_versions(executable),
        verdicts=_compare_runs(executable, compile_source(WITHOUT_REUSE) if compare_ else None, inputs, poison),
        slowest=() if profile is None else _profile_run(executable, inputs, profile),
        decision=question.verdict_on(executable.plan),
    )
    if out is not None:
        write_arrays(outputs, out)
    _print_run(report, source, in_json=as_json_)
    if not report.is_equal:
        raise typer.Exit(1)
    exit_with_verdict(report.decision)


def _print_run(report: RunReport, source: Source, *, in_json: bool) -> None:
    if in_json:
        print_json({**run_json(report), **warnings_json(source)})
    else:
        answer_console().print(render_run(report))
        print_warnings(source)


def _planning_options(streams: int | None, order: options.Order | None) -> Options:
    return Options(streams=streams or 1, order=(order or options.Order.given).value)


def _load_plan(path: Path | None, decided: Mapping[str, object]) -> MemoryPlan | None:
    """Return the plan in the file; None without a file. Raises PlanError for an option already decided by the plan."""
    if path is None:
        return None
    for option, given in decided.items():
        if given:
            raise PlanError(f"--{option} cannot be combined with --plan: {path} fixes it. Drop one of the options")
    return load(path)


def _inputs_and_weights(
    source: Source, model: Path, feeds: list[str], seed: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of all inputs, and of the weights stored without content in the model, by name.

    Missing contents are drawn at random with `seed`. Raises RunError for missing contents if `seed` is None.
    """
    graph = source.graph
    inputs = dict(zip(source.inputs or [value.name for value in graph.inputs], graph.inputs, strict=True))
    without_content = [value for value in graph.weights if value.name not in source.weights and value.literal is None]
    weights = {value.name: value for value in without_content}
    wanted: dict[str, Value] = {**inputs, **weights}
    provided = read_inputs(feeds, wanted)
    missing = {name: value for name, value in wanted.items() if name not in provided}
    if missing and seed is None:
        raise RunError(f"{model}: {missing_inputs_message(missing, len(wanted))}")
    contents = provided | random_arrays(missing, seed or 0)
    return {name: contents[name] for name in inputs}, {name: contents[name] for name in weights}


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

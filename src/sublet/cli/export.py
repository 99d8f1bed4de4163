"""The command `sublet export`: write a proven plan in a form for a device or for another tool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest, model_to_run
from sublet.api.plans import export_forms, export_plan
from sublet.api.sources import model_of_plan
from sublet.base.errors import PlanError
from sublet.base.files import make_folder, write
from sublet.base.formatting import human, parse_bytes
from sublet.checker import require_valid
from sublet.cli import options as shared
from sublet.cli.console import (
    EXIT_STATUS,
    answer_console,
    packing_progress,
    print_json,
    refuse_overwriting,
)
from sublet.cli.options import (
    choose_alignment,
    command_from,
    option_name,
    parse_constants,
    parse_dims,
    parse_max_trips,
    parse_state,
)
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.ir.graph import Graph
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.export import ExportContext
from sublet.plan.file import load
from sublet.plan.verdict import BudgetOutcome, max_total_bytes, outcome_within
from sublet.planning.pipeline import plan_memory

FILE_FORM = "export "
"""The beginning of the commands of integrations that write a plan into one file."""


def _file_forms() -> list[str]:
    """Return the names of the forms written by commands of integrations."""
    words = (words for each in installed_integrations() for words in each.commands)
    return [each.removeprefix(FILE_FORM) for each in words if each.startswith(FILE_FORM)]


@dataclass(frozen=True)
class ExportOptions:
    """The argument and the options of `sublet export`."""

    model: shared.Model
    to: Annotated[
        str, typer.Option(help=f"The form: {', '.join((*export_forms(), *_file_forms()))}, or a form of a plug-in.")
    ]
    out: Annotated[
        Path,
        typer.Option(
            "--out", help=f"The folder to write to, created if missing; for {', '.join(_file_forms())} the file."
        ),
    ]
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A plan written by `sublet plan --out`, checked first.")
    ] = None
    dim: shared.Dim = None
    const: shared.Const = None
    state: shared.State = None
    max_trips: shared.MaxTrips = None
    align: Annotated[int | None, typer.Option(help="Alignment of all offsets in bytes.")] = None
    budget: shared.Budget = None
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section", metavar="[MEMORY=]NAME", help="The linker section of a memory, for C. Repeat for more."
        ),
    ] = None
    name: Annotated[
        str, typer.Option(help="Prefix of files and identifiers, instead of the graph's name.", metavar="NAME")
    ] = ""
    in_json: shared.Json = False


@dataclass(frozen=True)
class WrittenPlan:
    """The files of an exported plan, and the bytes that the reader of the files needs.

    least    bytes needed in any case
    most     bytes that are always enough; None if unknown
    lines    remarks for people
    content  the remarks for JSON
    """

    files: tuple[Path, ...]
    least: int
    most: int | None
    lines: tuple[str, ...] = ()
    content: dict[str, Any] = field(default_factory=dict)


@command_from(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a proven plan for a device or for a review. Without --plan, the model is planned first.

    Exit status: 0 written, and within the budget if given; 1 over the budget; 2 bad input; 3 unknown whether the budget
    is enough.
    """
    budget = None if options.budget is None else parse_bytes(options.budget)
    if options.plan is not None:
        graph, memory_plan = _load_checked_plan(options, options.plan)
    else:
        texts = options.dim, options.const, options.state, options.max_trips
        graph, memory_plan = plan_model(options.model, *texts, options.align)
    write_file = resolve_entry("commands", f"{FILE_FORM}{options.to}")
    if write_file is not None:
        if options.section or options.name:
            raise PlanError(
                f"{'--section' if options.section else '--name'} is not for {options.to}: --out names its one file"
            )
        written = write_file(options.model, memory_plan, options.out, options.plan)
    else:
        written = _write_files(options, graph, memory_plan)
    _answer(written, memory_plan, budget, in_json=options.in_json)


def _write_files(options: ExportOptions, graph: Graph, memory_plan: MemoryPlan) -> WrittenPlan:
    """Write the files of a form into the folder of `--out`."""
    sections = dict(_parse_section(text, memory_plan) for text in options.section or ())
    files = export_plan(memory_plan, options.to, ExportContext(sections, options.model, graph, options.name))
    make_folder(options.out)
    sources = [path for path in (options.model, options.plan) if path is not None]
    refuse_overwriting(sources, *(options.out / file for file in files))
    for file, content in files.items():
        write(options.out / file, content)
    paths = tuple(options.out / file for file in files)
    return WrittenPlan(paths, memory_plan.arena_bytes, max_total_bytes(memory_plan))


def _answer(written: WrittenPlan, memory_plan: MemoryPlan, budget: int | None, *, in_json: bool) -> None:
    """Print the files and the verdict on the budget; exit with the status of the verdict."""
    outcome = None if budget is None else outcome_within(budget, written.least, written.most)
    if in_json:
        verdict = {} if outcome is None else {"budget_bytes": budget, "fits": outcome.fits}
        sizes = {"arena_bytes": memory_plan.arena_bytes, "needed_bytes": written.most}
        print_json({"files": list(map(str, written.files)), **sizes, **verdict, **written.content})
    else:
        lines = [*(f"wrote {path}" for path in written.files), *written.lines]
        if outcome is not None and budget is not None:
            lines.insert(0, _describe_verdict(outcome, written, budget))
        for line in lines:  # as Text: brackets of names and extras are no markup
            answer_console().print(Text(line), soft_wrap=True)
    if outcome is not None:
        raise typer.Exit(EXIT_STATUS[outcome])


def _describe_verdict(outcome: BudgetOutcome, written: WrittenPlan, budget: int) -> str:
    """Return the verdict on a budget as a sentence."""
    head = {True: "Fits", False: "Does not fit", None: "Unknown whether the arena fits"}[outcome.fits]
    need = f"the arena needs {written.least:,} B"
    if written.most is None:
        need = f"the planned tensors take {written.least:,} B, and other bytes of the arena are unknown"
    elif written.most > written.least:
        need = f"the arena needs {written.least:,} B, and values outside at most {written.most - written.least:,} B"
    return f"{head} the budget of {human(budget)}: {need}"


def _load_checked_plan(options: ExportOptions, path: Path) -> tuple[Graph, MemoryPlan]:
    """Return the planned graph, and the plan in the file. Raises PlanError for an option already decided by the plan.

    Raises PlanViolation for a plan refused by the checker.
    """
    for option in ("dim", "const", "state", "max_trips", "align"):
        if getattr(options, option):
            raise PlanError(f"{option_name(option)} is for planning, but {path} is a finished plan")
    memory_plan = load(path)
    graph = model_of_plan(options.model, memory_plan).graph
    require_valid(graph, memory_plan.schedule, memory_plan)
    return graph, memory_plan


def plan_model(
    model: Path,
    dim: list[str] | None,
    const: list[str] | None,
    state: list[str] | None,
    max_trips: list[str] | None,
    align: int | None,
    in_rows: bool = False,
) -> tuple[Graph, MemoryPlan]:
    """Return the graph of a model, and a new plan; the arguments are the texts of the options with these names.

    Without `in_rows` every value is contiguous, as kernels of others expect.
    """
    request = CompileRequest(model, dims=parse_dims(dim), max_trips=parse_max_trips(max_trips), optimize=AS_IS)
    source = model_to_run(replace(request, const=parse_constants(const), state=parse_state(state)))
    with packing_progress() as progress:
        options = Options(alignment=choose_alignment(model, align), in_rows=in_rows)
        return source.graph, plan_memory(source, options, progress=progress)


def _parse_section(text: str, memory_plan: MemoryPlan) -> tuple[str, str]:
    """Parse `MEMORY=NAME` into a memory and the linker section; without `MEMORY=`, the first memory is meant."""
    memory, named, name = text.partition("=")
    return (memory, name) if named else (memory_plan.arenas[0].name, text)

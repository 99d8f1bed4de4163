"""The command `sublet export`: write a proven plan in a form for a device or for another tool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest, model_to_run
from sublet.api.plans import export_forms, export_plan
from sublet.api.sources import model_of_plan
from sublet.base.errors import PlanError
from sublet.base.files import make_folder, write
from sublet.checker import require_valid
from sublet.cli import options as shared
from sublet.cli.console import answer_console, packing_progress, refuse_overwriting
from sublet.cli.options import choose_alignment, command_from, parse_constants, parse_dims, parse_max_trips, parse_state
from sublet.integrations.registry import installed_integrations, resolve_entry
from sublet.ir.graph import Graph
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.export import ExportContext
from sublet.plan.file import load
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
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section", metavar="[MEMORY=]NAME", help="The linker section of a memory, for C. Repeat for more."
        ),
    ] = None
    name: Annotated[
        str, typer.Option(help="Prefix of files and identifiers, instead of the graph's name.", metavar="NAME")
    ] = ""


@command_from(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a proven plan for a device or for a review. Without --plan, the model is planned first."""
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
        write_file(options.model, memory_plan, options.out, options.plan)
        return
    sections = dict(_parse_section(text, memory_plan) for text in options.section or ())
    files = export_plan(memory_plan, options.to, ExportContext(sections, options.model, graph, options.name))
    make_folder(options.out)
    sources = [path for path in (options.model, options.plan) if path is not None]
    refuse_overwriting(sources, *(options.out / file for file in files))
    for file, content in files.items():
        write(options.out / file, content)
        answer_console().print(f"wrote {options.out / file}", soft_wrap=True)


def _load_checked_plan(options: ExportOptions, path: Path) -> tuple[Graph, MemoryPlan]:
    """Return the planned graph, and the plan in the file. Raises PlanError for an option already decided by the plan.

    Raises PlanViolation for a plan refused by the checker.
    """
    for option in ("dim", "const", "state", "max_trips", "align"):
        if getattr(options, option):
            raise PlanError(f"--{option.replace('_', '-')} is for planning, but {path} is a finished plan")
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

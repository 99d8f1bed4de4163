"""The command `sublet export`: write a proven plan in a form for a device or for another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.analysis.options import Options
from sublet.api.binding import model_to_run
from sublet.api.exporting import export_forms, export_plan
from sublet.api.sources import model_of_plan
from sublet.base.errors import PlanError
from sublet.base.files import make_folder, write
from sublet.checker import require_valid
from sublet.cli import options
from sublet.cli.console import answer_console, packing_progress, refuse_overwriting, reports_errors
from sublet.cli.options import choose_alignment, parse_dims, parse_max_trips
from sublet.integrations.registry import integrations, resolve_entry
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.export import ExportContext
from sublet.plan.file import load
from sublet.planning.pipeline import plan_memory

FILE_FORM = "export "
"""The beginning of the commands of integrations that write a plan into one file."""


def _file_forms() -> list[str]:
    """Return the names of the forms written by commands of integrations."""
    words = (words for each in integrations() for words in each.commands)
    return [each.removeprefix(FILE_FORM) for each in words if each.startswith(FILE_FORM)]


@reports_errors
def export(
    model: options.Model,
    to: Annotated[
        str, typer.Option(help=f"The form: {', '.join((*export_forms(), *_file_forms()))}, or a form of a plug-in.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help=f"The folder to write to, created if missing; for {', '.join(_file_forms())} the file."
        ),
    ],
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A plan written by `sublet plan --out`, checked first.")
    ] = None,
    dim: options.Dim = None,
    max_trips: options.MaxTrips = None,
    align: Annotated[int | None, typer.Option(help="Alignment of all offsets in bytes.")] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section", metavar="[MEMORY=]NAME", help="The linker section of a memory, for C. Repeat for more."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Prefix of files and identifiers, instead of the graph's name.", metavar="NAME")
    ] = "",
) -> None:
    """Write a proven plan for a device or for a review. Without --plan, the model is planned first."""
    planning_options = [
        name for name, value in (("--dim", dim), ("--max-trips", max_trips), ("--align", align)) if value
    ]
    if plan is not None and planning_options:
        raise PlanError(f"{planning_options[0]} is for planning, but {plan} is a finished plan")
    if plan is not None:
        memory_plan = load(plan)
        graph = model_of_plan(model, memory_plan).graph
        require_valid(graph, memory_plan.schedule, memory_plan)
    else:
        source = model_to_run(model, parse_dims(dim), max_trips=parse_max_trips(max_trips), optimize=AS_IS)
        with packing_progress() as progress:
            memory_plan = plan_memory(source, Options(alignment=choose_alignment(model, align)), progress=progress)
        graph = source.graph
    write_file = resolve_entry("commands", f"{FILE_FORM}{to}")
    if write_file is not None:
        if section or name:
            raise PlanError(f"{'--section' if section else '--name'} is not for {to}: --out names its one file")
        write_file(model, memory_plan, out, plan)
        return
    files = export_plan(
        memory_plan,
        to,
        ExportContext(dict(_parse_section(text, memory_plan) for text in section or ()), model, graph, name),
    )
    make_folder(out)
    refuse_overwriting([path for path in (model, plan) if path is not None], *(out / file for file in files))
    for file, content in files.items():
        write(out / file, content)
        answer_console().print(f"wrote {out / file}", soft_wrap=True)


def _parse_section(text: str, memory_plan: MemoryPlan) -> tuple[str, str]:
    """Parse `MEMORY=NAME` into a memory and the linker section; without `MEMORY=`, the first memory is meant."""
    memory, named, name = text.partition("=")
    return (memory, name) if named else (memory_plan.arenas[0].name, text)

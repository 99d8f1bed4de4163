"""The command `sublet export`: a proven plan, in a form that a device or another tool reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.analysis.options import Options
from sublet.api.binding import to_run
from sublet.api.exporting import EXPORTERS, exported
from sublet.api.sources import planned_model
from sublet.base.errors import PlanError
from sublet.base.files import make_folder, write
from sublet.checker import require_valid
from sublet.cli import options
from sublet.cli.console import answered, answers, packing_progress, refuse_overwriting
from sublet.cli.export_tflm import TFLM, export_tflm
from sublet.cli.options import alignment_of, bound_dims, bound_trips
from sublet.ir.recipe import AS_IS
from sublet.plan import MemoryPlan
from sublet.plan.export import Told
from sublet.plan.file import load
from sublet.planning.pipeline import plan_memory


@answered
def export(
    model: options.Model,
    to: Annotated[str, typer.Option(help=f"The form: {', '.join((*EXPORTERS, TFLM))}, or one that a package adds.")],
    out: Annotated[
        Path, typer.Option("--out", help=f"The folder to write to, made if it is missing; for {TFLM} the file.")
    ],
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A plan written by `sublet plan --out`; it is checked first.")
    ] = None,
    dim: options.Dim = None,
    max_trips: options.MaxTrips = None,
    align: Annotated[int | None, typer.Option(help="Every offset is a multiple of this many bytes.")] = None,
    section: Annotated[
        list[str] | None,
        typer.Option("--section", metavar="[MEMORY=]NAME", help="The linker section of a memory, for C; repeat."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="What files and identifiers begin with, instead of the graph's name.", metavar="NAME")
    ] = "",
) -> None:
    """Write a proven plan for a device or for a review. Without --plan, the model is planned."""
    told = [name for name, value in (("--dim", dim), ("--max-trips", max_trips), ("--align", align)) if value]
    if plan is not None and told:
        raise PlanError(f"{told[0]} is for planning, and {plan} is planned already")
    if plan is not None:
        made = load(plan)
        graph = planned_model(model, made).graph
        require_valid(graph, made.schedule, made)
    else:
        source = to_run(model, bound_dims(dim), max_trips=bound_trips(max_trips), optimize=AS_IS)
        with packing_progress() as progress:
            made = plan_memory(source, Options(alignment=alignment_of(model, align)), progress=progress)
        graph = source.graph
    if to == TFLM:
        if section or name:
            raise PlanError(f"{'--section' if section else '--name'} is not for {TFLM}: --out names its one file")
        export_tflm(model, made, out, plan)
        return
    files = exported(made, to, Told(dict(_section(text, made) for text in section or ()), model, graph, name))
    make_folder(out)
    refuse_overwriting([path for path in (model, plan) if path is not None], *(out / file for file in files))
    for file, content in files.items():
        write(out / file, content)
        answers().print(f"wrote {out / file}", soft_wrap=True)


def _section(text: str, made: MemoryPlan) -> tuple[str, str]:
    """A memory and its section; the first memory where none is named."""
    memory, named, name = text.partition("=")
    return (memory, name) if named else (made.arenas[0].name, text)

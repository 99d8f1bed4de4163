"""Output of plans on the terminal and in files, and the command `sublet show`: draw one plan or two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from sublet.api.plans import check_plan
from sublet.base.formatting import human, printable
from sublet.checker import CheckResult
from sublet.cli import options as shared
from sublet.cli.console import answer_console, picture_width, print_json, refuse_overwriting
from sublet.cli.options import command_from
from sublet.plan import MemoryPlan
from sublet.plan.file import load
from sublet.plan.statistics import checked_summary
from sublet.plan.verdict import Verdict
from sublet.viz.comparison import compare_pictures
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.report import plan_json
from sublet.viz.summary import NameCell, plain_table, render_summary, render_verdict
from sublet.viz.terminal import memory_map
from sublet.viz.view_model import Picture, picture_of_plan


def write_pictures(picture: Picture, html: Path | None, png: Path | None) -> None:
    """Write the picture to the requested files."""
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def print_plan(
    plan: MemoryPlan, picture: Picture, claimed: str = "", decision: Verdict | None = None, condition: str = ""
) -> None:
    """Print the verdict, if any, the figures and the memory map; `claimed` says why the figures are not proven.

    `condition` is a sentence in the line of the verdict.
    """
    if decision is not None:
        verdict = render_verdict(decision, plan)
        answer_console().print(verdict.append(f" {condition}") if condition and isinstance(verdict, Text) else verdict)
        answer_console().print()
    answer_console().print(render_summary(plan, claimed))
    print_memory_map(picture)


def distinct_names(first: Path, second: Path) -> tuple[str, str]:
    """Return distinct names for two files: the file names if different, else the full paths."""
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    return printable(names[0]), printable(names[1])


def print_two_plans(plans: tuple[MemoryPlan, MemoryPlan], names: tuple[str, str]) -> None:
    """Print the figures of two plans side by side, with the change from the first to the second."""
    first, second = plans
    table = plain_table()
    for title in ("", *names, "change"):
        table.add_column(NameCell(title), justify="right" if title else "left")
    rows = [
        ("arena", first.arena_bytes, second.arena_bytes),
        ("lower bound", first.lower_bound_bytes, second.lower_bound_bytes),
        ("peak", first.peak.nbytes, second.peak.nbytes),
        ("without reuse", first.total_bytes, second.total_bytes),
        ("outside the arena", first.bound_bytes, second.bound_bytes),
    ]
    for name, one, two in rows:
        change = "" if one == two else f"{'+' if two > one else '-'}{human(abs(two - one))}"
        table.add_row(name, human(one), human(two), change)
    answer_console().print(Text("Two plans, as stated in their files", "dim"))
    answer_console().print(table)


def print_check_result(plan: MemoryPlan, check_result: CheckResult) -> None:
    """Print the violations of a plan; for a valid plan, the proven and the unproven claims."""
    for finding in check_result.findings:
        answer_console().print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    if check_result.findings:
        return
    bound_words = f"lower bound {human(plan.lower_bound_bytes)}"
    if why := check_result.unproven.get("lower_bound_bytes"):
        bound_words = f"[yellow]{bound_words} not proven[/yellow] ({why})"
    else:
        optimal = plan.gap == 0 and not plan.assumed_types
        bound_words += " proven: optimal for these buffers in this order" if optimal else " proven"
    answer_console().print(f"[green]valid[/green]: {escape(checked_summary(plan))}; {bound_words}")
    for name, why in check_result.unproven.items():
        if name != "lower_bound_bytes":
            answer_console().print(f"[yellow]not proven[/yellow]: {name} ({why})")


def print_memory_map(picture: Picture) -> None:
    """Print the memory map as text."""
    console = answer_console()
    if picture.arena_bytes:
        console.print()
        console.print(memory_map(picture, width=picture_width(), height=16))


UNCHECKED = "not checked against its model"


@dataclass(frozen=True)
class ShowOptions:
    """The arguments and the options of `sublet show`."""

    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")]
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second plan to draw on the same time axis.")
    ] = None
    model: Annotated[
        Path | None, typer.Option(help="The model of the plan: check the plan against the model first.")
    ] = None
    html: shared.Html = None
    png: shared.Png = None
    in_json: shared.Json = False


@command_from(ShowOptions)
def show(options: ShowOptions) -> None:
    """Show a saved plan. Two plans are drawn side by side on one time axis.

    With --model, the checker first proves all claims of the plan; a wrong plan is not shown (exit status 1).
    """
    sources = [path for path in (options.plan_path, options.other, options.model) if path is not None]
    refuse_overwriting(sources, options.html, options.png)
    first_plan = load(options.plan_path)
    result = None if options.model is None else check_plan(options.model, first_plan)
    if result is not None and result.findings:
        print_check_result(first_plan, result)
        raise typer.Exit(1)
    claimed = UNCHECKED if result is None else ""
    picture = replace(picture_of_plan(first_plan, claimed), title=options.plan_path.name)
    if options.other is not None:
        second_plan, names = load(options.other), distinct_names(options.plan_path, options.other)
        picture = compare_pictures(picture, picture_of_plan(second_plan, UNCHECKED), names)
    write_pictures(picture, options.html, options.png)
    if options.in_json:
        content = {"claims": None if result is None else result.claim_status, **plan_json(first_plan, None, None)}
        print_json(content if options.other is None else {**content, "other": plan_json(second_plan, None, None)})
    elif options.other is not None:
        print_two_plans((first_plan, second_plan), names)
        print_memory_map(picture)
    else:
        print_plan(first_plan, picture, claimed)

"""Output of plans and packings: pictures in files, figures and memory maps on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.text import Text

from sublet.base.formatting import human, printable
from sublet.checker import CheckResult
from sublet.cli.console import answer_console, picture_width
from sublet.plan import MemoryPlan
from sublet.plan.statistics import checked_summary
from sublet.plan.verdict import Verdict
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.summary import NameCell, plain_table, render_summary, render_verdict
from sublet.viz.terminal import memory_map
from sublet.viz.view_model import Picture


def write_pictures(picture: Picture, html: Path | None, png: Path | None) -> None:
    """Write the picture to the requested files."""
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def print_plan(plan: MemoryPlan, picture: Picture, claimed: str = "", decision: Verdict | None = None) -> None:
    """Print the verdict, if any, the figures and the memory map; `claimed` says why the figures are not proven."""
    if decision is not None:
        answer_console().print(render_verdict(decision, plan))
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

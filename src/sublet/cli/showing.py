"""Output of plans and packings: pictures in files, figures and memory maps on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.printable import printable
from sublet.checker import Judgement
from sublet.cli.console import answers, picture_width
from sublet.plan import MemoryPlan
from sublet.plan.coverage import checked_words
from sublet.plan.verdict import Verdict
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.rectangles import Picture
from sublet.viz.summary import summary
from sublet.viz.tables import plain_table
from sublet.viz.terminal import memory_map
from sublet.viz.verdict import verdict_words


def draw(picture: Picture, html: Path | None, png: Path | None) -> None:
    """Write the picture to the requested files."""
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def show_plan(made: MemoryPlan, picture: Picture, claimed: str = "", decision: Verdict | None = None) -> None:
    """Print the verdict, if any, the figures and the memory map; `claimed` says why the figures are not proven."""
    if decision is not None:
        answers().print(verdict_words(decision, made))
        answers().print()
    answers().print(summary(made, claimed))
    print_map(picture)


def names_apart(first: Path, second: Path) -> tuple[str, str]:
    """Return distinct names for two files: the file names if different, else the full paths."""
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    return printable(names[0]), printable(names[1])


def show_both(plans: tuple[MemoryPlan, MemoryPlan], names: tuple[str, str]) -> None:
    """Print the figures of two plans side by side, with the change from the first to the second."""
    first, second = plans
    table = plain_table()
    for title in ("", *names, "change"):
        table.add_column(title, justify="right" if title else "left", overflow="fold")
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
    answers().print(Text("Two plans, as their files say", "dim"))
    answers().print(table)


def show_judgement(made: MemoryPlan, judged: Judgement) -> None:
    """Print the violations of a plan; for a valid plan, the proven and the unproven claims."""
    for finding in judged.findings:
        answers().print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    if judged.findings:
        return
    bound_words = f"lower bound {human(made.lower_bound_bytes)}"
    if why := judged.unproven.get("lower_bound_bytes"):
        bound_words = f"[yellow]{bound_words} not proven[/yellow] ({why})"
    else:
        optimal = made.gap == 0 and not made.assumed
        bound_words += " proven: optimal for these buffers in this order" if optimal else " proven"
    answers().print(f"[green]valid[/green]: {escape(checked_words(made))}; {bound_words}")
    for name, why in judged.unproven.items():
        if name != "lower_bound_bytes":
            answers().print(f"[yellow]not proven[/yellow]: {name} ({why})")


def print_map(picture: Picture) -> None:
    """Print the memory map as text."""
    console = answers()
    if picture.arena_bytes:
        console.print()
        console.print(memory_map(picture, width=picture_width(), height=16))

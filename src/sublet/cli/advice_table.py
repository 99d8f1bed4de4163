"""Advice as text and tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.escape import printable
from sublet.plan.advice import Advice, Advised
from sublet.viz.tables import plain_table

KIND_LABELS = {"option": "your choice", "model": "same network", "what-if": "what if"}


def advice_table(advised: Advised) -> RenderableType:
    """Return the changes with a smaller arena, largest saving first; then the changes tried without success."""
    parts: list[RenderableType] = [Text("What would lower the arena, each figure from a plan:", "bold")]
    if advised.helpful:
        table = plain_table()
        for name in ("saves", "arena"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("kind", no_wrap=True)
        table.add_column("change", overflow="fold")
        for each in advised.helpful:
            row = human(each.saved_bytes), human(each.arena_bytes), KIND_LABELS[each.kind]
            table.add_row(*row, Text(printable(f"{each.what}: {each.how}{_describe_outside(each)}")))
        parts.append(table)
    else:
        parts.append(Text("no tried change"))
    vain = [
        f"{each.how if each.kind == 'option' else each.what} ({_describe_arena(each)})" for each in advised.unhelpful
    ]
    if vain:
        parts.append(Text(printable(f"No help: {', '.join(vain)}."), "dim"))
    parts += [Text(printable(f"No plan: {failed}"), "dim") for failed in advised.failed]
    if advised.stopped:
        parts.append(Text(f"Not everything was tried: {advised.stopped}.", "yellow"))
    return Group(*parts)


def _describe_outside(each: Advice) -> str:
    if each.outside_bytes == 0:
        return ""
    more = "more" if each.outside_bytes > 0 else "less"
    return f" ({human(abs(each.outside_bytes))} {more} outside the arena)"


def _describe_arena(each: Advice) -> str:
    more = f", with {each.unplanned} more values that could not be planned" if each.unplanned > 0 else ""
    return f"{human(each.arena_bytes)}{more}"

"""The style of tables on a terminal."""

from __future__ import annotations

from rich.table import Table


def plain_table() -> Table:
    """Return an empty table without lines, with dim titles."""
    return Table(box=None, padding=(0, 2), header_style="dim")

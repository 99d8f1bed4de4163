"""How tables look on a terminal."""

from __future__ import annotations

from rich.table import Table


def plain_table() -> Table:
    """A table without lines, its titles dim."""
    return Table(box=None, padding=(0, 2), header_style="dim")

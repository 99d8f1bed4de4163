"""A table of buffers for the terminal: bytes, and tensors in the buffer."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.escape import printable
from sublet.plan import MemoryPlan, Placement
from sublet.plan.verdict import LiveBuffer
from sublet.viz.tables import plain_table

MAX_BUFFERS = 12
"""Maximum of buffers in a table; one line sums up the rest."""
MAX_VALUES = 3
"""Maximum of listed values of one buffer."""

SHARING_WORDS = {
    "view": "view of",
    "part": "part of",
    "inplace": "over",
    "carry": "carried with",
    "slice": "slice of",
    "row": "row of",
    "joined": "in the buffer of",
}
"""The reason for sharing bytes, as a prefix of the sharing value's name."""


def buffer_table(buffers: tuple[LiveBuffer, ...], plan: MemoryPlan) -> RenderableType:
    """Return a table of the first buffers, with the values sharing each buffer."""
    places = {place.value: place for place in plan.placements}
    table = plain_table()
    table.add_column("bytes", justify="right", overflow="fold")
    for name in ("tensor", "type", "producer"):
        table.add_column(name, overflow="fold")
    for live in buffers[:MAX_BUFFERS]:
        for i, value in enumerate(live.values[:MAX_VALUES]):
            place = places[value]
            size = human(live.nbytes) if i == 0 else "shared"
            table.add_row(size, Text(printable(value)), Text(place.spec), Text(printable(_describe_maker(place))))
        if len(live.values) > MAX_VALUES:
            table.add_row("shared", Text(f"{len(live.values) - MAX_VALUES} more"), "", "")
    rest = buffers[MAX_BUFFERS:]
    if rest:
        table.add_row(human(sum(live.nbytes for live in rest)), Text(f"{len(rest)} more"), "", "")
    return table


def _describe_maker(place: Placement) -> str:
    """Return the producer of a value, with the reason for sharing bytes."""
    how = SHARING_WORDS.get(place.how)
    maker = place.producer or "input"
    return f"{maker} ({how} {place.shares})" if how else maker

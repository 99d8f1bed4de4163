"""Plans and packings as pictures: in files, and in characters on the terminal."""

from __future__ import annotations

from pathlib import Path

from sublet.console import answers, picture_width
from sublet.plan import MemoryPlan
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.rectangles import Picture
from sublet.viz.summary import summary
from sublet.viz.terminal import memory_map


def draw(picture: Picture, html: Path | None, png: Path | None) -> None:
    """Write the picture to the files asked for."""
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def show_plan(made: MemoryPlan, picture: Picture) -> None:
    """The figures of a plan, and its memory map."""
    answers().print(summary(made))
    print_map(picture)


def print_map(picture: Picture) -> None:
    """The memory map in characters."""
    console = answers()
    if picture.arena_bytes:
        console.print()
        console.print(memory_map(picture, width=picture_width(), height=16))

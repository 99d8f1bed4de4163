"""The map in the terminal, with colours and without."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Literal

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sublet.plan import RUN, PlanPoint
from sublet.viz.terminal import FREE, fill_grid, memory_map
from sublet.viz.view_model import Picture, picture_of_plan
from tests.viz.synthetic import network_plan, plan_of, small_plan

Colours = Literal["standard", "256", "truecolor"]

PLAIN = """\
                   ▼ peak 6 KiB at conv1
    6 KiB┤      cccccc                  cccccc
         │aaaaaaaaaaaa                  eeeeeeeeeeee
    4 KiB┤aa image aaa                  eee late eee
         │aaaaaaaaaaaa      dddd a dddddeeeeeeeeeeee
         │      bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
         │      bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
         │      bbbbbbbbbbbbb x bbbbbbbbbbbbbb
      0 B┤      bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
         └──────────────────────────────────────────
          0                   3                    7
     live       ██████      ▃▃▃▃▃▃▃▃▃▃▃▃██████
    bytes ▆▆▆▆▆▆██████████████████████████████▆▆▆▆▆▆
          arena 6 KiB  lower bound 6 KiB  gap 0 %
"""
ASCII = str.maketrans("▼┤│└─▃▆█", "v||+--*@")


def printed(picture: Picture, width: int, height: int, colours: Colours | None = None, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = Console(file=file, width=width, color_system=colours, force_terminal=colours is not None)
    console.print(memory_map(picture, width, height))
    file.flush()
    return raw.getvalue().decode(encoding)


def stripped(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_without_colours_buffers_are_letters() -> None:
    text = printed(picture_of_plan(small_plan()), 52, 14)
    assert stripped(text) == PLAIN


def test_a_terminal_that_knows_only_ascii_gets_only_ascii() -> None:
    text = printed(picture_of_plan(small_plan()), 52, 14, encoding="ascii")
    assert stripped(text) == PLAIN.translate(ASCII)


@pytest.mark.parametrize("colours", [None, "standard", "256", "truecolor"])
def test_the_map_keeps_within_the_terminal(colours: Colours | None) -> None:
    for plan in (small_plan(), network_plan(300), plan_of([], ())):
        picture = picture_of_plan(plan)
        for width, height in ((80, 24), (40, 12), (12, 3), (200, 60)):
            lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(picture, width, height, colours)).splitlines()
            assert max(cell_len(line) for line in lines) <= max(width, 18)
            assert len(lines) == max(height, 9)


def test_a_pipe_gets_no_colour_codes() -> None:
    assert "\x1b" not in printed(picture_of_plan(network_plan(100)), 80, 24)


def test_colours_draw_two_cells_a_character() -> None:
    text = printed(picture_of_plan(small_plan()), 80, 23, "truecolor")
    assert "\x1b[38;2;238;136;102" in text  # x, the second buffer
    assert "▀" in text or "▄" in text
    plain = Text.from_ansi(text).plain
    assert "a" * 5 not in plain
    for name in ("image", "late", "twice"):
        assert name in plain


def test_the_peak_is_marked_in_its_column_above_the_map_and_in_the_sparkline() -> None:
    plan = network_plan(300)
    picture = picture_of_plan(plan)
    lines = printed(picture, 110, 30, "truecolor").splitlines()
    column = 10 + (2 * plan.peak.point + 1) * 100 // 600
    assert Text.from_ansi(lines[0]).plain[column] == "▼"
    assert plan.peak_point.node in lines[0]
    spark = Text.from_ansi(lines[-2])
    [marked] = [span for span in spark.spans if span.style and "#f0508c" in str(span.style)]
    assert (marked.start, marked.end) == (column, column + 1)


def test_a_peak_at_the_end_is_told_left_of_its_mark() -> None:
    plan = small_plan()
    late = replace(plan, peak=replace(plan.peak, point=6))
    assert "peak 6 KiB at softmax ▼" in printed(picture_of_plan(late), 80, 24)


def test_a_cell_shows_the_block_that_fills_most_of_it() -> None:
    cells = fill_grid(picture_of_plan(small_plan()), 7, 6)
    a, x, c, d, e = range(5)
    assert cells == [
        [FREE, c, FREE, FREE, FREE, c, FREE],
        [a, a, FREE, FREE, FREE, e, e],
        [a, a, FREE, d, d, e, e],
        [FREE, x, x, x, x, x, FREE],
        [FREE, x, x, x, x, x, FREE],
        [FREE, x, x, x, x, x, FREE],
    ]


def test_names_cannot_move_the_cursor() -> None:
    plan = small_plan()
    points = (PlanPoint(RUN, "\x1b[2J"), PlanPoint(RUN, "evil\rname\n\x07"), *plan.points[2:])
    placements = tuple(replace(place, value=f"{place.value}\x1b[31m") for place in plan.placements)
    text = printed(picture_of_plan(replace(plan, points=points, placements=placements)), 80, 24)
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text.splitlines()) == 24

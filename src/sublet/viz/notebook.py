"""Plans and advice in a notebook: static HTML of bounded size, without scripts.

`MemoryPlan`, `Executable` and `Advised` import this module when a notebook asks for `_repr_html_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from sublet.base.formatting import human, printable
from sublet.plan import MemoryPlan
from sublet.plan.verdict import Advised
from sublet.viz.summary import SHARING_WORDS, cut_middle
from sublet.viz.terminal import ARENA, BOUND, BUFFERS, FREE, PEAK, fill_grid, value_colour
from sublet.viz.view_model import Picture, picture_of_plan, point_label

MAX_MAP_BYTES = 70_000
"""UTF-8 bytes of all named rectangles of a map: a notebook file keeps each output. Smaller rectangles are sampled."""

_COLUMNS, _ROWS = 180, 45
"""Cells of the sample: at most 14 bytes a cell, so a map with a sample stays below 200 KB."""

MAX_NAME_COLUMNS, MAX_TEXT_COLUMNS = 60, 240
MAX_ROWS = 20
"""Maximum of listed changes of an advice, and of marked arenas of a plan."""

_WIDTH, _HEIGHT = 900, 260
_LETTER, _LINE = 6.2, 12
"""Width and height of a letter of a label, in units of the map."""


def plan_html(plan: MemoryPlan) -> str:
    """Return the figures of a plan in one line, and the memory map as SVG: points to the right, bytes upwards."""
    picture = picture_of_plan(plan)
    rectangles = _draw_rectangles(picture)
    sample, note = "", ""
    if len(rectangles) < len(picture.rectangles):
        sample = _sample_cells(picture)
        note = f"; the map names the {len(rectangles):,} largest of {len(picture.rectangles):,} rectangles"
    return (
        f'<div style="font:13px sans-serif"><div>{_figures(picture)}{note}</div>'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="10" '
        f'style="max-width:{_WIDTH}px;background:#fff;border:1px solid #b9c0cb">'
        f"{sample}{''.join(rectangles)}{''.join(_draw_levels(picture))}</svg></div>"
    )


def _figures(picture: Picture) -> str:
    """Return the figures in one line, with exact sizes as tooltips."""
    sizes = (
        ("arena", picture.arena_bytes),
        ("lower bound", picture.lower_bound_bytes),
        ("without reuse", picture.total_bytes),
        (f"peak at {_name_html(point_label(picture, picture.peak.point))}", picture.peak.nbytes),
    )
    shown = ", ".join(f'{name} <span title="{nbytes:,} bytes">{human(nbytes)}</span>' for name, nbytes in sizes)
    return f"<b>{_name_html(picture.title)}</b>: {shown}; {_name_html(picture.proof_words, MAX_TEXT_COLUMNS)}"


def _name_html(name: str, columns: int = MAX_NAME_COLUMNS) -> str:
    """Return an untrusted name as HTML text, without the middle of a long name."""
    return escape(cut_middle(printable(name), columns))


def _sample_cells(picture: Picture) -> str:
    """Return the map in coarse cells, one path a colour."""
    paths: dict[int, list[str]] = {}
    for row, cells in enumerate(fill_grid(picture, _COLUMNS, _ROWS)):
        column = 0
        for colour, run in groupby(FREE if block == FREE else block % len(BUFFERS) for block in cells):
            count = len(list(run))
            if colour != FREE:
                paths.setdefault(colour, []).append(f"M{column} {row}h{count}v1h-{count}z")
            column += count
    drawn = (f'<path fill="{BUFFERS[colour]}" d="{"".join(parts)}"/>' for colour, parts in paths.items())
    return f'<g transform="scale({_WIDTH / _COLUMNS} {_HEIGHT / _ROWS:.4f})">{"".join(drawn)}</g>'


def _draw_rectangles(picture: Picture) -> list[str]:
    """Return the largest rectangles in drawing order, with a tooltip each."""
    colours = {block.buffer: i for i, block in enumerate(picture.blocks)}
    across, up = _WIDTH / (picture.end - picture.begin), _HEIGHT / picture.top_address
    by_area = sorted(
        range(len(picture.rectangles)),
        key=lambda i: -picture.rectangles[i].nbytes * (picture.rectangles[i].end - picture.rectangles[i].begin),
    )
    drawn: dict[int, str] = {}
    room = MAX_MAP_BYTES
    for i in by_area:
        piece = picture.rectangles[i]
        place = picture.placements[piece.placement]
        x, width = (piece.begin - picture.begin) * across, (piece.end - piece.begin) * across
        y, height = _HEIGHT - (piece.offset + piece.nbytes) * up, piece.nbytes * up
        shares = f" ({SHARING_WORDS[place.how]} {place.shares})" if place.how in SHARING_WORDS else ""
        where = f"{piece.nbytes:,} bytes, points {piece.begin} to {piece.end - 1}"
        label, columns = "", int(width / _LETTER) - 1
        if columns >= 4 and height >= _LINE:
            text = _name_html(place.value, min(columns, MAX_NAME_COLUMNS))
            label = f'<text x="{x + _LETTER / 2:.1f}" y="{y + height / 2 + 3:.1f}">{text}</text>'
        drawn[i] = (
            f'<g><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{value_colour(colours[place.buffer], place.how)}" stroke="#fff" stroke-width=".3"/>'
            f"<title>{_name_html(place.value)}{_name_html(shares)}: {where}</title>{label}</g>"
        )
        room -= len(drawn[i].encode())
        if room < 0:
            del drawn[i]
            break
    return [drawn[i] for i in sorted(drawn)]


def _draw_levels(picture: Picture) -> Iterator[str]:
    """Yield lines at the end of each arena, at each lower bound, and at the point of the peak."""
    up, across = _HEIGHT / picture.top_address, _WIDTH / (picture.end - picture.begin)
    for arena in picture.arenas[:MAX_ROWS]:
        for name, nbytes, colour in (("arena", arena.nbytes, ARENA), ("lower bound", arena.bound, BOUND)):
            y = _HEIGHT - (arena.begin + nbytes) * up
            title = f"<title>{name} {_name_html(arena.name)}: {nbytes:,} bytes</title>"
            dashes = ' stroke-dasharray="4 3"' if name != "arena" else ""
            yield f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="{colour}"{dashes}>{title}</path>'
    x = (picture.peak.point - picture.begin + 0.5) * across
    yield f'<path d="M{x:.1f} 0V{_HEIGHT}" stroke="{PEAK}" stroke-opacity=".6"><title>peak</title></path>'


def advice_html(advised: Advised) -> str:
    """Return the helpful changes as a table, and the numbers of the other changes."""
    rows = "".join(
        f'<tr><td title="{each.saved_bytes:,} bytes">{human(each.saved_bytes)}</td>'
        f'<td title="{each.arena_bytes:,} bytes">{human(each.arena_bytes)}</td><td>{escape(each.kind)}</td>'
        f"<td>{_name_html(each.what, MAX_TEXT_COLUMNS)}</td><td>{_name_html(each.how, MAX_TEXT_COLUMNS)}</td></tr>"
        for each in advised.helpful[:MAX_ROWS]
    )
    heading = "<tr><th>saves</th><th>arena</th><th>kind</th><th>change</th><th>how</th></tr>"
    counts = (
        (len(advised.helpful[MAX_ROWS:]), "more with a smaller arena"),
        (len(advised.unhelpful), "without a smaller arena"),
        (len(advised.failed), "without a plan"),
    )
    rest = [f"{count} {words}" for count, words in counts if count]
    stopped = [f"not everything was tried: {_name_html(advised.stopped)}"] if advised.stopped else []
    return f"<table>{heading}{rows}</table><div>{'; '.join([*rest, *stopped])}</div>"
